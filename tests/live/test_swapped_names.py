"""Two tables swap their names while their snapshot is deferred or in progress: hidden values stay hidden, and rows keep their table's oid."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg
import pytest

from aiorepl import AioreplError, BatchPolicy, Delivery, Pipeline, Selection, SnapshotOptions
from aiorepl.snapshot.chunk_reader import ChunkReader
from aiorepl.snapshot.incremental.fresh_chunks import FreshTransaction
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

SECRET, PLAIN = "ada@example", "plain"
ROWS = 300
CREATE = (
    "CREATE TABLE a (id int PRIMARY KEY, note text)",
    "CREATE TABLE b (id int PRIMARY KEY, note text)",
    f"INSERT INTO a SELECT i, '{SECRET}' || i || repeat('x', 50) FROM generate_series(1, {ROWS}) i",
    f"INSERT INTO b SELECT i, '{PLAIN}' || i || repeat('x', 50) FROM generate_series(1, {ROWS}) i",
    "ANALYZE",
)
SWAP = ("ALTER TABLE a RENAME TO t", "ALTER TABLE b RENAME TO a", "ALTER TABLE t RENAME TO b")
STREAM = (
    "UPDATE a SET note = (SELECT left(note, 5) FROM a WHERE id = 2) || 'updated' WHERE id = 1",
    "UPDATE b SET note = (SELECT left(note, 5) FROM b WHERE id = 2) || 'updated' WHERE id = 1",
)
SINKS = {
    "masked": Selection(mask=("public.a.note?",), secret="s"),
    "dropped": Selection(drop=("public.a.note?",)),
    "narrow": Selection(tables=("public.b",)),
    "excluding": Selection(tables=("!public.a",)),
}


class Swapped:
    """Swaps the names once, on its own connection.

    :param together: whether one transaction renames both tables.
    """

    def __init__(self, published: Any, *, together: bool) -> None:
        self._published = published
        self._together = together
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to swap the names. The swap may wait for the lock of a chunk."""
        if self.task is None:
            self.task = asyncio.create_task(self._swap())

    async def done(self) -> None:
        """Wait until the names are swapped."""
        self.begin()
        assert self.task is not None
        await self.task

    async def _swap(self) -> None:
        connection = await asyncpg.connect(self._published.dsn)
        try:
            for statement in ["; ".join(SWAP)] if self._together else SWAP:
                await connection.execute(statement)
        finally:
            connection.terminate()


def pipeline(
    published: Any, sinks: dict[str, MemorySink], folder: Any, *, journal: bool, **options: Any
) -> Pipeline:
    place = {"journal": folder / "journal"} if journal else {"state_dir": folder / "state"}
    return Pipeline(
        published.source(),
        {name: Delivery(sink, selection=SINKS[name]) for name, sink in sinks.items()},
        snapshot=SnapshotOptions(chunk_bytes=8192),
        batches=BatchPolicy(flush_seconds=0.02),
        **place,
        **options,
    )


def verify(sinks: dict[str, MemorySink], oids: dict[str, int]) -> None:
    """Check that each value has its table's oid, and that no sink has values of ``a`` that its selection hides."""
    for name, sink in sinks.items():
        for change in sink.changes:
            for row in (getattr(change, "new", None), getattr(change, "old", None)):
                note = None if row is None else row.get("note")
                if not isinstance(note, str) or not note.startswith((SECRET[:5], PLAIN)):
                    continue
                secret = note.startswith(SECRET[:5])
                assert not (secret and name in ("masked", "dropped")), (name, change)
                assert oids["a" if secret else "b"] == change.relation.oid, (name, change)
                if name == "narrow":
                    assert change.table == "b", change
                if name == "excluding":
                    assert change.table != "a", change


async def verify_restarts(
    published: Any, sinks: dict[str, MemorySink], folder: Any, oids: dict[str, int], *, journal: bool
) -> None:
    """Change rows, and start the pipeline twice: each start is refused, or the values stay hidden."""
    await published.execute(*STREAM)
    for _ in range(2):
        with contextlib.suppress(AioreplError):
            async with asyncio.timeout(60):
                await pipeline(published, sinks, folder, journal=journal, until="now").run()
        verify(sinks, oids)


async def create_tables(published: Any) -> dict[str, int]:
    await published.execute(*CREATE)
    return {
        name: await published.connection.fetchval("SELECT $1::regclass::oid", name) for name in ("a", "b")
    }


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("requested", [("a", "b"), ("b", "a")], ids="-".join)
async def test_while_deferred(published, tmp_path, journal, together, requested):
    """Both tables are requested, the snapshots are paused, the names are swapped, and the snapshots are resumed."""
    oids = await create_tables(published)
    sinks = {name: MemorySink() for name in SINKS}
    running = pipeline(published, sinks, tmp_path, journal=journal)
    with contextlib.suppress(AioreplError):
        async with running, asyncio.timeout(60):
            await running.snapshots.completed()
            await running.snapshots.pause()
            asked = [asyncio.create_task(running.resnapshot(f"public.{name}")) for name in requested]
            await until(
                lambda: running.statistics().snapshot,
                lambda found: (
                    found is not None and sum(each.state != "complete" for each in found.tables) >= 2
                ),
            )
            await Swapped(published, together=together).done()
            await running.snapshots.resume()
            await asyncio.wait(asked, timeout=60)
            await published.execute(*STREAM)
    await asyncio.gather(*asked, return_exceptions=True)
    verify(sinks, oids)
    await verify_restarts(published, sinks, tmp_path, oids, journal=journal)


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("initial", [False, True], ids=["beside", "initial"])
async def test_in_progress(published, tmp_path, monkeypatch, journal, chunk, initial):
    """The names are swapped while the snapshot reads a chunk."""
    oids = await create_tables(published)
    sinks = {name: MemorySink() for name in SINKS}
    swapped, number, active = Swapped(published, together=True), 0, initial
    kind, name = (ChunkReader, "open") if initial else (FreshTransaction, "copy")
    read = getattr(kind, name)

    async def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal number
        number += active
        if active and number == chunk:
            swapped.begin()
            # The swap may have to wait, because the snapshot locks the table of the chunk.
            await asyncio.wait([swapped.task], timeout=0.2)
        return await read(*arguments, **options)

    monkeypatch.setattr(kind, name, watched)
    running = pipeline(published, sinks, tmp_path, journal=journal)
    with contextlib.suppress(AioreplError, TimeoutError):
        async with running, asyncio.timeout(30):
            await running.snapshots.completed()
            if not initial:
                active = True
                again = [asyncio.create_task(running.resnapshot(f"public.{table}")) for table in oids]
                await asyncio.gather(*again, return_exceptions=True)
            await swapped.done()
            await published.execute(*STREAM)
    await swapped.done()
    assert number >= chunk
    verify(sinks, oids)
    await verify_restarts(published, sinks, tmp_path, oids, journal=journal)
