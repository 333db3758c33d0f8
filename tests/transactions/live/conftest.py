"""Random sessions on a real server, and short ways to read what it sends.

Messages are written within savepoints, too, in half of the loads. Left out: values out of line, and DDL besides added columns, which ``tests/live/test_hierarchies`` and ``tests/chaos`` draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from aiorepl import Pipeline, Source
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.message_order import MessageOrder
from aiorepl.testing.faults import MemorySink
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.slices import Slice
from aiorepl.values import Types
from aiorepl.wire.frames import XLogData

TABLES = ("one", "two")
Event = tuple[Any, ...]


class Session:
    """A connection in a transaction. A write that would wait for another session fails, and is rolled back."""

    def __init__(self, connection: asyncpg.Connection, dice: Random) -> None:
        self.connection = connection
        self.open = False
        self._dice = dice
        # For each savepoint, and the transaction itself, whether rows were written.
        self._wrote: list[bool] = []

    @property
    def wrote(self) -> bool:
        """Return whether there is something to commit."""
        return any(self._wrote)

    async def begin(self) -> None:
        await self.connection.execute("BEGIN")
        self.open, self._wrote = True, [False]

    async def end(self, statement: str) -> None:
        """Run COMMIT, ROLLBACK or PREPARE TRANSACTION."""
        await self.connection.execute(statement)
        self.open = False

    async def write(self, statement: str) -> None:
        """Write, sometimes in a subtransaction."""
        inside = self._dice.random() < 0.3
        try:
            if inside:
                await self.connection.execute("SAVEPOINT inside")
            done = await self.connection.execute(statement)
            if inside:
                await self.connection.execute("RELEASE inside")
            self._wrote[-1] |= not done.endswith(" 0") and not done.startswith("ALTER")
        except asyncpg.LockNotAvailableError:
            if inside:
                await self.connection.execute("ROLLBACK TO inside; RELEASE inside")
            elif len(self._wrote) > 1:
                await self.rollback_to()
            else:
                await self.end("ROLLBACK")

    async def message(self, prefix: str, *, inside: bool) -> None:
        """Write a message.

        :param inside: also in a subtransaction. A stream does not name it, so such a transaction may be received again.
        """
        if inside or len(self._wrote) == 1:
            await self.connection.execute("SELECT pg_logical_emit_message(true, $1, 'm')", prefix)

    async def savepoint(self) -> None:
        await self.connection.execute(f"SAVEPOINT s{len(self._wrote)}")
        self._wrote.append(False)

    async def rollback_to(self) -> None:
        if len(self._wrote) > 1:
            await self.connection.execute(f"ROLLBACK TO s{len(self._wrote) - 1}")
            self._wrote[-1] = False

    async def release(self) -> None:
        if len(self._wrote) > 1:
            wrote = self._wrote.pop()
            await self.connection.execute(f"RELEASE s{len(self._wrote)}")
            self._wrote[-1] |= wrote


class Load:
    """Sessions of a database that is published whole as ``p``."""

    def __init__(self, sessions: list[Session], dice: Random, name: str) -> None:
        self.decided: list[tuple[str, str]] = []
        """PREPARE, COMMIT PREPARED and ROLLBACK PREPARED, with their gids, in order."""
        self._sessions = sessions
        self._dice = dice
        self._gids = [f"{name}-{number}" for number in range(3)]
        self._prepared: set[str] = set()
        self._count = 0
        # Otherwise, after the first message that a stream does not name, no load would be streamed.
        self._inside = dice.random() < 0.5

    async def run(self, steps: int) -> None:
        """Do so many steps, and end all transactions."""
        for _ in range(steps):
            session = self._dice.choice(self._sessions)
            await (self._step(session) if session.open else session.begin())
        for session in self._sessions:
            if session.open:
                await session.end("COMMIT")
        for gid in sorted(self._prepared):
            await self._decide(gid, "COMMIT PREPARED")

    async def _step(self, session: Session) -> None:
        dice, table = self._dice, self._dice.choice(TABLES)
        self._count += 1
        rows = dice.choice((1, 1, 3, 400))
        own = f"(SELECT id FROM {table} WHERE id % 7 = {dice.randrange(7)} LIMIT {rows})"
        match dice.randrange(24):
            case 0 | 1:
                await session.end("COMMIT")
            case 2:
                await session.end("ROLLBACK")
            case 3 | 4:
                free = [gid for gid in self._gids if gid not in self._prepared]
                # Of a transaction without changes servers tell this or that.
                if free and session.wrote:
                    gid = dice.choice(free)
                    await session.end(f"PREPARE TRANSACTION '{gid}'")
                    self._prepared.add(gid)
                    self.decided.append(("PREPARE", gid))
            case 5 | 6:
                if self._prepared:
                    gid = dice.choice(sorted(self._prepared))
                    await self._decide(gid, dice.choice(("COMMIT PREPARED", "ROLLBACK PREPARED")))
            case 7 | 8 | 9:
                await session.savepoint()
            case 10:
                await session.release()
            case 11 | 12:
                await session.rollback_to()
            case 13:
                await session.message(f"in {self._count}", inside=self._inside)
            case 14:
                await session.connection.execute(
                    "SELECT pg_logical_emit_message(false, $1, 'm')", f"now {self._count}"
                )
            case 15:
                await session.write(
                    f"ALTER TABLE {table} ADD COLUMN c{self._count} int DEFAULT {self._count}"
                )
            case 16:
                await session.write(f"UPDATE {table} SET note = '{self._count}' WHERE id IN {own}")
            case 17:
                await session.write(f"DELETE FROM {table} WHERE id IN {own}")
            case 18:
                await session.write(
                    f"TRUNCATE {table}" if dice.random() < 0.3 else f"DELETE FROM {table} WHERE id < 0"
                )
            case _:
                await session.write(
                    f"INSERT INTO {table} (id, note) SELECT {1000 * self._count} + i, repeat('x', i % 200) "
                    f"FROM generate_series(1, {rows}) i"
                )

    async def _decide(self, gid: str, statement: str) -> None:
        self._prepared.remove(gid)
        idle = next((session for session in self._sessions if not session.open), None)
        if idle is None:
            idle = self._sessions[0]
            await idle.end("COMMIT")
        await idle.connection.execute(f"{statement} '{gid}'")
        self.decided.append((statement, gid))


def events_of(slices: Iterable[Slice]) -> list[Event]:
    """Return the changes: their place in which transaction, what, and the values."""
    return [event(change) for part in slices for change in part.changes]


def event(change: Any) -> Event:
    """Return one change: its place in which transaction, what, and the values."""
    header = change.transaction
    at = (None, change.lsn) if header is None else (header.xid, header.commit_lsn)
    match change.kind:
        case "message":
            return *at, change.ordinal, change.kind, change.prefix, change.content
        case "truncate":
            return *at, change.ordinal, change.kind, [relation.name for relation in change.relations]
    rows = [None if row is None else dict(row) for row in (change.old, change.new)]
    return *at, change.ordinal, change.kind, change.table, *rows


@pytest.fixture
def server(request: pytest.FixtureRequest, server: Any, servers: Any) -> Any:
    """The usual server; with an indirect parameter one of that version."""
    version = getattr(request, "param", None)
    return server if version is None else servers(version)


@pytest.fixture
async def connections(database: str):
    """A factory of connections whose writes do not wait for locks."""
    opened: list[asyncpg.Connection] = []
    settings = {"lock_timeout": "5ms"}

    async def connections(count: int) -> list[asyncpg.Connection]:
        opened.extend([await asyncpg.connect(database, server_settings=settings) for _ in range(count)])
        return opened[-count:]

    yield connections
    for connection in opened:
        await connection.close()


@pytest.fixture
async def tables(connections) -> asyncpg.Connection:
    """Two published tables, and the connection that created them."""
    (connection,) = await connections(1)
    await connection.execute("SET lock_timeout = 0")  # what autovacuum holds is waited for
    for table in TABLES:
        await connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
    await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    return connection


@pytest.fixture
def load(connections, slot_name: str) -> Callable[[int, int], Any]:
    """A factory of sessions that do so many random steps."""

    async def load(seed: int, steps: int) -> Load:
        dice = Random(seed)
        load = Load([Session(each, dice) for each in await connections(4)], dice, slot_name[-20:])
        await load.run(steps)
        return load

    return load


@pytest.fixture
def deliver(database: str, tmp_path: Path):
    """Return the slices that a pipeline delivers from a slot, up to now."""

    async def deliver(slot: str, *, deliver_prepared: bool = False, **options: Any) -> list[Slice]:
        sink = MemorySink()
        sink.supports_prepared = deliver_prepared
        options = {"messages": True, "transaction_buffer_bytes": 100_000, "spill_dir": tmp_path} | options
        await Pipeline(Source(database, slot=slot, publication="p", **options), [sink], until="now").run()
        return [part for batch in sink.batches for part in batch.slices]

    return deliver


@pytest.fixture
def plain(tables: asyncpg.Connection):
    """Return the slices of the server's SQL function with protocol version 1."""

    async def plain(slot: str) -> list[Slice]:
        # A message that is not transactional is not flushed by itself, and only what is flushed is decoded.
        await tables.execute("CHECKPOINT")
        rows = await tables.fetch(
            "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'p', 'messages', 'true')",
            slot,
        )
        frames = [XLogData(LSN.parse(row["lsn"]), 0, 0, row["data"]) for row in rows]
        return Assembler(Types()).feed(Decoder().messages(MessageOrder().feed(frames)))

    return plain


@pytest.fixture
def events() -> Callable[[Iterable[Slice]], list[Event]]:
    """The changes: where in which transaction, what, and the values."""
    return events_of
