"""Runs COPY … TO STDOUT on a connection of asyncpg's, with as little work per byte as possible.

While the command runs, ``CopyOut`` takes the place of asyncpg's protocol. The server sends 8 KiB at a time. For each send asyncpg
would wake the caller, and stop and restart reading.

The buffer is bounded: once it has as many bytes as the caller wants, the transport stops reading, and TCP holds the server back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from aiorepl.errors import ConnectionLost, ProtocolError, ServerError
from aiorepl.wire import frames
from aiorepl.wire.copy_frames import CopyFrames
from aiorepl.wire.read_pacing import PausingProtocol

# After a read of fewer bytes, reading pauses for so long that the server makes some hundred rows. Without the pause, each send of
# the server would wake this process.
_SMALL_READ: Final = 128 * 1024
_PAUSE_SECONDS: Final = 0.0005


class CopyOut(PausingProtocol):
    """The protocol of one COPY."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport, loop, _PAUSE_SECONDS)
        self._frames = CopyFrames()
        self._wanted = 1
        self._error: ServerError | None = None
        self._ended = False

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that the transport reads into."""
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Process ``nbytes`` that the transport has read."""
        try:
            for frame in self._frames.advance(nbytes):
                self._handle(frame)
        except Exception as error:  # noqa: BLE001 - from a callback; ``read`` raises it
            self.fail(error)
            return
        if self._ended:
            self._wake()
        elif len(self._frames.data) >= self._wanted:
            self._stop_reading()
            self._wake()
        elif nbytes < _SMALL_READ:
            self._pause_for_a_moment()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending read."""
        reason = f": {exc}" if exc is not None else ""
        self._fail(self._error or ConnectionLost(f"the server closed the connection{reason}"))

    @property
    def ended(self) -> bool:
        """Whether the command has ended: no more data arrives."""
        return self._ended

    @property
    def arrived(self) -> int:
        """The number of bytes that have arrived and were not removed."""
        return len(self._frames.data)

    def fail(self, error: Exception) -> None:
        """Drop the connection; ``read`` raises ``error``."""
        self._fail(error)
        self._transport.abort()

    async def read(self, wanted: int) -> bytearray:
        """Return the data that has arrived and was not removed.

        :param wanted: wait for this many bytes, or for the end. The caller removes the used bytes from the beginning.
        :raises ServerError: the command failed.
        :raises ProtocolError: a frame is malformed.
        :raises ConnectionLost: the connection is gone.
        """
        data = self._frames.data
        self._wanted = wanted
        while len(data) < wanted and not self._ended:
            if self._failure is not None:
                raise self._failure
            self._continue_reading()
            await self._wait()
        if self._ended and self._error is not None:
            raise self._error
        return data

    def start(self, sql: str) -> None:
        """Send the command."""
        self._transport.write(frames.query(sql))

    def stop(self) -> bool:
        """Release the timer. Return whether the command has ended, so that the connection can be used again."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        if self._ended and (self._full or self._pacing):
            self._full = self._pacing = False
            self._transport.resume_reading()
        return self._ended

    def _handle(self, frame: frames.Frame) -> None:
        match frame.kind:
            case "E":
                self._error = ServerError(frames.error_fields(frame.body))
            case "Z":
                self._ended = True
            case "H" | "c" | "C" | "N" | "S" | "A":
                pass
            case _:
                raise ProtocolError("unexpected while data is copied", message=f"frame {frame.kind}")


@contextlib.asynccontextmanager
async def copy_out(connection: Any, sql: str) -> AsyncIterator[CopyOut]:
    """Run ``sql``, a COPY … TO STDOUT, on a connection of ``connect_sql``. Use ``read`` until ``ended``.

    If the block ends before that, the connection is dropped, because the server would not stop sending.
    """
    transport = connection.socket_transport
    before = transport.get_protocol()
    copy = CopyOut(transport, asyncio.get_running_loop())
    transport.set_protocol(copy)
    try:
        copy.start(sql)
        yield copy
    finally:
        usable = copy.stop()
        transport.set_protocol(before)
        if not usable:
            connection.terminate()
