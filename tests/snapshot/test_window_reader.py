"""A table that is read beside the stream: whatever commits meanwhile, and however often that is interrupted, a sink ends like it.

The reader is the real one; the server and the sink are simulated. The stream goes on while the reader waits for its connections.
Rows are in blocks, and an update may move a row to another block. A row that a transaction has changed is locked until the
transaction is visible, or has rolled back. A commit is in the stream before it is visible, as with synchronous replication.

Left out: DDL, which ends the reading of a table (``test_altered``), and keys of more than one column, which are compared by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.errors import AioreplError
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.tuples import BINARY, TEXT, UNCHANGED
from aiorepl.snapshot.chunk_query import keys_condition
from aiorepl.snapshot.chunks import TablePlan, block_ranges
from aiorepl.snapshot.described import DescribedTable
from aiorepl.snapshot.incremental import connections, stream_source, table, table_reading, window_reader
from aiorepl.snapshot.incremental.connections import ReadingConnections
from aiorepl.snapshot.incremental.fresh_chunks import Altered
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.incremental.table import read_table
from aiorepl.snapshot.ledger.ledger import TableChange, TableProgress
from aiorepl.snapshot.merging.chunk_rows import ChunkRows
from aiorepl.snapshot.merging.merge import ChunkMerge
from aiorepl.snapshot.merging.window import VisibleXids, Window
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import TableFiles
from aiorepl.snapshot.tables import PublishedColumn, PublishedTable
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange, Truncate
from aiorepl.transactions.control_messages import WATERMARK
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.registry import Types

OID, INT4, TEXT_OID = 7, 23, 25
FIRST_XID = 2**33 - 5  # without their epoch, the xids wrap around
UNPUBLISHED = 10  # rows with this key and higher ones are not published

COLUMNS = (
    PublishedColumn("id", INT4, -1, key=True),
    PublishedColumn("v", TEXT_OID, -1, key=False),
    PublishedColumn("toast", TEXT_OID, -1, key=False),
)
TABLE = PublishedTable(OID, "public", "t", COLUMNS, None, "d", partitioned=False, secured=False)
RELATION = build.relation(
    oid=OID, name="t", columns=[build.column("id", INT4, key=True), build.column("v"), build.column("toast")]
)

Content = dict[int, tuple[str, str | None]]
"""The published rows by key; a column that never arrived is ``None``."""


@dataclass
class Row:
    """A row's columns, the block that it is in, and the transaction that wrote it there.

    :param sent: whether the stream, or the table before it, has all columns: not if the row was not published before.
    """

    v: str
    toast: str
    block: int
    xid: int = FIRST_XID - 10
    sent: bool = True


@dataclass
class Running:
    """A transaction: what it wrote, and its changes in the stream."""

    xid: int
    writes: dict[int, Row | None] = field(default_factory=dict)
    truncates: bool = False
    messages: list[bytes] = field(default_factory=list)
    state: str = "running"
    prepare_lsn: int = 0

    @property
    def gid(self) -> str:
        return f"g{self.xid}"

    @property
    def locks(self) -> bool:
        """Whether it has a lock on the table."""
        return self.truncates or bool(self.writes)


class Server:
    """The server.

    :ivar rows: what a new snapshot sees.
    :ivar files: identifies the table's file.
    :ivar stream: everything that the slot has sent.
    """

    def __init__(self, folder: Path, *, deliver_prepared: bool = True, slice_bytes: int = 1) -> None:
        self.rows: dict[int, Row] = {}
        self.files = 0
        self.transactions: list[Running] = []
        self.stream: list[Slice] = []
        self.spool = Spool(folder)
        self._next_xid = FIRST_XID
        self._lsn = 1000
        # The rows after each commit, in the order of the commits.
        self._committed: list[tuple[int, dict[int, Row]]] = []
        self._decoder = Decoder(Streaming.OFF)
        self._assembler = Assembler(
            Types(), deliver_prepared=deliver_prepared, spool=self.spool, slice_bytes=slice_bytes
        )
        self._feed(RELATION)

    # Transactions.

    def begin(self) -> Running:
        """Begin a transaction; it has an xid at once."""
        running = Running(self._next_xid)
        self._next_xid += 1
        self.transactions.append(running)
        return running

    def seen(self, running: Running) -> dict[int, Row]:
        """Return the rows that a transaction sees, with its own changes."""
        return _after(self.rows, running)

    def locked(self, running: Running, key: int) -> bool:
        """Whether another transaction has changed the row, or truncates the table."""
        others = (other for other in self.transactions if other is not running)
        return any(other.truncates or key in other.writes for other in others)

    def insert(self, running: Running, key: int, row: Row) -> None:
        """INSERT."""
        if key < UNPUBLISHED:
            running.messages.append(build.insert(relation=OID, new=[str(key), row.v, row.toast]))
        self._write(running, key, row)

    def delete(self, running: Running, key: int) -> None:
        """DELETE."""
        if key < UNPUBLISHED:
            running.messages.append(build.delete(relation=OID, old=[str(key), None, None]))
        self._write(running, key, None)

    def update(self, running: Running, key: int, new_key: int, row: Row) -> None:
        """UPDATE, perhaps of the key. A large value that is as it was is not sent, and nothing of unpublished rows is."""
        before = self.seen(running)[key]
        unchanged = row.toast == before.toast
        row.sent = not unchanged or (before.sent and not key >= UNPUBLISHED > new_key)
        new = [str(new_key), row.v, UNCHANGED if unchanged else row.toast]
        old = [str(key), None, None]
        if new_key < UNPUBLISHED:
            if key == new_key:
                message = build.update(relation=OID, new=new)
            elif key < UNPUBLISHED:
                message = build.update(relation=OID, new=new, old=old)
            else:
                message = build.insert(relation=OID, new=new)
            running.messages.append(message)
        elif key < UNPUBLISHED:
            running.messages.append(build.delete(relation=OID, old=old))
        self._write(running, key, None)
        self._write(running, new_key, row)

    def truncate(self, running: Running) -> None:
        """TRUNCATE."""
        running.truncates = True
        running.writes.clear()
        running.messages.append(build.truncate(relations=[OID]))

    def prepare(self, running: Running) -> None:
        """PREPARE TRANSACTION; the stream has its changes now."""
        running.state, running.prepare_lsn = "prepared", self._advance()
        names = {"prepare_lsn": running.prepare_lsn, "end_lsn": running.prepare_lsn + 8}
        names |= {"xid": running.xid % 2**32, "gid": running.gid}
        self._feed(build.begin_prepare(**names), *running.messages, build.prepare(**names))

    def commit(self, running: Running) -> None:
        """Write the commit record: the stream has the transaction, and other sessions do not see it yet."""
        lsn, xid = self._advance(), running.xid % 2**32
        if running.state == "prepared":
            self._feed(build.commit_prepared(commit_lsn=lsn, end_lsn=lsn + 8, xid=xid, gid=running.gid))
        else:
            self._feed(
                build.begin(final_lsn=lsn, xid=xid),
                *running.messages,
                build.commit(commit_lsn=lsn, end_lsn=lsn + 8),
            )
        running.state = "committed"
        before = self._committed[-1][1] if self._committed else self.rows
        self._committed.append((lsn, _after(before, running)))

    def show(self, running: Running) -> None:
        """Make a committed transaction visible, and release its locks."""
        if not self._committed:
            self._committed.append((0, self.rows))
        self.rows = self.seen(running)
        self.files += running.truncates
        self.transactions.remove(running)

    def roll_back(self, running: Running) -> None:
        """Roll a transaction back, prepared or not."""
        if running.state == "prepared":
            lsn = self._advance()
            names = {"prepare_end_lsn": running.prepare_lsn + 8, "rollback_end_lsn": lsn}
            self._feed(build.rollback_prepared(**names, xid=running.xid % 2**32, gid=running.gid))
        self.transactions.remove(running)

    def _write(self, running: Running, key: int, row: Row | None) -> None:
        running.writes[key] = row
        if row is not None:
            row.xid = running.xid

    # The rows that a reader sees.

    def snapshot(self) -> VisibleXids:
        """Take a snapshot."""
        running = frozenset(transaction.xid for transaction in self.transactions)
        return VisibleXids(min(running, default=self._next_xid), self._next_xid, running)

    def message(self, prefix: str, content: str) -> LSN:
        """Write a logical message."""
        lsn = self._advance()
        self._feed(build.message(transactional=False, lsn=lsn, prefix=prefix, content=content.encode()))
        return LSN(lsn)

    def content(self, end: int | None = None) -> Content:
        """Return the published rows.

        :param end: as they are for the stream before this LSN; by default as a new snapshot sees them.
        """
        rows = self.rows
        if end is not None:
            rows = next((rows for lsn, rows in reversed(self._committed) if lsn < end), rows)
        return {key: (row.v, row.toast) for key, row in rows.items() if key < UNPUBLISHED}

    def _advance(self) -> int:
        self._lsn += 100
        return self._lsn

    def _feed(self, *payloads: bytes) -> None:
        # One message at a time, so that a transaction has several slices.
        for payload in payloads:
            self.stream += self._assembler.feed([self._decoder.decode(payload)])


def _after(rows: dict[int, Row], running: Running) -> dict[int, Row]:
    after = {} if running.truncates else dict(rows)
    for key, row in running.writes.items():
        after.pop(key, None)
        if row is not None:
            after[key] = row
    return after


def described() -> DescribedTable:
    """The table, as a reader describes it."""
    relation = Decoder().decode(TABLE.relation)
    return DescribedTable(TABLE, Layout(relation, Types(), binary=True), bytes([BINARY, TEXT, TEXT]), ())


def chunk_of(rows: dict[int, Row], table: DescribedTable, spool: Spool) -> ChunkRows:
    """Make a chunk, of which a part is in the spool."""
    chunk = ChunkRows(table, spool, 600)
    for key, row in rows.items():
        fields = (struct.pack(">i", key), row.v.encode(), row.toast.encode())
        data = b"".join(struct.pack(">i", len(each)) + each for each in fields)
        chunk.add(struct.pack(">h", 3) + data, 1)
    return chunk


class Target:
    """A sink that keeps its position with its rows.

    :ivar tables: how often the table was complete.
    :ivar end: everything before this LSN was applied.
    """

    def __init__(self) -> None:
        self.rows: Content = {}
        self.tables = 0
        self.end = LSN(0)
        self._prepared: dict[int, list[Any]] = {}

    def copy(self) -> Target:
        """Return what is durable if it is now."""
        copy = Target()
        copy.rows, copy.tables, copy.end = dict(self.rows), self.tables, self.end
        copy._prepared = {xid: list(changes) for xid, changes in self._prepared.items()}
        return copy

    def apply(self, part: Slice) -> None:
        """Apply a slice."""
        header = part.transaction
        if part.end_lsn is not None:
            assert part.end_lsn >= self.end
            self.end = part.end_lsn
        if header is None:
            assert not part.changes
        elif not header.prepared:
            for change in part.changes:
                self._change(change)
            if header.snapshot is not None and part.end_lsn is not None:
                self.tables += header.snapshot.last_of_table
        elif isinstance(part.two_phase, m.RollbackPrepared):
            self._prepared.pop(header.xid, None)
        elif isinstance(part.two_phase, m.CommitPrepared):
            for change in self._prepared.pop(header.xid, []):
                self._change(change)
        else:
            self._prepared.setdefault(header.xid, []).extend(part.changes)

    def _change(self, change: Any) -> None:
        if isinstance(change, Truncate):
            self.rows.clear()
            return
        assert isinstance(change, RowChange)
        if change.kind == "delete":
            self.rows.pop(change.key["id"], None)
            return
        new, base = change.new, ("", None)
        if change.kind == "update":
            base = self.rows.pop(change.key["id"], base)
        self.rows[new["id"]] = new["v"], base[1] if new["toast"] is UNCHANGED else new["toast"]


BLOCKS = 3
KEYS = 13
SLOT = "s"
# Past so many interruptions there are no more, so that the table is complete at some time.
INTERRUPTIONS = 12


class Interrupted(Exception):
    """The process ends, or the sink has lost what was not durable."""


@dataclass
class Faults:
    """How likely what is.

    :param kill: at each step, that the process ends: the sink has what was durable.
    :param rewind: at each step, that only the sink fails.
    :param retry: at each step, that a connection of the reader is lost.
    :param full: that the ledger cannot be written while the stream waits.
    """

    kill: float = 0.0
    rewind: float = 0.0
    retry: float = 0.0
    full: float = 0.0


class World:
    """A server under load, a sink, and a pipeline between them that reads the table.

    :param limit: bytes of keys that a window may have.
    :param whole: whether one chunk has all rows.
    :param all_updates: whether all updates are in the stream, as far as the reader knows.
    """

    def __init__(
        self,
        server: Server,
        chance: random.Random,
        faults: Faults,
        *,
        limit: int = 1 << 20,
        whole: bool = False,
        all_updates: bool = True,
    ) -> None:
        self.server = server
        self.chance = chance
        self.faults = faults
        self.target = Target()
        self.all_updates = all_updates
        self.ranges = (None,) if whole else block_ranges(BLOCKS, 1)
        self.interruptions = 0
        self.sweeps = 0
        # How many transactions of the reader have locked the table.
        self.readers = 0
        self._options = SnapshotOptions(in_flight_bytes=limit)
        self._merge = ChunkMerge(SLOT)
        self._connections: ReadingConnections | None = None
        self._progress = TableProgress(1, OID, "public", "t")
        # How much of the stream was delivered, and what of it is durable.
        self._at = 0
        self._durable = self.target.copy(), 0
        self._serial = 0
        for key in (*range(7), *range(UNPUBLISHED, KEYS)):
            server.rows[key] = self._row()
            server.rows[key].block = chance.randrange(1, BLOCKS + 1)

    async def read_table(self) -> None:
        """Read the table until it is complete and durable."""
        while not self._progress.complete:
            if self._progress.plan is not None and not self._progress.left:
                with contextlib.suppress(Interrupted):
                    await self._step()
                continue
            reader = asyncio.ensure_future(self._read_once())
            try:
                while not reader.done():
                    await self._step()
                    self._fail(self.faults.retry)
                    await asyncio.sleep(0)
            except Interrupted:
                await self._stop(reader)
            else:
                with contextlib.suppress(AioreplError):
                    reader.result()

    async def finish(self) -> None:
        """End all transactions, and deliver the rest of the stream."""
        self.faults = Faults()
        while self.server.transactions:
            running = self.server.transactions[0]
            if running.state != "committed":
                self.server.commit(running)
            self.server.show(running)
        while self._at < len(self.server.stream):
            await self._deliver()

    # The pipeline.

    async def _read_once(self) -> None:
        async def connect() -> Connection:
            return Connection(self)

        source = SnapshotSource(
            SLOT, ("p",), connect, _no_slot, self._merge, self.server.spool, self._options, None
        )
        if self._connections is None:
            self._connections = ReadingConnections(source)
        arguments = self._connections, self._progress, self._update, self._record
        await read_table(source, *arguments, lambda: True, None, "reading")

    async def _stop(self, reader: asyncio.Future[None]) -> None:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    def _fail(self, likely: float) -> None:
        if self.chance.random() < likely and self.interruptions < INTERRUPTIONS:
            self.interruptions += 1
            raise Interrupted

    async def _update(self, change: TableChange) -> TableProgress:
        await asyncio.sleep(0)
        self._progress = change(self._progress)
        return self._progress

    async def _record(self, change: TableChange) -> bool:
        if self.chance.random() < self.faults.full:
            return False
        self._progress = change(self._progress.durable(self._durable[0].end))
        return True

    async def _step(self) -> None:
        self._load()
        try:
            for _ in range(self.chance.randrange(3)):
                await self._deliver()
                self._fail(self.faults.kill)
        except Interrupted:
            self._merge = ChunkMerge(SLOT)
            self._restore()
            self._progress = self._progress.durable(self.target.end)
            raise
        try:
            self._fail(self.faults.rewind)
        except Interrupted:
            self._merge.abandon()
            self._merge.rewound()
            self._restore()
            raise

    def _restore(self) -> None:
        durable, self._at = self._durable
        self.target = durable.copy()
        self._progress = self._progress.rewound(self.target.end)

    async def _deliver(self) -> None:
        if self._at == len(self.server.stream):
            return
        part = self.server.stream[self._at]
        slices = self._merge.take([part])
        while self._merge.before_delivery:
            await self._merge.before_delivery.pop(0)()
            # The ledger has the chunk now, and the sink does not.
            self._fail(self.faults.kill)
        tables = self.target.tables
        for each in slices:
            self.target.apply(each)
        self._at += 1
        if self.target.tables > tables:
            assert self.server.content(self.target.end) == self.target.rows
        if part.end_lsn is not None and self.chance.random() < 0.3:
            self._durable = self.target.copy(), self._at
            self._progress = self._progress.durable(self.target.end)

    # The load.

    def load(self, steps: int) -> None:
        """Do some random steps of the load."""
        for _ in range(steps):
            self._load()

    def _load(self) -> None:
        server, chance = self.server, self.chance
        step = chance.randrange(10)
        if step < 2 and len(server.transactions) < 4:
            server.begin()
        elif server.transactions:
            running = chance.choice(server.transactions)
            if running.state == "committed":
                # Some wait long, for a synchronous standby.
                if chance.random() < (0.5 if running.xid % 4 else 0.03):
                    server.show(running)
            elif step < 7 and running.state == "running":
                self._write(running)
            elif step == 7 and running.state == "running":
                server.prepare(running)
            elif step >= 8 and chance.random() < (0.5 if running.state == "prepared" else 0.15):
                server.roll_back(running)
            else:
                server.commit(running)
                if chance.random() < 0.5:
                    server.show(running)

    def _write(self, running: Running) -> None:
        server, chance = self.server, self.chance
        others = [other for other in server.transactions if other is not running]
        if chance.random() < 0.01 and not self.readers:
            if not any(other.locks for other in others):
                server.truncate(running)
            return
        key, other, row = chance.randrange(KEYS), chance.randrange(KEYS), self._row()
        if server.locked(running, key):
            return
        seen = server.seen(running)
        if (old := seen.get(key)) is None:
            server.insert(running, key, row)
        elif chance.random() < 0.2:
            server.delete(running, key)
        else:
            if chance.random() < 0.8:
                row.toast = old.toast
            moves = chance.random() < 0.4 and other not in seen and not server.locked(running, other)
            server.update(running, key, other if moves else key, row)

    def _row(self) -> Row:
        self._serial += 1
        return Row(f"v{self._serial}", f"t{self._serial}", self.chance.choice((0, 0, 0, 1, 2, BLOCKS)))

    async def pause(self) -> None:
        """Let the load go on for some steps."""
        for _ in range(self.chance.choice((0, 0, 2, 12))):
            await asyncio.sleep(0)


class Connection:
    """The reader's connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._closed = False

    async def execute(self, _: str) -> None:
        """Set something."""

    async def fetch(self, *_: Any) -> list[tuple[bool]]:
        """Whether all updates are in the stream."""
        return [(self.world.all_updates,)]

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def terminate(self) -> None:
        """Close it."""
        self._closed = True


class Chunks:
    """Stands for FreshChunks."""

    def __init__(self, _source: object, _reader: object, control: Connection, _counters: object) -> None:
        self._world = control.world

    @contextlib.asynccontextmanager
    async def begun(self) -> AsyncIterator[Chunk]:
        """Begin a transaction."""
        await self._world.pause()
        chunk = Chunk(self._world, self._world.server.snapshot(), dict(self._world.server.rows))
        try:
            yield chunk
        finally:
            self._world.readers -= chunk.locks


@dataclass
class Chunk:
    """A transaction that reads one chunk."""

    world: World
    visible: VisibleXids
    rows: dict[int, Row]
    locks: bool = False
    time: int = 0

    async def copy(
        self, table: Any, state: str, chunk: Any, key: Any = (), owed: Any = (), where: str | None = None
    ) -> ChunkRows:
        """Read the rows that the statement selects."""
        conditions = [keys_condition(table.table, owed)] if owed else []
        statement = table.copy_statement(chunk, key, conditions if where is None else [*conditions, where])
        await self.world.pause()
        server = self.world.server
        while any(running.truncates for running in server.transactions):
            await asyncio.sleep(0)
        self.locks = True
        self.world.readers += 1
        self.world.sweeps += "age(xmin)" in statement
        if state != str(server.files):
            raise Altered("truncated")
        await self.world.pause()
        rows = {key: self.rows[key] for key in sorted(selected(statement, self.rows))}
        return chunk_of(rows, table, server.spool)


def selected(statement: str, rows: dict[int, Row]) -> set[int]:
    """Evaluate the conditions of a COPY command, and the publication's row filter."""
    first = re.search(r"ctid >= '\((\d+),0\)'", statement)
    end = re.search(r"ctid < '\((\d+),0\)'", statement)
    since = re.search(r"age\(xmin\) <= pg_catalog.age\('(\d+)'", statement)
    keys = re.search(r"IN \((.*?\))\)", statement)
    found = {key for key in rows if key < UNPUBLISHED}
    if first is not None:
        found = {key for key in found if rows[key].block >= int(first[1])}
    if end is not None:
        found = {key for key in found if rows[key].block < int(end[1])}
    if since is not None:
        found = {key for key in found if (rows[key].xid - int(since[1])) % 2**32 < 2**31}
    if keys is not None:
        found &= {int(key) for key in re.findall(r"E'(\d+)'", keys[1])}
    return found


def _no_slot() -> Any:
    raise AssertionError("a table with a key needs no temporary slot")


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    """Replace what the reader asks the server."""

    async def published(*_: object) -> list[Any]:
        return [TABLE]

    async def describe(*_: object, **__: object) -> dict[int, Any]:
        return {OID: described()}

    async def require_messages(_: Connection, slot: str) -> None:
        pass

    async def plan_tables(control: Connection, *_: object) -> tuple[TablePlan, ...]:
        world = control.world
        xmin, state = world.server.snapshot().xmin, str(world.server.files)
        await world.pause()
        return (TablePlan(OID, "public", "t", None, 0, world.ranges, (), state, xmin),)

    async def table_files(control: Connection, *_: object) -> TableFiles:
        await control.world.pause()
        return TableFiles(str(control.world.server.files), has_toast=True)

    async def wait_for_writers(control: Connection, *_: object) -> None:
        transactions = control.world.server.transactions
        writers = [running for running in transactions if running.locks]
        while any(running in transactions for running in writers):
            await asyncio.sleep(0)

    async def emit_watermark(control: Connection, watermark: Any) -> LSN:
        await control.world.pause()
        end = control.world.server.message(WATERMARK, watermark.content)
        await control.world.pause()
        return end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_source, "published_tables", published)
        patch.setattr(table, "describe", describe)
        patch.setattr(connections, "require_messages", require_messages)
        patch.setattr(table, "FreshChunks", Chunks)
        patch.setattr(window_reader, "_KEYS", 2)
        patch.setattr(window_reader, "plan_tables", plan_tables)
        patch.setattr(window_reader, "table_files", table_files)
        patch.setattr(window_reader, "wait_for_writers", wait_for_writers)
        patch.setattr(table_reading, "emit_watermark", emit_watermark)
        yield


FAULTS = {
    "none": Faults(),
    "kills": Faults(kill=0.05),
    "rewinds": Faults(rewind=0.03, retry=0.03),
    "all": Faults(kill=0.03, rewind=0.02, retry=0.02, full=0.3),
}


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    faults=st.sampled_from(["none", "none", "none", "kills", "rewinds", "all"]),
    deliver_prepared=st.booleans(),
    limit=st.sampled_from([1 << 20, 1 << 20, 1500]),
    whole=st.sampled_from([False, False, False, False, False, True]),
    all_updates=st.sampled_from([True, True, True, True, False]),
)
def test_the_sink_ends_like_the_table(
    tmp_path_factory, seed, faults, deliver_prepared, limit, whole, all_updates
):
    """When the table is complete, and later, the sink has its rows, as they are at that point of the stream."""
    server = Server(tmp_path_factory.getbasetemp(), deliver_prepared=deliver_prepared)
    world = World(
        server, random.Random(seed), FAULTS[faults], limit=limit, whole=whole, all_updates=all_updates
    )
    world.load(10)

    async def run() -> None:
        await world.read_table()
        world.load(10)
        await world.finish()

    asyncio.run(run())
    # After a snapshot, nobody has the large values of rows that were not published.
    lacking = {key for key, row in server.rows.items() if not row.sent}
    lacking &= {key for key, (_, toast) in world.target.rows.items() if toast is None}
    expected = {key: (v, None if key in lacking else toast) for key, (v, toast) in server.content().items()}
    assert expected == world.target.rows
    if faults == "none" and all_updates and limit == 1 << 20:
        # Rows that are owed are found by their keys.
        assert 0 == world.sweeps
    assert all_updates or whole or world.sweeps > 0
    assert world.target.tables == 1 or (world.target.tables > 1 and FAULTS[faults].full)


class Case:
    """A window over a table that is read by hand, whose stream is delivered at once."""

    def __init__(self, folder: Path, limit: int = 1 << 20) -> None:
        self.server = Server(folder)
        self.window = Window(OID, ("id",), limit)
        self.target = Target()
        self._at = 0

    def row(self, toast: str = "t", v: str = "v") -> Row:
        """A row that is in no particular block."""
        return Row(v, toast, 0)

    def update(self, key: int, new_key: int, *, v: str = "w", show: bool = True) -> Running:
        """Change a row without its large value, in a transaction that commits."""
        running = self.server.begin()
        self.server.update(running, key, new_key, self.row(self.server.rows[key].toast, v))
        self.server.commit(running)
        if show:
            self.server.show(running)
        self.deliver()
        return running

    def deliver(self) -> None:
        """Deliver the stream."""
        for part in self.server.stream[self._at :]:
            self.window.observe(part)
            self.target.apply(part)
        self._at = len(self.server.stream)

    def chunk(self, *keys: int, **how: Any) -> None:
        """Read rows, and deliver them."""
        rows = {key: self.server.rows[key] for key in keys if key in self.server.rows}
        chunk = chunk_of(rows, described(), self.server.spool)
        visible, end = self.server.snapshot(), self.server.message("x", "")
        verdict = self.window.judge(visible, chunk.relation)
        assert verdict.again is None
        self.window.delivered(verdict, **{"last": True, **how})
        for part in chunk.slices(Transaction(0, LSN(end - 1), 0), end, self.window, verdict):
            self.target.apply(part)
        self.window.prune(visible)
        self._at = len(self.server.stream)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A table with one row, which moved away from the range that was to have it."""
    case = Case(tmp_path)
    case.server.rows[1] = case.row()
    case.update(1, 1)
    case.chunk()
    return case


def owed(*keys: int) -> set[tuple[bytes, ...]]:
    """Rows as a window names them."""
    return {(str(key).encode(),) for key in keys}


def test_an_owed_row_gets_another_key_before_it_is_read(case):
    """It is owed by that key."""
    assert owed(1) == case.window.take_owed()
    case.update(1, 2)
    case.chunk(1, owed=frozenset(owed(1)))
    assert owed(2) == case.window.take_owed()
    case.chunk(2, owed=frozenset(owed(2)))
    assert set() == case.window.owed
    assert case.server.content() == case.target.rows


def test_an_owed_row_gets_another_key_while_it_is_read(case):
    """The row that was read has its large value, whichever key it has at that point."""
    assert owed(1) == case.window.take_owed()
    running = case.update(1, 2, show=False)
    case.chunk(1, owed=frozenset(owed(1)))
    assert {2: ("w", "t")} == case.target.rows
    case.server.show(running)
    assert owed(2) == case.window.owed


def test_an_owed_row_is_not_visible_under_its_key(case):
    """It is owed again, because the chunk has it under the key before, which was not asked for."""
    case.update(1, 2, show=False)
    case.window.take_owed()
    case.chunk(2, owed=frozenset(owed(2)))
    assert owed(2) == case.window.owed


def test_what_is_owed_after_the_ranges(case):
    """A row that the sinks have whole is not owed, however often it is changed."""
    case.window.take_owed()
    case.chunk(1, owed=frozenset(owed(1)))
    case.update(1, 1)
    assert set() == case.window.owed


def test_nothing_is_owed_after_a_chunk_with_all_rows(case):
    """A sweep has them, and the large values of rows that were changed since."""
    case.update(1, 3, show=False)
    case.chunk(1, everything=True)
    assert set() == case.window.owed
    assert {3: ("w", "t")} == case.target.rows


@pytest.mark.parametrize("how", [{"everything": True}, {"owed": frozenset(owed(1))}], ids=["all", "owed"])
def test_a_row_that_is_too_large_to_remember(tmp_path, how):
    """It is read again by its key, also if it was changed while it was read."""
    case = Case(tmp_path, limit=500)
    case.server.rows[1] = case.row()
    case.chunk()
    case.update(1, 1, v="w" * 500, show=False)
    case.chunk(1, **how)
    assert owed(1) == case.window.owed
    assert case.window.memory < 500


@pytest.mark.parametrize("show", [True, False], ids=["visible", "not visible"])
def test_a_row_that_was_not_published(tmp_path, show):
    """Its large value is in no message, so it is owed until a chunk has it."""
    case = Case(tmp_path)
    case.server.rows[UNPUBLISHED] = case.row()
    case.chunk()
    case.update(UNPUBLISHED, 1, show=show)
    assert {1: ("w", None)} == case.target.rows
    case.chunk(1, everything=True)
    assert (set() if show else owed(1)) == case.window.owed


@pytest.mark.parametrize("end", [Server.commit, Server.roll_back], ids=["commits", "is rolled back"])
def test_a_prepared_transaction_ends_while_a_chunk_is_read(tmp_path, end):
    """Its rows are overtaken if it commits, and not before."""
    case = Case(tmp_path)
    server = case.server
    server.rows[1] = case.row()
    running = server.begin()
    server.update(running, 1, 1, case.row(v="p"))
    server.prepare(running)
    case.deliver()
    visible, relation = server.snapshot(), described().layout.relation
    assert set() == case.window.judge(visible, relation).overtaken.keys
    end(server, running)
    case.deliver()
    overtaken = owed(1) if end is Server.commit else set()
    assert overtaken == case.window.judge(visible, relation).overtaken.keys


def test_a_truncate(case):
    """A chunk that was read before it is read again; one that was read after it is not, nor is one of another table."""
    visible, relation = case.server.snapshot(), described().layout.relation
    assert case.window.judge(visible, relation).again is None
    running = case.server.begin()
    case.server.truncate(running)
    case.server.commit(running)
    case.deliver()
    assert case.window.judge(visible, relation).again is not None
    other = Window(OID + 1, ("id",), 1000)
    for part in case.server.stream:
        other.observe(part)
    assert other.judge(visible, relation).again is None
    case.server.show(running)
    assert case.window.judge(case.server.snapshot(), relation).again is None


def test_the_memory_of_a_window(tmp_path):
    """Keys are forgotten once no chunk needs them: visible ones, those that were rolled back, and those that were taken."""
    case = Case(tmp_path)
    server = case.server
    server.rows |= {key: case.row() for key in range(3)}
    prepared = server.begin()
    for key, new_key in ((0, 0), (0, 5), (5, 5)):
        server.update(prepared, key, new_key, case.row(v="p"))
    server.prepare(prepared)
    case.update(1, 1)
    case.update(2, 6, show=False)
    assert case.window.memory > 5 * 200
    server.roll_back(prepared)
    for running in list(server.transactions):
        server.show(running)
    case.deliver()
    assert owed(0, 1, 5, 6) == case.window.take_owed()
    case.window.prune(server.snapshot())
    assert 0 == case.window.memory


def test_more_rows_than_a_window_remembers(tmp_path):
    """A transaction with too many keys counts as one that changed every row, and too many owed rows are not remembered."""
    case = Case(tmp_path, limit=900)
    case.server.rows |= {key: case.row() for key in range(5)}
    running = case.server.begin()
    for key in range(5):
        case.server.update(running, key, key, case.row())
    case.server.commit(running)
    case.deliver()
    relation = described().layout.relation
    assert case.window.judge(
        VisibleXids(running.xid, running.xid + 1, frozenset((running.xid,))), relation
    ).again
    assert case.window.take_owed() is None
    assert 0 == case.window.memory
    case.server.show(running)
    assert case.window.judge(case.server.snapshot(), relation).again is None
