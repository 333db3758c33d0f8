"""A source without a server: pipelines and consumers run on what a test writes down.

    stream = Stream()
    orders = stream.table("orders", column("id", INT4, key=True), column("note"))
    source = MemorySource(stream=stream)
    async with aiorepl.Pipeline(source, [sink]):
        end = stream.transaction(orders.insert("1", "first"))
        await source.acknowledged(end)

``aiorepl.connect(source)`` takes it, too. Everything but the server and the socket is what runs in production:
decoding, assembly, batches, retries, reconnecting, what the slot is told. Everything that the stream has is sent,
messages and prepared transactions included. Use a source in one event loop.
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
from aiorepl.testing.script import Error
from aiorepl.testing.stream import Stream
from aiorepl.testing.walsender import ScriptedWalsender
from aiorepl.values.types import TypeInfo
from aiorepl.wire.frames import Keepalive, XLogData
from aiorepl.wire.interface import Connection, CreatedSlot, System


class _Slot:
    """What outlives connections."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.confirmed = stream.position.lsn
        self.connection: _Connection | None = None
        self.refusals = 0


@dataclass(frozen=True, slots=True, eq=False)
class MemorySource(Source):
    """A slot over a stream. The parameters are ``Source``'s, as far as they mean something without a server.

    :param stream: what was committed, and will be; transactions may be added while a pipeline runs.
    :param read_bytes: what one read of a socket brings, about: a transaction larger than that comes in several slices.
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
        if self.heartbeat_interval is not None:
            raise ConfigurationError("a memory source has no server to write a heartbeat to")
        object.__setattr__(self, "binary", self.stream.binary)
        if self._slot is None:
            object.__setattr__(self, "_slot", _Slot(self.stream))
        Source.__post_init__(self)

    @property
    def confirmed(self) -> LSN:
        """What the slot was told last: everything up to here is durable and is not sent again."""
        return self._state.confirmed

    async def acknowledged(self, lsn: LSN | None = None) -> LSN:
        """``confirmed``, once it is ``lsn`` or more; unless given, everything that is committed now."""
        lsn = self.stream.lsn if lsn is None else lsn
        while self.confirmed < lsn:
            if self._state.connection is not None:
                self._state.connection.ask()
            await asyncio.sleep(0.005)
        return self.confirmed

    def lose(self, refusals: int = 0) -> None:
        """Cut the connection, as a network does.

        :param refusals: how many attempts to connect again fail, too.
        """
        self._state.refusals = refusals
        if self._state.connection is not None:
            self._state.connection.fail(ConnectionLost("the connection was cut by the test"))

    async def open(self) -> Connection:
        """A connection to the stream."""
        if self._state.refusals:
            self._state.refusals -= 1
            raise ConnectionFailed("the connection was refused by the test")
        return _Connection(self._state, self.read_bytes)

    async def look_up(self, oids: Iterable[int]) -> Sequence[TypeInfo]:
        """The stream's types."""
        wanted = set(oids)
        return [info for info in self.stream.types if info.oid in wanted]

    @property
    def _state(self) -> _Slot:
        assert self._slot is not None
        return self._slot


class _Connection:
    """What a walsender's connection is to a session; see ``aiorepl.wire.interface.Connection``."""

    server_version = 18
    exposure: str | None = None

    def __init__(self, slot: _Slot, read_bytes: int) -> None:
        self._slot = slot
        self._read_bytes = read_bytes
        self._unread: deque[XLogData] = deque()
        self._news = asyncio.Event()
        self._report: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._at = slot.confirmed
        self._next = 0
        self._descriptions: list[bytes] = []
        self._started = False
        self._keepalive = True

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """As the scripted walsender answers, which has every slot and publication."""
        answer = ScriptedWalsender(confirmed_flush_lsn=self._slot.confirmed).answer(sql)
        assert not isinstance(answer, Error)
        rows = [dict(row) for row in answer]
        if self._slot.connection is not None and rows and "active" in rows[0]:
            rows[0] |= {"active": "true", "active_pid": "0"}
        return rows

    async def identify_system(self) -> System:
        """The stream's, at its end."""
        position = self._slot.stream.position
        return System(position.system_identifier, position.timeline, self._slot.stream.lsn, "scripted")

    async def timeline_history(self, timeline: int) -> str | None:
        """There is one timeline."""
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
        """Never called for: the slot is there."""
        raise ConfigurationError("a memory source has its slot, and no tables to load")

    async def drop_slot(self, name: str, *, wait: bool = False) -> None:
        """Never called for: nobody has created it."""
        raise ConfigurationError("a memory source keeps its slot")

    async def start_replication(
        self, slot: str, lsn: LSN, options: Mapping[str, str], *, confirmed: LSN | None = None
    ) -> None:
        """From ``lsn``, or where the slot stands if that is later."""
        self._at = max(lsn, self._slot.confirmed)
        self._next = bisect_right(self._slot.stream.ends, self._at)
        self._descriptions = self._slot.stream.descriptions(self._next)
        self._slot.connection = self
        self._slot.stream.listeners.append(self._news.set)
        self._started = True

    async def receive(self) -> Sequence[XLogData | Keepalive]:
        """What is to be read now; waits for it."""
        while True:
            if self._error is not None:
                raise self._error
            if frames := self._frames():
                return frames
            self._news.clear()
            await self._news.wait()

    def _frames(self) -> list[XLogData | Keepalive]:
        frames: list[XLogData | Keepalive] = []
        size = 0
        while size < self._read_bytes and (self._unread or self._read_unit()):
            frame = self._unread.popleft()
            frames.append(frame)
            size += len(frame.payload)
        if self._unread or size >= self._read_bytes:
            return frames
        if self._keepalive:
            # All was sent: the server says so.
            self._keepalive = False
            frames.append(Keepalive(self._slot.stream.lsn, 0, False))
        return frames

    def _read_unit(self) -> bool:
        """Have the next unit to read, if there is one."""
        if self._next == len(self._slot.stream.units):
            return False
        end, messages = self._slot.stream.units[self._next]
        unit = messages
        if self._descriptions and len(messages) > 1:
            unit = [messages[0], *self._descriptions, *messages[1:]]
            self._descriptions = []
        self._unread += [XLogData(self._at, end, 0, payload) for payload in unit[:-1]]
        self._unread.append(XLogData(end, end, 0, unit[-1]))
        self._at, self._next = end, self._next + 1
        self._keepalive = True
        return True

    def on_reply_request(self, callback: Callable[[], None]) -> None:
        """What makes the session send a status."""
        self._report = callback

    def on_notice(self, callback: Callable[[ServerNotice], None]) -> None:
        """There is nothing to notice."""

    def ask(self) -> None:
        """Want a status now."""
        if self._report is not None:
            self._report()

    def send_status(self, received: LSN, flushed: LSN, applied: LSN, *, reply: bool = False) -> None:
        """The slot moves to ``flushed``."""
        self._slot.confirmed = max(self._slot.confirmed, flushed)
        if reply:
            self._keepalive = True
            self._news.set()

    def heard(self) -> int | None:
        """There is no silence here to be noticed."""
        return None

    def fail(self, error: Exception) -> None:
        """Raise this from now on."""
        self._error = error
        self._news.set()

    async def stop(self) -> None:
        """The end of the stream, in order."""

    async def close(self) -> None:
        """Let go of the slot."""
        self.abort()

    def abort(self) -> None:
        """Let go of the slot."""
        if self._started:
            self._started = False
            self._slot.connection = None
            self._slot.stream.listeners.remove(self._news.set)
