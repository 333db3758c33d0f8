"""Chunks between watermarks: whatever commits meanwhile, and however late it is visible, the target ends like the source.

Rows of the simulated table are in blocks, and an update moves a row to another block. A row that a transaction has changed is
locked until the transaction is visible, or has rolled back.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.tuples import BINARY, TEXT, UNCHANGED
from aiorepl.snapshot.chunk_rows import ChunkRows
from aiorepl.snapshot.described import DescribedTable
from aiorepl.snapshot.merge import ChunkMerge
from aiorepl.snapshot.tables import PublishedColumn, PublishedTable
from aiorepl.snapshot.watermarks import Watermark
from aiorepl.snapshot.window import Verdict, Visibility, Window
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange, Truncate
from aiorepl.transactions.control_messages import WATERMARK
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.transaction import SnapshotChunk, Transaction
from aiorepl.values.registry import Types

OID, INT4, TEXT_OID = 7, 23, 25
BLOCKS = 3
FIRST_XID = 2**33 - 5  # without their epoch, the xids wrap around

COLUMNS = (
    PublishedColumn("id", INT4, -1, key=True),
    PublishedColumn("v", TEXT_OID, -1, key=False),
    PublishedColumn("toast", TEXT_OID, -1, key=False),
)
TABLE = PublishedTable(OID, "public", "t", COLUMNS, None, "d", partitioned=False, secured=False)


@dataclass
class Row:
    """A row's columns, the block that it is in, and the transaction that wrote it there."""

    v: str
    toast: str
    block: int
    xid: int = 0


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


class Server:
    """The server. ``rows`` is what a new snapshot sees."""

    def __init__(self, folder: Path, *, deliver_prepared: bool, slice_bytes: int = 1) -> None:
        self.rows: dict[int, Row] = {}
        self.transactions: list[Running] = []
        self.stream: list[Slice] = []
        self._next_xid = FIRST_XID
        self._lsn = 1000
        self._spool = Spool(folder)
        self._decoder = Decoder(Streaming.OFF)
        self._assembler = Assembler(
            Types(), deliver_prepared=deliver_prepared, spool=self._spool, slice_bytes=slice_bytes
        )
        self._feed(build.relation(oid=OID, name="t", columns=[
            build.column("id", INT4, key=True), build.column("v"), build.column("toast")
        ]))  # fmt: skip

    def begin(self) -> Running:
        """Begin a transaction; it has an xid at once."""
        running = Running(self._next_xid)
        self._next_xid += 1
        self.transactions.append(running)
        return running

    def seen(self, running: Running) -> dict[int, Row]:
        """Return the rows that a transaction sees, with its own changes."""
        rows = {} if running.truncates else dict(self.rows)
        for key, row in running.writes.items():
            rows.pop(key, None)
            if row is not None:
                rows[key] = row
        return rows

    def locked(self, running: Running, key: int) -> bool:
        """Whether another transaction has changed the row, or truncates the table."""
        others = (other for other in self.transactions if other is not running)
        return any(other.truncates or key in other.writes for other in others)

    def write(self, running: Running, key: int, row: Row | None, message: bytes) -> None:
        """Change a row in a transaction."""
        running.writes[key] = row
        if row is not None:
            row.xid = running.xid
        running.messages.append(message)

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

    def show(self, running: Running) -> None:
        """Make a committed transaction visible, and release its locks."""
        self.rows = self.seen(running)
        self.transactions.remove(running)

    def roll_back(self, running: Running) -> None:
        """Roll a transaction back, prepared or not."""
        if running.state == "prepared":
            lsn = self._advance()
            names = {"prepare_end_lsn": running.prepare_lsn + 8, "rollback_end_lsn": lsn}
            self._feed(build.rollback_prepared(**names, xid=running.xid % 2**32, gid=running.gid))
        self.transactions.remove(running)

    def snapshot(self) -> Visibility:
        """Take a snapshot."""
        running = frozenset(transaction.xid for transaction in self.transactions)
        return Visibility(min(running, default=self._next_xid), self._next_xid, running)

    def message(self, prefix: str, content: str) -> LSN:
        """Write a logical message."""
        lsn = self._advance()
        self._feed(build.message(transactional=False, lsn=lsn, prefix=prefix, content=content.encode()))
        return LSN(lsn)

    def read(self, described: DescribedTable, rows: dict[int, Row]) -> ChunkRows:
        """Return rows as a chunk."""
        chunk = ChunkRows(described, self._spool, 600)
        for key, row in rows.items():
            fields = (struct.pack(">i", key), row.v.encode(), row.toast.encode())
            data = b"".join(struct.pack(">i", len(each)) + each for each in fields)
            chunk.add(struct.pack(">h", 3) + data, 1)
        return chunk

    def _advance(self) -> int:
        self._lsn += 100
        return self._lsn

    def _feed(self, *payloads: bytes) -> None:
        # One message at a time, so that a transaction has several slices.
        for payload in payloads:
            self.stream += self._assembler.feed([self._decoder.decode(payload)])


class Target:
    """A sink: rows by key; a column that never arrived is ``None``."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, str | None]] = {}
        self.reads = 0
        self.last_of_table = 0
        self._prepared: dict[int, list[Any]] = {}
        self._end = LSN(0)

    def apply(self, part: Slice) -> None:
        """Apply a slice."""
        header = part.transaction
        if part.end_lsn is not None:
            assert part.end_lsn >= self._end
            self._end = part.end_lsn
        if header is None:
            assert not part.changes
            return
        if header.prepared:
            if isinstance(part.two_phase, m.RollbackPrepared):
                self._prepared.pop(header.xid, None)
            elif isinstance(part.two_phase, m.CommitPrepared):
                for change in self._prepared.pop(header.xid, []):
                    self._change(change)
            else:
                self._prepared.setdefault(header.xid, []).extend(part.changes)
            return
        for change in part.changes:
            self._change(change)
        if header.snapshot is not None and part.end_lsn is not None:
            self.last_of_table += header.snapshot.last_of_table

    def _change(self, change: Any) -> None:
        if isinstance(change, Truncate):
            self.rows.clear()
            return
        assert isinstance(change, RowChange)
        if change.kind == "delete":
            self.rows.pop(change.key["id"], None)
            return
        self.reads += change.kind == "read"
        new = change.new
        old_key = change.key["id"]
        base = self.rows.pop(old_key, ("", None)) if change.kind == "update" else ("", None)
        toast = base[1] if new["toast"] is UNCHANGED else new["toast"]
        self.rows[new["id"]] = new["v"], toast


def described() -> DescribedTable:
    """The table, as a reader describes it."""
    relation = Decoder().decode(TABLE.relation)
    layout = Layout(relation, Types(), binary=True)
    return DescribedTable(TABLE, layout, bytes([BINARY, TEXT, TEXT]), ())


def new_window(limit: int = 1 << 20) -> Window:
    """The window of the table."""
    return Window(OID, ("id",), limit)


def chunk_header(end: LSN, snapshot: Any = None) -> Transaction:
    """The header of a chunk that ends at ``end``."""
    return Transaction(0, LSN(end - 1), 0, snapshot=snapshot)


class Run:
    """A server under load, and one table that is read from it.

    :param kills: how likely the process ends after a chunk, so that another one goes on with what the ledger has.
    """

    def __init__(
        self, folder, chance: random.Random, *, deliver_prepared: bool, limit: int, kills: float
    ) -> None:
        self.limit = limit
        self.kills = kills
        self.lives = 0
        self._complete = False
        self.chance = chance
        self.server = Server(folder, deliver_prepared=deliver_prepared)
        self.target = Target()
        self.merge = ChunkMerge("s")
        self.described = described()
        self.truncated = 0
        self.may_truncate = True
        self._serial = 0
        for key in range(8):
            self.server.rows[key] = self._row()

    def _row(self) -> Row:
        self._serial += 1
        return Row(f"v{self._serial}", f"t{self._serial}", self.chance.randrange(BLOCKS))

    # The load.

    def load(self) -> None:
        """Do one random step of the load."""
        server, chance = self.server, self.chance
        step = chance.randrange(10)
        if step < 2 and len(server.transactions) < 4:
            server.begin()
        elif server.transactions:
            running = chance.choice(server.transactions)
            if running.state == "committed":
                self._show(running)
            elif step < 7 and running.state == "running":
                self._write(running)
            elif step == 7 and running.state == "running":
                server.prepare(running)
            elif step == 8 and chance.random() < 0.3:
                server.roll_back(running)
            else:
                server.commit(running)
                if chance.random() < 0.5:
                    self._show(running)
        if chance.random() < 0.7:
            self.deliver(1)

    def _show(self, running: Running) -> None:
        self.truncated += running.truncates
        self.server.show(running)

    def _write(self, running: Running) -> None:
        server, chance = self.server, self.chance
        if self.may_truncate and chance.random() < 0.03 and len(server.transactions) == 1:
            running.truncates = True
            running.writes.clear()
            running.messages.append(build.truncate(relations=[OID]))
            return
        key = chance.randrange(12)
        if server.locked(running, key):
            return
        old = server.seen(running).get(key)
        row = self._row()
        if old is None:
            server.write(running, key, row, build.insert(relation=OID, new=[str(key), row.v, row.toast]))
        elif chance.random() < 0.2:
            server.write(running, key, None, build.delete(relation=OID, old=[str(key), None, None]))
        else:
            partial = chance.random() < 0.7
            row.toast = old.toast if partial else row.toast
            toast = UNCHANGED if partial else row.toast
            other = chance.randrange(12)
            if (
                chance.random() < 0.2
                and not server.locked(running, other)
                and other not in server.seen(running)
            ):
                old_key = [str(key), None, None]
                message = build.update(relation=OID, new=[str(other), row.v, toast], old=old_key)
                server.write(running, key, None, message)
                running.writes[other] = row
                row.xid = running.xid
            else:
                server.write(running, key, row, build.update(relation=OID, new=[str(key), row.v, toast]))

    def deliver(self, count: int) -> None:
        """Pass slices of the stream to the target."""
        part, self.server.stream = self.server.stream[:count], self.server.stream[count:]
        for each in self.merge.take(part):
            self.target.apply(each)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the load go on until something is so."""
        while not condition():
            self.load()
            self.deliver(1)

    def some_load(self) -> None:
        for _ in range(self.chance.randrange(20)):
            self.load()

    # The reader.

    def read_table(self) -> None:
        """Read the table as ``TableReader`` does, with the ledger in ``left`` and ``sweep``."""
        left: list[int] = []
        plan, xmin, number, sweep = -1, 0, 0, False
        while plan < 0 or left or sweep:
            self.lives += 1
            self._open_window()
            if plan != self.truncated:
                left, plan, sweep = list(range(BLOCKS)), self.truncated, False
                xmin = self.server.snapshot().xmin
            by_key = len(left) == BLOCKS
            sweep = sweep or not by_key
            while left or sweep:
                number += 1
                self._lock()
                if plan != self.truncated:
                    break
                if left:
                    block, last = left[0], len(left) == 1 and not sweep
                    if self._read(number, lambda row, block=block: row.block == block, last=last):
                        left.pop(0)
                        sweep = sweep or (last and not self._complete)
                elif by_key and (owed := self.window.take_owed()):
                    self._read_keys(number, frozenset(owed))
                    sweep = not self._complete
                elif self._read(number, lambda row, xmin=xmin: row.xid >= xmin, last=True, everything=True):
                    by_key, sweep = True, not self._complete
                if self.chance.random() < self.kills:
                    break
            self.merge.window = None

    def _lock(self) -> None:
        """Wait for a truncate, and keep others from it until the next watermark is written."""
        self.may_truncate = False
        self.until(lambda: not any(each.truncates for each in self.server.transactions))

    def _read_keys(self, number: int, keys: frozenset[tuple[bytes, ...]]) -> None:
        found = {int(key[0]) for key in keys}
        while not self._read(number, found.__contains__, last=True, owed=keys):
            self._lock()

    def _open_window(self) -> None:
        self.window = new_window(self.limit)

        def begin(_: LSN) -> tuple[Slice, ...]:
            self.merge.window = self.window
            return ()

        self._mark(begin)
        writing = [each for each in self.server.transactions if each.writes or each.truncates]
        self.until(lambda: not any(each in self.server.transactions for each in writing))

    def _mark(self, arrive) -> None:
        arrived = []

        def take(end):
            arrived.append(end)
            return arrive(end)

        watermark = Watermark("s")
        written = self.merge.expect(watermark, take, lambda: pytest.fail("the watermark is lost"))
        self.some_load()
        written(self.server.message(WATERMARK, watermark.content))
        self.may_truncate = True
        self.until(lambda: bool(arrived))

    def _read(self, number, condition, *, last, everything=False, owed=frozenset()) -> bool:
        visible = self.server.snapshot()
        rows = {key: row for key, row in self.server.rows.items() if condition(key if owed else row)}
        chunk = self.server.read(self.described, rows)
        outcome: list[Verdict] = []

        def arrive(end: LSN) -> list[Slice]:
            verdict = self.window.judge(visible, chunk.relation)
            outcome.append(verdict)
            if verdict.again is not None:
                self.window.prune(visible)
                return []
            self.window.delivered(verdict, last=last, everything=everything, owed=owed)
            self._complete = final = last and self.window.owed == set()
            header = SnapshotChunk(end, OID, "public", "t", number, last_of_table=final)
            slices = chunk.slices(chunk_header(end, header), end, self.window, verdict)
            self.window.prune(visible)
            return slices

        self._mark(arrive)
        return outcome[0].again is None

    def finish(self) -> None:
        """End all transactions, and deliver the rest of the stream."""
        while self.server.transactions:
            running = self.server.transactions[0]
            if running.state != "committed":
                self.server.commit(running)
            self._show(running)
        self.deliver(len(self.server.stream))


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    deliver_prepared=st.booleans(),
    limit=st.sampled_from([1 << 20, 1500]),
    kills=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_target_ends_like_the_source(tmp_path_factory, seed, deliver_prepared, limit, kills):
    """Rows, columns and keys are those of the source, and the table is complete exactly once, also if its reader is killed."""
    folder = tmp_path_factory.getbasetemp()
    run = Run(folder, random.Random(seed), deliver_prepared=deliver_prepared, limit=limit, kills=kills)
    for _ in range(10):
        run.load()
    run.read_table()
    run.some_load()
    run.finish()
    assert {key: (row.v, row.toast) for key, row in run.server.rows.items()} == run.target.rows
    assert 1 == run.target.last_of_table
    if limit > 1500:
        # One for each range, and one for the sweep.
        assert run.lives <= (1 + run.truncated) * (BLOCKS + 1)
    assert run.window.memory >= 0


@pytest.mark.parametrize(
    ("xid", "seen"),
    [(90, True), (100, True), (101, False), (102, True), (110, False), (111, False)],
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_visibility(xid, seen, epoch):
    """A transaction is visible if it ended before the snapshot; the epoch of the stream's xids is the nearest one."""
    base = epoch << 32
    snapshot = Visibility.parse(f"{base + 101}:{base + 110}:{base + 101},{base + 105}")
    assert seen == snapshot.sees(xid)


def test_visibility_around_a_wrap():
    """An xid from before the wraparound is old, one from after it new."""
    snapshot = Visibility.parse(f"{2**32 - 2}:{2**32 + 5}:{2**32 - 2},{2**32 + 3}")
    assert [True, False, True, False, False] == [
        snapshot.sees(xid) for xid in (2**32 - 3, 2**32 - 2, 2**32 - 1, 3, 5)
    ]


def test_a_key_that_cannot_be_decoded(tmp_path):
    """It does not end the stream: any row may have been changed, and the last chunk has all that were."""
    # An array of a text that is not UTF-8, as a SQL_ASCII database may have.
    key = build.Binary(struct.pack(">iiIiii", 1, 0, 25, 1, 1, 1) + b"\xe9")
    decoder, assembler = Decoder(Streaming.OFF), Assembler(Types(), binary=True, spool=Spool(tmp_path))
    payloads = [
        build.relation(oid=OID, name="t", columns=[build.column("id", 1009, key=True)]),
        build.begin(final_lsn=1000, xid=7),
        build.insert(relation=OID, new=[key]),
        build.commit(commit_lsn=1000, end_lsn=1008),
    ]
    window = Window(OID, ("id",), 1000)
    slices = assembler.feed([decoder.decode(payload) for payload in payloads])
    for part in slices:
        window.observe(part)
    (change,) = slices[0].changes
    before, after = Visibility.parse("5:5:"), Visibility.parse("8:8:")
    assert window.judge(before, change.layout.relation).again is not None
    assert window.take_owed() is None
    window.prune(after)
    assert window.judge(after, change.layout.relation).again is None
