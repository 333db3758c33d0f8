"""The tables that wait to be read, whose turn it is, and the calls that wait for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aiorepl.cancellation import cancel_and_wait
from aiorepl.errors import ConnectionLost, PermanentError, TransientError
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy
from aiorepl.snapshot.chunks import TablePlan
from aiorepl.snapshot.incremental import table_turns
from aiorepl.snapshot.incremental.completion import Completion
from aiorepl.snapshot.incremental.table_queue import TableQueue
from aiorepl.snapshot.incremental.table_turns import TableTurns
from aiorepl.snapshot.ledger import store as ledger_store
from aiorepl.snapshot.ledger.ledger import ChunkLedger, TableProgress
from aiorepl.snapshot.ledger.store import MemoryLedger
from aiorepl.snapshot.tables import PublishedTable

EMPTY = ChunkLedger(Position("s", "1", 1, ZERO))
A, B, C = ("public", "a"), ("public", "b"), ("public", "c")


class Failing(MemoryLedger):
    """A ledger whose next writes fail."""

    def __init__(self, ledger: ChunkLedger) -> None:
        super().__init__(ledger)
        self.errors: list[Exception] = []

    async def update(self, change: Any) -> ChunkLedger:
        if self.errors:
            raise self.errors.pop(0)
        return await super().update(change)


def delivered(table: TableProgress) -> TableProgress:
    """The table was read as one chunk."""
    plan = TablePlan(table.oid, table.schema, table.name, None, 0, (None,))
    return table.planned(plan).with_chunk(1, LSN(100))


@pytest.fixture
def store() -> Failing:
    """A ledger with three tables."""
    return Failing(EMPTY.with_tables([(1, *A), (2, *B), (3, *C)]))


@pytest.fixture
def queue(store) -> TableQueue:
    """The queue of the three."""
    queue = TableQueue(lambda: None)
    queue.begin(store)
    return queue


def states(queue: TableQueue) -> list[str]:
    """The states of its tables."""
    return [table.state for table in queue.statistics()]


async def test_names(queue):
    """A name that waits is not queued again, unless other rows are wanted or it was begun."""
    assert {4} == await queue.add([C, ("public", "d"), C], None) - {3}
    assert {5} == await queue.add([A], "x = 1")
    queue.counters[1].state = "reading"
    assert {6} == await queue.add([A], None, LSN(7))
    assert (6, LSN(7)) == (queue.ledger.last_id, queue.ledger.signal_lsn)
    assert {7} == await queue.add([B], None, replaces=True)
    assert queue.ledger.table(7).replaces
    await queue.replace([queue.ledger.table(7)], {B: [SimpleNamespace(oid=9, schema="public", name="b1")]})
    assert (9, True) == (queue.ledger.table(8).oid, queue.ledger.table(8).replaces)


async def test_completion(queue):
    """A call ends once all its tables are complete, and with the error of the first one that is not."""
    both, one = queue.completion.wait_for({1, 2}), queue.completion.wait_for({2, 3})
    for table in queue.left[:2]:
        await queue.update(table, delivered)
        queue.counters[table.id].state = "delivered"
    await queue.complete(LSN(100))
    assert ["delivered", "delivered", "queued"] == states(queue)
    await queue.complete(LSN(101))
    assert both.done()
    assert not one.done()
    await queue.fail(queue.left[0], PermanentError("no"))
    with pytest.raises(PermanentError, match="no"):
        await one
    assert ["complete", "complete", "failed"] == states(queue)
    assert queue.settled.is_set()


async def test_ended():
    """Calls that wait when nothing is read any more get that error."""
    completion = Completion()
    waiting = completion.wait_for({1})
    completion.replace(1, {2, 3})
    completion.end(TransientError("over"))
    with pytest.raises(TransientError, match="over"):
        await waiting


async def test_a_full_disk(queue, store, monkeypatch):
    """A write of the ledger is repeated; that of a chunk is tried once, because the stream waits, and ends with a second writer."""
    monkeypatch.setattr(ledger_store, "_FIRST_PAUSE", 0.0)
    store.errors = [TransientError("full"), TransientError("full")]
    await queue.update(queue.left[0], delivered)
    table = queue.left[0]
    store.errors = [TransientError("full")]
    assert not await queue.record(table, delivered, ZERO)
    assert await queue.record(table, delivered, ZERO)
    store.errors = [PermanentError("another writer", fatal=True)]
    with pytest.raises(PermanentError, match="another writer"):
        await queue.record(table, delivered, ZERO)
    assert 1 == len(queue.left)


async def test_cancelled_while_it_is_looked_up(queue, monkeypatch):
    """A name that is cancelled and requested again while it is looked up is looked up again, and then read once."""
    found = PublishedTable(9, *A, (), None, "d", partitioned=False, secured=False)
    read: list[str] = []
    done = asyncio.Event()

    async def look_up(connection, publications, names):
        if 4 in queue.counters:
            # The state comes first, as ``Snapshots.cancel`` sets it.
            queue.counters[4].state = "cancelled"
            await queue.cancel(queue.ledger.table(4))
            assert {5} == await queue.add([A], None)
        return {name: [found] for name in names}

    async def read_table(source, connections, progress, update, *rest: Any) -> None:
        read.append(str(progress))
        await update(delivered)
        done.set()

    async def connect() -> Any:
        return SimpleNamespace(terminate=lambda: None)

    for table in queue.left:
        await queue.cancel(table)
    assert {4} == await queue.add([A], None)
    monkeypatch.setattr(table_turns, "look_up", look_up)
    monkeypatch.setattr(table_turns, "read_table", read_table)
    source = SimpleNamespace(publications=("p",), connect=connect)
    turns = TableTurns(queue, None, source, lambda: ZERO, lambda: None)
    turns.pause(False)
    running = asyncio.create_task(turns.run())
    try:
        await done.wait()
    finally:
        await cancel_and_wait(running)
    assert ["public.a"] == read
    assert [6] == [table.id for table in queue.ledger.tables]


async def test_a_ledger_that_cannot_be_written(queue, store, monkeypatch):
    """An error of the ledger that will not pass ends the reading; no table has failed, so the next start reads them."""

    async def read_table(source, connections, progress, update, *rest: Any) -> None:
        store.errors = [PermanentError("Input/output error", fatal=True)]
        await update(delivered)

    monkeypatch.setattr(table_turns, "read_table", read_table)
    turns = TableTurns(queue, RetryPolicy(), SimpleNamespace(), lambda: ZERO, lambda: None)
    turns.pause(False)
    with pytest.raises(PermanentError, match="Input/output error"):
        await asyncio.wait_for(turns.run(), 60)
    assert [A, B, C] == [(table.schema, table.name) for table in queue.ledger.unfinished]


async def test_turns(queue, monkeypatch):
    """A table whose reading fails again and again lets the others go first, and is read in the end."""
    attempts: list[str] = []
    left = {"public.a": 6}
    complete = asyncio.Event()

    async def read(source, connections, progress, update, *rest: Any) -> None:
        attempts.append(str(progress))
        if left.get(str(progress)):
            left[str(progress)] -= 1
            raise ConnectionLost("lost")
        await update(delivered)

    def look() -> None:
        if not queue.left:
            complete.set()

    monkeypatch.setattr(table_turns, "read_table", read)
    retry = RetryPolicy(wait_initial=0.0, wait_max=0.0)
    turns = TableTurns(queue, retry, SimpleNamespace(publications=("p",)), lambda: ZERO, look)
    turns.pause(False)
    running = asyncio.create_task(turns.run())
    try:
        await complete.wait()
    finally:
        await cancel_and_wait(running)
    assert ["public.a"] * 4 == attempts[:4]
    assert 7 == attempts.count("public.a")
    assert {"delivered"} == set(states(queue))


class Noting(MemoryLedger):
    """A ledger that notes how it is changed."""

    def __init__(self, ledger: ChunkLedger) -> None:
        super().__init__(ledger)
        self.deferred: list[bool] = []

    async def update(self, change: Any) -> ChunkLedger:
        self.deferred.append(False)
        return await super().update(change)

    async def defer(self, change: Any) -> ChunkLedger:
        self.deferred.append(True)
        return await MemoryLedger.update(self, change)


@pytest.mark.parametrize(
    ("ranges", "where", "expected"),
    [(1, None, [True, True, True]), (2, None, [False, False, False]), (1, "id > 1", [False, False, False])],
    ids=["one chunk", "chunks", "condition"],
)
async def test_which_changes_are_deferred(ranges, where, expected):
    """A change is deferred only if the journal's record of a complete table can replace it."""
    store = Noting(EMPTY.with_tables([(1, *A)], where))
    queue = TableQueue(lambda: None)
    queue.begin(store)
    (table,) = store.ledger.tables
    plan = TablePlan(1, *A, None, 0, (None,) * ranges)
    await queue.update(table, lambda known: known.planned(plan))
    assert await queue.record(table, lambda known: known.with_chunk(1, LSN(100)), ZERO)
    await queue.update(table, lambda known: known.durable(LSN(50)).with_chunk(1, LSN(100)))
    assert expected == store.deferred


async def test_two_requests_of_a_table_are_not_deferred():
    """A journal knows the last complete reading of a table only: after a crash, the earlier one would follow again."""
    store = Noting(EMPTY.with_tables([(1, *A)]).with_tables([(1, *A)], replaces=True))
    queue = TableQueue(lambda: None)
    queue.begin(store)
    plan = TablePlan(1, *A, None, 0, (None,))
    for table in store.ledger.tables:
        await queue.update(table, lambda known: known.planned(plan))
        assert await queue.record(table, lambda known: known.with_chunk(1, LSN(100)), ZERO)
    assert [False] * 4 == store.deferred
