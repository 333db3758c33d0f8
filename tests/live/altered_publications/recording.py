"""A TCP proxy that records the messages of a walsender to one pipeline, and the LSNs that the pipeline confirms.

The parser is not aiorepl's, so that an error of aiorepl's parser cannot hide a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from aiorepl.testing.listener import Listener

_START = re.compile(rb"START_REPLICATION SLOT \S+ LOGICAL ([0-9A-F]+)/([0-9A-F]+)", re.IGNORECASE)
_CHUNK = 1 << 16


@dataclass
class Recorded:
    """One connection with START_REPLICATION.

    :param start: the LSN of the command.
    :param incarnation: the number of the pipeline.
    :param confirmed: the largest LSN that the pipeline had confirmed before the command.
    :param frames: the LSN and the payload of each XLogData that was forwarded whole.
    :param seen: the largest LSN of the server that was forwarded.
    """

    start: int
    incarnation: int
    confirmed: int
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    seen: int = 0


class Recorder:
    """Listens on a free port, and forwards to ``port`` of 127.0.0.1. Use it in an ``async with`` statement.

    :ivar incarnation: the number of the pipeline whose connections are recorded.
    :ivar confirmed: the largest LSN that a pipeline has confirmed.
    """

    def __init__(self, port: int) -> None:
        self.incarnation = 0
        self.connections: list[Recorded] = []
        self.confirmed = 0
        self._port = port
        self._listener = Listener(self._connected)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._listener.port

    async def __aenter__(self) -> Self:
        await self._listener.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self._listener.cancel()
        await self._listener.closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self)
        with contextlib.suppress(OSError):
            await asyncio.gather(
                _forward(reader, server_writer, _Messages(link.from_client, startup=True)),
                _forward(server_reader, writer, _Messages(link.from_server)),
            )
        server_writer.transport.abort()
        writer.transport.close()


class _Link:
    """Records the messages of one connection."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded: Recorded | None = None

    def from_client(self, kind: bytes, body: bytes) -> None:
        recorder = self._recorder
        if kind == b"Q" and (found := _START.match(body)):
            start = int(found[1], 16) << 32 | int(found[2], 16)
            self._recorded = Recorded(start, recorder.incarnation, recorder.confirmed)
            recorder.connections.append(self._recorded)
        elif kind == b"d" and body[:1] == b"r":
            (flushed,) = struct.unpack_from(">Q", body, 9)
            recorder.confirmed = max(recorder.confirmed, flushed)

    def from_server(self, kind: bytes, body: bytes) -> None:
        if kind != b"d" or (recorded := self._recorded) is None:
            return
        if body[:1] == b"w":
            lsn, end = struct.unpack_from(">QQ", body, 1)
            recorded.frames.append((lsn, body[25:]))
            recorded.seen = max(recorded.seen, lsn)
        elif body[:1] == b"k":
            (end,) = struct.unpack_from(">Q", body, 1)
            recorded.seen = max(recorded.seen, end)


class _Messages:
    """Cuts a connection's bytes into messages."""

    def __init__(self, found: Callable[[bytes, bytes], None], *, startup: bool = False) -> None:
        self._found = found
        self._startup = startup
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data
        while True:
            head = 0 if self._startup else 1
            if len(self._bytes) < head + 4:
                return
            (length,) = struct.unpack_from(">I", self._bytes, head)
            if len(self._bytes) < head + length:
                return
            kind, body = bytes(self._bytes[:head]), bytes(self._bytes[head + 4 : head + length])
            del self._bytes[: head + length]
            self._startup = False
            self._found(kind, body)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, messages: _Messages) -> None:
    while data := await reader.read(_CHUNK):
        messages.feed(data)
        writer.write(data)
        await writer.drain()
    writer.transport.close()
