"""``wait``: it ends once the sinks of a running pipeline have everything up to an LSN, and never before."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import LSN, Pipeline, Source
from aiorepl.cancellation import cancel_and_wait
from aiorepl.pipeline import arrival
from aiorepl.pipeline.arrival import Arrival, NotReached
from aiorepl.storage.opening import open_store
from aiorepl.testing import MemorySink
from tests.cli.gate import Gate

pytestmark = pytest.mark.by_day

FILE = """
[source]
dsn = "{dsn}"
slot = "{slot}"
publication = "p"
create_slot = true
{journal}
[[sinks]]
type = "jsonl"
name = "lines"
path = "{folder}/lines"
"""


@pytest.fixture
def file(published, tmp_path):
    """Writes a pipeline's file."""

    def write(*, journal: bool, snapshot: bool = False, more: str = ""):
        text = f'[journal]\nurl = "{tmp_path}/journal"\nsnapshot = {str(snapshot).lower()}' if journal else ""
        path = tmp_path / "pipeline.toml"
        first = FILE.format(dsn=published.dsn, slot=published.slot, journal=text, folder=tmp_path)
        path.write_text(first + more)
        return str(path)

    return write


@pytest.mark.parametrize("journal", [True, False])
async def test_everything_has_arrived(run, start, published, file, tmp_path, journal):
    """Without an LSN it waits for what has committed; with one, for that; and an idle server does not keep it waiting."""
    pipeline = file(journal=journal)
    await start("run", pipeline)
    waited = await run("wait", pipeline, "--sink", "lines")
    assert 0 == waited.code, waited.err
    await published.execute("INSERT INTO items SELECT i FROM generate_series(1, 500) i")
    before = LSN.parse(await published.connection.fetchval("SELECT pg_current_wal_lsn()::text"))
    waited = await run("wait", pipeline)
    written = "".join(each.read_text() for each in sorted(tmp_path.glob("lines/*")))
    assert 0 == waited.code, waited.err
    assert before < LSN.parse(waited.out)
    assert 500 == written.count('"INSERT"') + written.count('"insert"')

    waited = await run("wait", pipeline, "--lsn", str(before))
    assert (0, before) == (waited.code, LSN.parse(waited.out))
    await published.execute("CREATE TABLE unpublished_wal AS SELECT generate_series(1, 1000)")
    assert 0 == (await run("wait", pipeline)).code


async def test_the_time_is_up(run, published, file):
    """Without a pipeline nothing moves: the exit code is 1, and the error says what is missing."""
    pipeline = file(journal=True)
    waited = await run("wait", pipeline, "--timeout", "1s")
    assert (1, "") == (waited.code, waited.out)
    assert f"slot {published.slot} does not exist yet" in waited.err
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    waited = await run("wait", pipeline, "--timeout", "1s")
    assert (1, "") == (waited.code, waited.out)
    assert "the journal has everything up to" in waited.err
    waited = await run("wait", pipeline, "--timeout", "1s", "--lsn", "0/1")
    assert (1, "") == (waited.code, waited.out)
    assert "there is no journal yet" in waited.err or "the journal has everything" in waited.err


async def test_refusals(refused, file):
    """Unknown sinks and LSNs in another form are refused before anything connects."""
    pipeline = file(journal=False)
    await refused(2, "has no sink 'line'; did you mean lines?", "wait", pipeline, "--sink", "line")
    two = file(journal=False, more='[[sinks]]\ntype = "stdout"')
    await refused(2, "has no journal, so only the position of all sinks", "wait", two, "--sink", "lines")
    await refused(2, "is not an LSN: write it like 0/171B2A8", "wait", pipeline, "--lsn", "171B2A8")


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_sink_behind_the_journal(published, tmp_path, snapshot):
    """The journal has everything, the sink has not: the wait names the sink, and ends once it has it.

    With a snapshot, rows of the snapshot are missing as well, although the slot is after the LSN from its beginning.
    """
    await published.execute("CREATE TABLE others (id int PRIMARY KEY)")
    await published.execute("INSERT INTO items VALUES (1)", "INSERT INTO others VALUES (1)")
    lsn = LSN.parse(await published.connection.fetchval("SELECT pg_current_wal_lsn()::text"))
    source = Source(published.dsn, slot=published.slot, publication="p", create_slot=True)
    sink, journal = Gate(1), open_store(tmp_path / "journal")
    async with Pipeline(source, {"gated": sink.delivery}, journal=journal, snapshot=snapshot) as pipeline:
        await pipeline.started()
        if not snapshot:
            await published.execute("INSERT INTO items VALUES (2)", "INSERT INTO items VALUES (3)")
        async with asyncio.timeout(60):
            while sink.allowed >= 0:
                await asyncio.sleep(0.01)
        for wanted in (None, lsn) if snapshot else (None,):
            waits = Arrival(source, journal, journal, ["gated"])
            waiting = asyncio.create_task(waits.wait(wanted))
            async with asyncio.timeout(60):
                while not waits.waiting_for.startswith("sink gated has everything up to "):
                    await asyncio.sleep(0.01)
            assert not waiting.done()
            await cancel_and_wait(waiting)
            with pytest.raises(NotReached, match="the time is up: "):
                await waits.wait(wanted, 0.01)
        sink.gate.set()
        assert lsn == await Arrival(source, journal, journal, ["gated"]).wait(lsn, 60)
    assert ([1, 1] if snapshot else [2, 3]) == [int(change.new["id"]) for change in sink.changes]


async def test_a_slot_that_is_read_through_sql(published, tmp_path, caplog, monkeypatch):
    """Between two polls the slot is not active, but the pipeline runs: no warning says otherwise."""
    monkeypatch.setattr(arrival, "_UNUSED_SECONDS", 0.3)
    await published.create_slot()
    source = Source(published.dsn, slot=published.slot, publication="p", interface="sql")
    later = LSN(LSN.parse(await published.connection.fetchval("SELECT pg_current_wal_lsn()::text")) + 2**30)
    async with Pipeline(source, [MemorySink()]) as pipeline:
        await pipeline.started()
        with pytest.raises(NotReached):
            await Arrival(source, None, None, ["memory"]).wait(later, 2.0)
    assert "is not in use" not in caplog.text
    with pytest.raises(NotReached):
        await Arrival(source, None, None, ["memory"]).wait(later, 2.0)
    assert f"slot {published.slot} is not in use: check that the pipeline runs" in caplog.text
