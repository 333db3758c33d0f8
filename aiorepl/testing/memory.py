"""A source without a server: pipelines and consumers run on what a test writes down.

    stream = Stream()
    orders = stream.table("orders", column("id", INT4, key=True), column("note"))
    source = MemorySource(stream=stream)
    async with aiorepl.Pipeline(source, [sink]):
        end = stream.transaction(orders.insert("1", "first"))
        await source.acknowledged(end)

``aiorepl.connect(source)`` accepts it too. Only the server and the socket are replaced: decoding, assembly, batches, retries,
reconnecting and feedback are the code of production. The whole stream is sent, including messages and prepared transactions. Use
a source in one event loop only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from aiorepl.errors import ConfigurationError, ConnectionFailed, ConnectionLost, ServerNotice
from aiorepl.lsn import LSN
from aiorepl.secret import Secret
from aiorepl.source.source import Source
from aiorepl.testing.answers import answer
from aiorepl.testing.stream import Stream
from aiorepl.values.types import TypeInfo
from aiorepl.wire.frames import Keepalive, Received, XLogData
from aiorepl.wire.interface import Connection, CreatedSlot, System


class _Slot:
    """The state of the slot between connections."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.confirmed = stream.position.lsn
        self.connection: _Connection | None = None
        self.refused_attempts = 0


@dataclass(frozen=True, slots=True, eq=False)
class MemorySource(Source):
    """A slot over a stream. The other parameters are ``Source``'s, as far as they make sense without a server.

    :param stream: committed transactions; more may be committed while a pipeline runs.
    :param read_bytes: approximate size of one read; a larger transaction arrives in several slices.
    """

    dsn: str | Secret[str] | None = None
    slot: str = "memory"
    publication: str | tuple[str, ...] | list[str] = "memory"
    two_phase: bool = True
    messages: bool = True
    stream: Stream = field(default_factory=Stream, kw_only=True, repr=False)
    read_bytes: int = field(default=64 * 1024, kw_only=True)
    _slot: _Slot | None = field(default=None, kw_only=True, repr=False)

    has_catalog: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.visible:
            raise ConfigurationError("a MemorySource has no server with snapshots: leave out visible")
        if self.heartbeat_interval is not None:
            raise ConfigurationError(
                "a MemorySource has no server for heartbeats: leave out heartbeat_interval"
            )
        object.__setattr__(self, "binary", self.stream.binary)
        if self._slot is None:
            object.__setattr__(self, "_slot", _Slot(self.stream))
        Source.__post_init__(self)

    @property
    def confirmed(self) -> LSN:
        """The slot's confirmed_flush_lsn: everything up to it is durable and is not sent again."""
        return self._state.confirmed

    async def acknowledged(self, lsn: LSN | None = None) -> LSN:
        """Wait until the slot is confirmed up to ``lsn`` (default: the end of the stream), and return ``confirmed``."""
        lsn = self.stream.lsn if lsn is None else lsn
        while self.confirmed < lsn:
            if self._state.connection is not None:
                self._state.connection.ask()
            await asyncio.sleep(0.005)
        return self.confirmed

    def disconnect(self, refused_attempts: int = 0) -> None:
        """Cut the connection, as a network failure does.

        :param refused_attempts: how many of the following attempts to connect fail.
        """
        self._state.refused_attempts = refused_attempts
        if self._state.connection is not None:
            self._state.connection.fail(ConnectionLost("the connection was cut by the test"))

    async def open(self) -> Connection:
        """Open a connection to the stream."""
        if self._state.refused_attempts:
            self._state.refused_attempts -= 1
            raise ConnectionFailed("the connection was refused by the test")
        return _Connection(self._state, self.read_bytes)

    async def look_up(self, oids: Iterable[int]) -> Sequence[TypeInfo]:
        """Return the stream's types among the requested ones."""
        wanted = set(oids)
        return [info for info in self.stream.types if info.oid in wanted]

    @property
    def _state(self) -> _Slot:
        assert self._slot is not None
        return self._slot


class _Connection:
    """A connection to the stream; implements ``aiorepl.wire.interface.Connection``."""

    server_version = 18
    exposure: str | None = None
    pooled: bool = False

    def __init__(self, slot: _Slot, read_bytes: int) -> None:
        self._slot = slot
        self._read_bytes = read_bytes
        self._unread: deque[XLogData] = deque()
        self._readable = asyncio.Event()
        self._report: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._sent_until = slot.confirmed
        self._next_unit = 0
        self._descriptions: list[bytes] = []
        self._started = False
        self._keepalive = True

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """Answer like ``ScriptedWalsender``, on which every slot and publication exists."""
        rows = [dict(row) for row in answer(sql, self._slot.confirmed)]
        if self._slot.connection is not None and rows and "active" in rows[0]:
            rows[0] |= {"active": "true", "active_pid": "0"}
        return rows

    async def identify_system(self) -> System:
        """Return the stream's system, at the end of the stream."""
        position = self._slot.stream.position
        return System(position.system_identifier, position.timeline, self._slot.stream.lsn, "scripted")

    async def timeline_history(self, timeline: int) -> str | None:
        """Return nothing: there is only one timeline."""
        return None

    async def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
        snapshot: str = "nothing",
    ) -> CreatedSlot:
        """Raise an error, because the slot exists already."""
        raise ConfigurationError("the slot of a MemorySource exists already, and it has no tables to load")

    async def drop_slot(self, name: str, *, wait: bool = False) -> None:
        """Raise an error, because the slot lives as long as the source."""
        raise ConfigurationError("the slot of a MemorySource cannot be dropped")

    async def start_replication(
        self, slot: str, lsn: LSN, options: Mapping[str, str], *, confirmed: LSN | None = None
    ) -> None:
        """Start at ``lsn``, or at the slot's confirmed LSN if that is later."""
        self._sent_until = max(lsn, self._slot.confirmed)
        self._next_unit = bisect_right(self._slot.stream.ends, self._sent_until)
        self._descriptions = self._slot.stream.descriptions(self._next_unit)
        self._slot.connection = self
        self._slot.stream.listeners.append(self._readable.set)
        self._started = True

    async def receive(self) -> Sequence[Received]:
        """Wait for frames, and return all that are ready."""
        while True:
            if self._error is not None:
                raise self._error
            if received := self._read():
                return received
            self._readable.clear()
            await self._readable.wait()

    def _read(self) -> list[Received]:
        frames: list[XLogData] = []
        size = 0
        while size < self._read_bytes and (self._unread or self._read_unit()):
            frame = self._unread.popleft()
            frames.append(frame)
            size += len(frame.payload)
        received: list[Received] = [frames] if frames else []
        if self._keepalive and not self._unread and size < self._read_bytes:
            # The server reports that everything was sent.
            self._keepalive = False
            received.append(Keepalive(self._slot.stream.lsn, 0, False))
        return received

    def _read_unit(self) -> bool:
        """Append the next unit to the unread frames; return whether there was one."""
        if self._next_unit == len(self._slot.stream.units):
            return False
        units, number = self._slot.stream.units, self._next_unit
        end, messages = units[number]
        begins = units[number - 1][0] if number else 0
        # Each change has an LSN of its own, and the same on every connection, as on a server.
        frames = [XLogData(min(begins + at, end), end, 0, each) for at, each in enumerate(messages[:-1])]
        if frames and self._descriptions:
            frames[1:1] = [XLogData(frames[0].start, end, 0, each) for each in self._descriptions]
            self._descriptions = []
        self._unread += [*frames, XLogData(end, end, 0, messages[-1])]
        self._sent_until, self._next_unit = end, self._next_unit + 1
        self._keepalive = True
        return True

    def on_reply_request(self, callback: Callable[[], None]) -> None:
        """Set the function that makes the session send a status."""
        self._report = callback

    def on_notice(self, callback: Callable[[ServerNotice], None]) -> None:
        """Ignore the callback: the stream sends no notices."""

    def ask(self) -> None:
        """Request a status."""
        if self._report is not None:
            self._report()

    def send_status(self, received: LSN, flushed: LSN, applied: LSN, *, reply: bool = False) -> None:
        """Advance the slot to ``flushed``."""
        self._slot.confirmed = max(self._slot.confirmed, flushed)
        if reply:
            self._keepalive = True
            self._readable.set()

    def heard(self) -> int | None:
        """Return nothing: the liveness of the stream is not monitored."""
        return None

    def fail(self, error: Exception) -> None:
        """Raise this error from ``receive`` from now on."""
        self._error = error
        self._readable.set()

    async def stop(self) -> None:
        """End the stream; there is nothing to do."""

    async def close(self) -> None:
        """Release the slot."""
        self.abort()

    def abort(self) -> None:
        """Release the slot."""
        if self._started:
            self._started = False
            self._slot.connection = None
            self._slot.stream.listeners.remove(self._readable.set)
