"""The asyncio protocol of a replication connection, once asyncpg has opened and authenticated it.

READY: no command runs. BUSY: a simple query runs; its result is collected until ReadyForQuery, also after an error, so that
the next query starts clean. COPY: CopyBoth; XLogData and keepalives go to an inbox that ``receive`` empties. The inbox is
bounded by bytes: when it is full the transport stops reading, and TCP holds the server back, until ``receive`` is called.

A keepalive that requests a reply is answered within the read callback, independently of all tasks.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from typing import Final

from aiorepl.errors import (
    ConnectionLost,
    ProtocolError,
    ServerError,
    ServerNotice,
)
from aiorepl.wire import frames
from aiorepl.wire.frames import Frame, FrameBuffer, Keepalive, Received
from aiorepl.wire.read_pacing import PausingProtocol

_INBOX_BYTES: Final = 1024 * 1024
# On a busy stream the consumer is woken after this many bytes, or once per this many seconds. A burst of up to this many
# transactions wakes it at once, each.
_WAKE_BYTES: Final = 64 * 1024
_WAKE_SECONDS: Final = 0.001
_WAKE_BURST: Final = 8
# A keepalive without data wakes the consumer later: on a busy server one follows each transaction, and to handle it costs as much.
_KEEPALIVE_SECONDS: Final = 0.01
# pgoutput's messages that end a transaction: Commit, Stream Commit, Prepare, Stream Prepare, Commit Prepared, Rollback Prepared.
_ENDS: Final = frozenset((b"C", b"c", b"P", b"p", b"K", b"r"))
# After this many small reads in quick succession, each read is followed by this pause, in which a walsender makes some 100 rows.
# The time without and with pauses, as a share of pg_recvlogical's time: null sink 0.90 and 0.48, journal 0.83 and 0.70, small
# transactions 0.65 and 0.36, with half of the CPU. A consumer that decodes is slower than the pauses and is not affected.
_SMALL_READS: Final = 16
_PAUSE_SECONDS: Final = 0.0004
# The memory of a frame beside its payload: objects, list slots.
_FRAME_OVERHEAD: Final = 200


class ConnectionState(enum.Enum):
    """The state of the connection in PostgreSQL's protocol."""

    READY = "ready"
    BUSY = "busy"
    COPY = "copy"
    CLOSED = "closed"


# The frames that may arrive in each state, beside CopyData. Errors, notices and parameters may arrive at any time. After
# CopyDone, or an error in CopyBoth, CommandComplete and ReadyForQuery end the command.
_ANY_TIME: Final = frozenset("ENSA")
_EXPECTED: Final = {
    ConnectionState.READY: _ANY_TIME,
    ConnectionState.BUSY: _ANY_TIME | frozenset("TDCIWZ"),
    ConnectionState.COPY: _ANY_TIME | frozenset("cCZ"),
    ConnectionState.CLOSED: frozenset[str](),
}


class ReplicationProtocol(PausingProtocol):
    """Passes frames between a transport and one consumer.

    :param on_reply_request: called within the loop's read callback when the server wants a status at once.
    :param on_notice: called with every NoticeResponse.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport, loop, _PAUSE_SECONDS)
        self.on_reply_request: Callable[[], None] | None = None
        self.on_notice: Callable[[ServerNotice], None] | None = None
        self.state = ConnectionState.READY
        self.bytes_received = 0
        self._buffer = FrameBuffer()
        self._inbox: list[Received] = []
        self._inbox_size = 0
        # The WAL position of the last frame, for error messages.
        self._position = 0
        # The time at which the stream no longer counts as busy.
        self._busy_until = 0.0
        self._waking: asyncio.TimerHandle | None = None
        self._waking_for_keepalive: asyncio.TimerHandle | None = None
        self._read_at = 0.0
        self._small_reads = 0
        self._error: ServerError | None = None
        self._answered = True
        # Whether a frame was parsed. The first frame may begin in the middle of a message.
        self._aligned = False
        self._names: list[str] = []
        self._rows: list[dict[str, str | None]] = []
        self._rows_size = 0
        self._copy_ended = False
        self._drain: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = loop.create_future()

    # Methods that the loop calls.

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that the transport reads into."""
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Process ``nbytes`` that the transport has read."""
        self.bytes_received += nbytes
        try:
            self._process(nbytes)
            if self._buffer.damage is not None:
                raise self._buffer.damage
        except ProtocolError as error:
            self.fail(self._damaged(error))
        except Exception as error:  # noqa: BLE001 - from a callback; ``receive`` raises it
            self.fail(error)
        if self._inbox_size > _INBOX_BYTES and not self._full and not self._transport.is_closing():
            self._stop_reading()
        elif nbytes < _WAKE_BYTES:
            self._pace_reads()
        else:
            self._small_reads = 0
        if self._inbox and self._waiter is not None:
            self._wake_for_data()

    def _damaged(self, error: ProtocolError) -> Exception:
        if not self._aligned:
            # asyncpg may have read the beginning of an unsolicited message, as when the server shuts down. That part is lost, so
            # the rest makes no sense.
            return ConnectionLost(f"the connection was disturbed while it was opened: {error}")
        return error.at(self._position) if self._position else error

    def _pace_reads(self) -> None:
        """Pause reading for a moment if small reads follow each other quickly.

        Otherwise each send of the walsender wakes this process, which costs the walsender as much as making the row.
        """
        now = time.monotonic()
        close, self._read_at = now - self._read_at < 2 * _PAUSE_SECONDS, now
        self._small_reads = self._small_reads + 1 if close else 0
        if self._small_reads >= _SMALL_READS:
            self._pause_for_a_moment()

    def _wake_for_data(self) -> None:
        """Wake the consumer: at once at the end of a transaction, but not for every few rows of a busy stream.

        A walsender sends each row separately. Waking for each read would pass four rows at a time down to the sinks, which
        takes twice the CPU.
        """
        now = time.monotonic()
        if self._inbox_size >= _WAKE_BYTES or (now >= self._busy_until and self._has_transaction_end()):
            if self._waking is not None:
                self._waking.cancel()
            self._wake_at(now)
        elif len(self._inbox) == 1 and isinstance(self._inbox[0], Keepalive):
            if self._waking_for_keepalive is None:
                self._waking_for_keepalive = self._loop.call_later(
                    _KEEPALIVE_SECONDS, self._wake_for_keepalive
                )
        elif self._waking is None:
            self._waking = self._loop.call_later(_WAKE_SECONDS, self._wake_late)

    def _has_transaction_end(self) -> bool:
        """Whether the last message in the inbox ends a transaction. A walsender that waits for WAL sends a keepalive after it."""
        last = self._inbox[-1]
        if isinstance(last, Keepalive) and len(self._inbox) > 1:
            last = self._inbox[-2]
        return isinstance(last, list) and last[-1].payload[:1] in _ENDS

    def _wake_late(self) -> None:
        self._wake_at(time.monotonic())

    def _wake_at(self, now: float) -> None:
        # The time of a quiet stream is credited up to a burst, so a few transactions in quick succession do not make it busy.
        self._busy_until = min(max(self._busy_until, now - _WAKE_BURST * _WAKE_SECONDS), now) + _WAKE_SECONDS
        self._waking = None
        self._wake()

    def _wake_for_keepalive(self) -> None:
        self._waking_for_keepalive = None
        if self._inbox:
            self._wake()

    def _process(self, nbytes: int) -> None:
        """Put stream frames into the inbox, without a Python loop per frame, and handle all other frames."""
        inbox, buffer = self._inbox, self._buffer
        pending, received, before = buffer.pending, buffer.received, len(inbox)
        others = buffer.advance(nbytes, inbox)
        # The inbox is empty until CopyBoth begins. After CopyBoth has ended, it can only have data of this read.
        copying = self.state is ConnectionState.COPY
        try:
            for index, frame in others:
                try:
                    copying = copying or (index == before and isinstance(frame, Frame) and frame.kind == "W")
                    self._dispatch(frame)
                except BaseException:
                    del inbox[index:]  # frames after an invalid one cannot be trusted
                    raise
            if not copying and buffer.received > received:
                del inbox[before:]
                raise ProtocolError("arrived outside of CopyBoth", message="CopyData")
        finally:
            if (count := buffer.received - received) > 0:
                self._inbox_size += pending + nbytes - buffer.pending + count * _FRAME_OVERHEAD
            if inbox:
                last = inbox[-1]
                self._position = last[-1].start if isinstance(last, list) else last.wal_end

    def _dispatch(self, frame: Keepalive | Frame) -> None:
        if isinstance(frame, Frame):
            self._handle(frame)
        elif frame.reply_requested and self.on_reply_request is not None:
            self.on_reply_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending calls."""
        if self._timer is not None:
            self._timer.close()
        if self.state is not ConnectionState.CLOSED:
            pending = self._buffer.pending
            cut = f" in the middle of a frame, {pending} bytes into it" if pending else ""
            reason = f": {exc}" if exc is not None else ""
            self._fail(self._error or ConnectionLost(f"the server closed the connection{cut}{reason}"))
            self.state = ConnectionState.CLOSED
        if not self._closed.done():
            self._closed.set_result(None)
        self.resume_writing()

    def pause_writing(self) -> None:
        """Called by the loop when the send buffer is full."""
        if self._drain is None:
            self._drain = self._loop.create_future()

    def resume_writing(self) -> None:
        """Called by the loop when the send buffer has room again."""
        drain, self._drain = self._drain, None
        if drain is not None and not drain.done():
            drain.set_result(None)

    # Methods that the connection calls.

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """Run one simple query or replication command, and return its rows.

        :raises ServerError: the command failed; the connection can be used again.
        :raises ConnectionLost: the connection is gone.
        """
        self._require(ConnectionState.READY)
        self._names, self._rows, self._rows_size = [], [], 0
        self._copy_ended = False
        self._take_error()
        self.state, self._answered = ConnectionState.BUSY, False
        self._transport.write(frames.query(sql))
        while not self._answered:
            await self._wait()
        if (error := self._take_error()) is not None:
            raise error
        return self._rows

    def require_copy(self) -> None:
        """Check that the last query has begun CopyBoth.

        :raises ProtocolError: the query has ended without CopyBoth.
        """
        if self.state is ConnectionState.READY and not self._copy_ended and self._failure is None:
            raise ProtocolError("ended without CopyBoth", message="START_REPLICATION")

    async def receive(self) -> list[Received]:
        """Return all frames that have arrived, at least one; an empty list once the server has ended the stream.

        :raises ServerError: the server ended the stream with an error; earlier calls returned the frames before it.
        :raises ProtocolError: a frame is malformed.
        :raises ConnectionLost: the connection is gone.
        """
        while not self._inbox:
            if self._copy_ended:
                return []
            await self._wait()
        return self._take_inbox()

    def send(self, data: bytes) -> None:
        """Write without waiting. On a closed connection this does nothing."""
        if self.state is not ConnectionState.CLOSED and not self._transport.is_closing():
            self._transport.write(data)

    async def end_copy(self) -> None:
        """Send CopyDone, and drop all frames until the server is ready again.

        :raises AioreplError: as ``receive`` does.
        """
        self.send(frames.COPY_DONE)
        self._take_inbox()
        while not self._in(ConnectionState.READY):
            await self._wait()
            self._take_inbox()

    async def close(self) -> None:
        """Terminate the session, and wait until the socket is closed."""
        if self.state is not ConnectionState.CLOSED:
            self.send(frames.TERMINATE)
            self._end()
        # Up to Python 3.11.3, abort() fails on a TLS transport that was closed again after its end.
        if not self._transport.is_closing():
            self._transport.close()
        try:
            async with asyncio.timeout(5):
                await asyncio.shield(self._closed)
        except TimeoutError:
            pass
        finally:
            self._transport.abort()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._end()
        self._transport.abort()

    def fail(self, error: Exception) -> None:
        """Drop the connection at once; ``receive`` raises ``error`` after the frames that arrived before."""
        self._fail(error)
        self.abort()

    @property
    def paused(self) -> bool:
        """Whether reading is paused because the inbox is full."""
        return self._full

    def _end(self) -> None:
        self.state = ConnectionState.CLOSED
        # Pending calls would wait for ever.
        self._fail(ConnectionLost("the connection was closed on this side"))

    # Frames other than data.

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case kind if kind not in _EXPECTED[self.state]:
                raise ProtocolError(f"unexpected in state {self.state.value}", message=f"frame {kind}")
            case "E":
                error = ServerError(frames.error_fields(frame.body))
                if self.state is ConnectionState.COPY:
                    # After an error in CopyBoth the server sends ReadyForQuery or closes the connection.
                    self._fail(error)
                else:
                    self._error = error
            case "N":
                if self.on_notice is not None:
                    self.on_notice(ServerNotice(frames.error_fields(frame.body)))
            case "T":
                self._names = frames.row_description(frame.body)
            case "D":
                self._rows_size += len(frame.body) + _FRAME_OVERHEAD
                if self._rows_size > frames.LARGEST_ANSWER:
                    raise ProtocolError(
                        f"the answer has more than {frames.LARGEST_ANSWER} bytes", message="DataRow"
                    )
                row = frames.data_row(frame.body)
                if len(row) != len(self._names):
                    raise ProtocolError("does not have the columns of its RowDescription", message="DataRow")
                self._rows.append(dict(zip(self._names, row, strict=True)))
            case "W":
                self.state, self._answered = ConnectionState.COPY, True
                self._copy_ended = False
                self._wake()
            case "c":
                self._copy_ended = True
                self._wake()
            case "Z":
                if self.state is ConnectionState.COPY and not self._copy_ended and self._failure is None:
                    raise ProtocolError("ends CopyBoth without CopyDone", message="ReadyForQuery")
                self.state, self._answered = ConnectionState.READY, True
                self._wake()
        self._aligned = True

    def _take_error(self) -> ServerError | None:
        error, self._error = self._error, None
        return error

    def _take_inbox(self) -> list[Received]:
        inbox, self._inbox, self._inbox_size = self._inbox, [], 0
        self._continue_reading()
        return inbox

    def _in(self, *states: ConnectionState) -> bool:
        return self.state in states

    def _require(self, state: ConnectionState) -> None:
        if self._failure is not None:
            raise self._failure
        if self.state is not state:
            raise ConnectionLost(f"the connection is {self.state.value}, not {state.value}")
