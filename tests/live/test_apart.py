"""With a journal sinks are independent: one that fails, blocks or opens slowly affects no other."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aiorepl import BatchPolicy, Delivery, Pipeline, RetryPolicy, Selection, SyncSink
from aiorepl.errors import AioreplError, DamagedJournal, PermanentError, TransientError
from aiorepl.testing.faults import FaultySink, Hang, MemorySink, Reject
from tests.waiting import until

pytestmark = pytest.mark.by_day

SOON = BatchPolicy(flush_seconds=0.1)


async def failed(published, pipeline, sink="bad"):
    """Wait until a sink has stopped, which may be after the others are done, and return the reason."""
    return await until(lambda: pipeline.statistics().sinks[sink].failed)


async def test_a_sink_that_fails_for_good_stops_alone(published, tmp_path):
    """The journal and the other sink continue; the pipeline's end names the failed one, which continues from its cursor at
    the next start.
    """
    await published.create_slot()
    good, bad = MemorySink(), MemorySink()
    sinks = {"good": good, "bad": FaultySink(bad, write=[None, Reject(PermanentError("no"))])}
    pipeline = Pipeline(published.source(), sinks, journal=str(tmp_path), batches=SOON)
    with pytest.raises(PermanentError):
        async with pipeline:
            await published.execute("INSERT INTO items VALUES (1)")
            await bad.wait_for_changes(1, durable=True)
            await published.execute("INSERT INTO items VALUES (2)")
            await good.wait_for_changes(2, durable=True)
            await published.execute("INSERT INTO items VALUES (3)")
            await good.wait_for_changes(3, durable=True)
            end = await published.wal()
            await published.confirmed_past(end)
            assert "no" == await failed(published, pipeline)
    async with Pipeline(published.source(), {"good": good, "bad": bad}, journal=str(tmp_path), batches=SOON):
        await bad.wait_for_changes(3, durable=True)
    assert [1, 2, 3] == [change.key["id"] for change in bad.changes]
    assert [1, 2, 3] == [change.key["id"] for change in good.changes]


def cannot_open(bad):
    """A sink that cannot be opened, in several ways."""
    return {
        "refuses": FaultySink(bad, open=[Reject(PermanentError("no"))]),
        "breaks": FaultySink(bad, open=[Reject(ValueError("secret"))]),
        "not there": Delivery(
            FaultySink(bad, open=[Reject(TransientError("not there"))] * 2),
            retry=RetryPolicy(attempts=2, wait_initial=0),
        ),
        "dead letters": Delivery(
            bad, on_error="dead_letter", dead_letters=FaultySink(open=[Reject(PermanentError("no letters"))])
        ),
        "damaged cursor": bad,
    }


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("refuses", "no"),
        ("breaks", "sink bad: open raised ValueError"),
        ("not there", "not there"),
        ("dead letters", "no letters"),
        ("damaged cursor", "cursor 'bad'"),
    ],
)
async def test_a_sink_that_cannot_open_stops_alone(published, tmp_path, caplog, how, message):
    """The journal and the other sink continue; log, statistics and the pipeline's end name the sink, which gets everything
    at the next start.
    """
    await published.create_slot()
    good, bad = MemorySink(), MemorySink()
    sinks = {"bad": cannot_open(bad)[how], "good": good}
    if how == "damaged cursor":
        (tmp_path / "cursors").mkdir()
        (tmp_path / "cursors" / "bad.json").write_text("{")
    pipeline = Pipeline(published.source(), sinks, journal=str(tmp_path), batches=SOON)
    with pytest.raises(AioreplError, match=message):
        async with pipeline:
            await published.execute("INSERT INTO items VALUES (1)")
            await good.wait_for_changes(1, durable=True)
            await published.confirmed_past(await published.wal())
            reason = await failed(published, pipeline)
            assert message in reason
            assert pipeline.statistics().sinks["good"].failed is None
    assert f"sink bad stops, the other sinks continue: {reason}" in caplog.text
    assert "secret" not in caplog.text
    if how == "damaged cursor":
        (tmp_path / "cursors" / "bad.json").unlink()
    async with Pipeline(published.source(), {"good": good, "bad": bad}, journal=str(tmp_path), batches=SOON):
        await bad.wait_for_changes(1, durable=True)
    assert [[1], [1]] == [[change.key["id"] for change in sink.changes] for sink in (good, bad)]


async def test_a_sink_that_is_long_in_opening_holds_nobody_back(published, tmp_path):
    """The stream runs while a sink opens; afterwards the sink gets everything."""
    await published.create_slot()
    quick, slow, hang = MemorySink(), MemorySink(), Hang()
    sinks = {"slow": FaultySink(slow, open=[hang]), "quick": quick}
    await published.execute("INSERT INTO items VALUES (1)")
    work = asyncio.create_task(
        Pipeline(published.source(), sinks, journal=str(tmp_path), batches=SOON, until="now").run()
    )
    await hang.reached.wait()
    await quick.wait_for_changes(1, durable=True)
    # Not past the end of WAL: reading the catalog may have pruned pages since the stream's end was chosen.
    await published.confirmed_past(quick.changes[0].transaction.commit_lsn + 1)
    assert [] == slow.batches
    hang.release()
    await work
    assert [1] == [change.key["id"] for change in slow.changes]


async def test_a_sink_that_cannot_read_the_journal_stops_alone(published, tmp_path):
    """A damaged segment stops only the sinks that still have to read it."""
    await published.create_slot()
    quick, late = MemorySink(), MemorySink()
    async with Pipeline(published.source(), {"quick": quick}, journal=str(tmp_path), batches=SOON):
        for number in (1, 2):
            await published.execute(f"INSERT INTO items VALUES ({number})")
            await quick.wait_for_changes(number, durable=True)
    segment = min(tmp_path.glob("segments/*"))
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)

    pipeline = Pipeline(
        published.source(), {"late": late, "quick": quick}, journal=str(tmp_path), batches=SOON
    )
    with pytest.raises(DamagedJournal):
        async with pipeline:
            assert segment.name in await failed(published, pipeline, "late")
            await published.execute("INSERT INTO items VALUES (3)")
            await quick.wait_for_changes(3, durable=True)
            await published.confirmed_past(await published.wal())
            assert pipeline.statistics().sinks["quick"].failed is None
    assert [] == late.changes


async def test_a_stop_does_not_wait_for_a_sink_to_open(published, tmp_path):
    """A stop does not wait for a sink that is still opening."""
    await published.create_slot()
    hang = Hang()
    sinks = {"slow": FaultySink(open=[hang]), "quick": MemorySink()}
    async with Pipeline(published.source(), sinks, journal=str(tmp_path), shutdown_timeout=1000):
        await hang.reached.wait()
    assert ["open", "close"] == sinks["slow"].calls


async def test_when_all_sinks_have_failed_the_pipeline_ends(published, tmp_path):
    """A pipeline whose sinks have all failed ends, because nothing reads its journal."""
    await published.create_slot()
    sinks = {"only": FaultySink(MemorySink(), write=[Reject(PermanentError("no"))])}
    pipeline = Pipeline(published.source(), sinks, journal=str(tmp_path), batches=SOON)
    await published.execute("INSERT INTO items VALUES (1)")
    with pytest.raises(PermanentError, match=r"^no$"):
        await pipeline.run()


class Blocking(SyncSink):
    """Records the thread that it is called in."""

    def __init__(self):
        self.threads = set()
        self.keys = []

    def write(self, batch):
        self.threads.add(threading.get_ident())
        self.keys += [change.key["id"] for change in batch.changes]


async def test_a_synchronous_sink_runs_in_a_worker_thread(published):
    """A synchronous sink gets everything in order, never in the event loop's thread, and is durable when write returns."""
    await published.create_slot()
    sink = Blocking()
    async with Pipeline(published.source(), [sink], batches=SOON):
        for key in range(5):
            await published.execute(f"INSERT INTO items VALUES ({key})")
        await published.confirmed_past(await published.wal())
    assert list(range(5)) == sink.keys
    assert threading.get_ident() not in sink.threads


async def test_each_sink_gets_its_selection(published):
    """Sinks with different selections see the same identities."""
    await published.execute("CREATE TABLE people (id int PRIMARY KEY, email text, note text)")
    await published.create_slot()
    everything, some = MemorySink(), MemorySink()
    selection = Selection(
        tables=("public.people",), drop=("public.people.note",), mask=("public.people.email",), secret="s"
    )
    async with Pipeline(published.source(), [everything, Delivery(some, selection=selection)], batches=SOON):
        await published.commit(
            "INSERT INTO items VALUES (1)", "INSERT INTO people VALUES (2, 'a@b.example', 'private')"
        )
        await published.confirmed_past(await published.wal())
    assert ["items", "people"] == [change.table for change in everything.changes]
    (change,) = some.changes
    assert (1, ["id", "email"]) == (change.ordinal, list(change.new))
    assert 64 == len(change.new["email"])


async def test_a_stop_before_the_first_read_ends_at_once(published):
    """A pipeline that is stopped before it reads does not wait for its shutdown timeout."""
    await published.create_slot()
    pipeline = Pipeline(published.source(), [MemorySink()], shutdown_timeout=1000)
    pipeline.stop()
    async with asyncio.timeout(60):
        await pipeline.run()
