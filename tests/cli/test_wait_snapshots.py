"""``wait`` does not end before the sinks have the rows of the tables that are read while it waits."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import LSN, Pipeline, SnapshotOptions, Source
from aiorepl.cancellation import cancel_and_wait
from aiorepl.cli.pipeline_file import load
from aiorepl.cli.wait import arrival_of
from aiorepl.journal.cursors import Cursors
from aiorepl.pipeline.arrival import Arrival
from aiorepl.storage.opening import open_store
from aiorepl.testing.faults import MemorySink
from tests.cli.gate import Gate
from tests.waiting import until

pytestmark = pytest.mark.by_day


async def test_a_table_that_is_read_while_the_stream_runs(published, tmp_path):
    """The rows of the table come after the LSN: a sink that has everything up to the LSN does not have them yet."""
    await published.execute("CREATE TABLE others (id int PRIMARY KEY)", "INSERT INTO others VALUES (1)")
    source = Source(published.dsn, slot=published.slot, publication="p", create_slot=True)
    sink, journal = Gate(1), open_store(tmp_path / "journal")
    async with Pipeline(source, {"gated": sink.delivery}, journal=journal) as pipeline:
        await pipeline.started()
        await pipeline.snapshots.pause()
        await pipeline.snapshots.add("others")
        arrival = Arrival(source, journal, journal, ["gated"])
        waiting = asyncio.create_task(arrival.wait(None))
        await until(lambda: "still reads public.others" in arrival.waiting_for)
        lsn = LSN.parse(await published.connection.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
        await published.execute("INSERT INTO items VALUES (1)")
        cursors = Cursors(journal)
        await until(lambda: cursors.read("gated").position.lsn > lsn)
        await pipeline.snapshots.resume()
        await until(lambda: sink.allowed < 0)
        await until(lambda: waiting.done() or arrival.waiting_for.startswith("sink gated has everything"))
        assert not waiting.done()
        sink.gate.set()
        async with asyncio.timeout(60):
            await waiting
        assert [("items", 1), ("others", 1)] == [(change.table, change.new["id"]) for change in sink.changes]


@pytest.mark.parametrize("journaled", [False, True])
async def test_a_wait_that_begins_before_the_pipeline(published, tmp_path, journaled):
    """The new slot begins after the LSN, and no sink has the rows of the tables yet."""
    await published.execute("INSERT INTO items VALUES (1)")
    source = Source(published.dsn, slot=published.slot, publication="p", create_slot=True)
    sink, store = Gate(0), open_store(tmp_path / "state")
    arrival = Arrival(source, store if journaled else None, store, ["gated"])
    waiting = asyncio.create_task(arrival.wait(None))
    await until(lambda: "does not exist yet" in arrival.waiting_for)
    options = (
        {"journal": store, "snapshot": True}
        if journaled
        else {"snapshot": SnapshotOptions(state=str(tmp_path / "state"))}
    )
    async with Pipeline(source, {"gated": sink.delivery}, **options):
        await until(lambda: sink.allowed < 0)
        await until(lambda: waiting.done() or "does not exist yet" not in arrival.waiting_for)
        await asyncio.wait([waiting], timeout=2.0)
        assert not waiting.done(), arrival.waiting_for
        sink.gate.set()
        async with asyncio.timeout(60):
            await waiting
        assert [1] == [change.new["id"] for change in sink.changes]


async def test_state_dir(published, tmp_path):
    """Without a journal, tables that are read again are recorded in ``state_dir``."""
    (tmp_path / "pipeline.toml").write_text(
        f"""
[source]
dsn = "{published.dsn}"
slot = "{published.slot}"
publication = "p"

[pipeline]
state_dir = "{tmp_path}/state"

[[sinks]]
type = "stdout"
"""
    )
    await published.create_slot()
    source = Source(published.dsn, slot=published.slot, publication="p")
    sink = MemorySink()
    async with Pipeline(source, [sink], state_dir=tmp_path / "state") as pipeline:
        await pipeline.started()
        await pipeline.snapshots.pause()
        await pipeline.snapshots.add("items")
        arrival = arrival_of(tmp_path / "pipeline.toml", load(tmp_path / "pipeline.toml"), ())
        waiting = asyncio.create_task(arrival.wait(None))
        await until(lambda: waiting.done() or "still reads public.items" in arrival.waiting_for)
        assert not waiting.done()
        await cancel_and_wait(waiting)
