"""Shared by the tests of the wire: the frames of a server, and a protocol that reads them without a socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from aiorepl.wire.frames import Keepalive, XLogData
from aiorepl.wire.protocol import ReplicationProtocol

T = TypeVar("T")


class Backend:
    """Builds backend messages. Nothing is checked."""

    @staticmethod
    def frame(kind: str, body: bytes = b"") -> bytes:
        """Return a message of any kind."""
        return kind.encode() + struct.pack(">I", 4 + len(body)) + body

    @classmethod
    def xlog(cls, payload: bytes, start: int = 1, end: int = 2, sent_at: int = 3) -> bytes:
        """XLogData."""
        return cls.frame("d", b"w" + struct.pack(">QQq", start, end, sent_at) + payload)

    @classmethod
    def keepalive(cls, wal_end: int, sent_at: int = 0, *, reply: bool = False) -> bytes:
        """A primary keepalive."""
        return cls.frame("d", b"k" + struct.pack(">QqB", wal_end, sent_at, reply))

    @classmethod
    def error(cls, kind: str = "E", /, **fields: str) -> bytes:
        """An ErrorResponse, or a notice (``N``)."""
        body = b"".join(letter.encode() + text.encode() + b"\0" for letter, text in fields.items())
        return cls.frame(kind, body + b"\0")

    @classmethod
    def rows(cls, names: list[str], *rows: list[str | None]) -> bytes:
        """RowDescription, the rows, CommandComplete and ReadyForQuery."""
        fields = b"".join(
            name.encode() + b"\0" + struct.pack(">IHIhIh", 0, 0, 25, -1, 0, 0) for name in names
        )
        parts = [cls.frame("T", struct.pack(">H", len(names)) + fields)]
        for row in rows:
            values = [
                b"\xff\xff\xff\xff" if v is None else struct.pack(">I", len(v.encode())) + v.encode()
                for v in row
            ]
            parts.append(cls.frame("D", struct.pack(">H", len(row)) + b"".join(values)))
        return b"".join([*parts, cls.frame("C", b"SELECT\0"), cls.READY])

    READY = b"Z\0\0\0\5I"
    COPY_BOTH = b"W\0\0\0\7\0\0\0"
    COPY_DONE = b"c\0\0\0\4"


@pytest.fixture
def backend() -> type[Backend]:
    """Builds backend messages."""
    return Backend


class Transport(asyncio.Transport):
    """A transport that records the calls of its protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True
        self.resumed = asyncio.Event()
        self.closing = False
        self.protocol: ReplicationProtocol | None = None

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.resumed.set()

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Peer:
    """The server's side of a protocol."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.protocol = ReplicationProtocol(self.transport, asyncio.get_running_loop())
        self.transport.protocol = self.protocol

    def send(self, data: bytes) -> None:
        """Pass bytes to the protocol, as the transport does after a read."""
        while data:
            space = self.protocol.get_buffer(-1)
            count = min(len(space), len(data))
            space[:count] = data[:count]
            self.protocol.buffer_updated(count)
            data = data[count:]

    async def received(self) -> list[XLogData | Keepalive]:
        """Return the frames of one ``receive``, one by one."""
        items = await self.protocol.receive()
        return [frame for item in items for frame in (item if isinstance(item, list) else [item])]

    @staticmethod
    async def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task, and run it up to its first wait."""
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        return task

    async def answer(self, *parts: bytes, sql: str = "SELECT 1") -> list[dict[str, str | None]]:
        """Run a query that is answered with these reads, and return its rows."""
        running = await self.start(self.protocol.query(sql))
        for part in parts:
            self.send(part)
        return await running


@pytest.fixture
async def peer() -> Peer:
    """A connection that is ready."""
    return Peer()


@pytest.fixture
async def copying(peer, backend) -> Peer:
    """A connection in CopyBoth."""
    assert [] == await peer.answer(backend.COPY_BOTH, sql="START_REPLICATION")
    peer.transport.written.clear()
    return peer
