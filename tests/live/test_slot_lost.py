"""``on_slot_lost = "resnapshot"``: after the loss of a slot the next start reads all tables again, as often as the limit allows."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from aiorepl import ConfigurationError, Delivery, PermanentError, Pipeline, SlotError, SlotLost
from aiorepl.monitoring.samples import samples
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.testing.faults import MemorySink
from aiorepl.transforms.selection import Selection
from tests.waiting import until

pytestmark = pytest.mark.by_day


def rows(sink: MemorySink) -> dict[int, str | None]:
    """The rows of ``items`` in a target that merges by key."""
    found: dict[int, str | None] = {}
    for change in (change for batch in sink.batches for change in batch.changes):
        if change.kind == "truncate":
            found.clear()
        elif change.kind == "delete":
            found.pop(change.old["id"], None)
        elif getattr(change, "table", None) == "items":
            found[change.new["id"]] = change.new["note"]
    return found


@pytest.fixture(params=["direct", "journal"])
def way(request, tmp_path):
    """Options of a pipeline with and without a journal."""
    folder = str(tmp_path / "folder")
    kept = {"journal": folder} if request.param == "journal" else {"snapshot": SnapshotOptions(state=folder)}
    return {"on_slot_lost": "resnapshot", **kept}


async def recovered(published, way, sink, source=None, **options) -> Pipeline:
    """Run as a service manager does, until the end of WAL; return the last pipeline."""
    for _ in range(3):
        pipeline = Pipeline(published.source(**(source or {})), [sink], until="now", **way, **options)
        try:
            await pipeline.run()
        except SlotLost:
            if not pipeline.recovers:
                raise
        else:
            return pipeline
    raise AssertionError("the slot is lost at each start")


async def drop(published) -> None:
    await published.execute(f"SELECT pg_drop_replication_slot('{published.slot}')")


async def advance(published) -> None:
    await published.execute(f"SELECT pg_replication_slot_advance('{published.slot}', pg_current_wal_lsn())")


@pytest.mark.parametrize("create_slot", [True, False])
async def test_a_slot_that_was_dropped_while_the_pipeline_was_stopped(published, way, create_slot):
    """Rows that were deleted meanwhile disappear, changed rows are as they are now, and the stream goes on."""
    sink = MemorySink()
    await published.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    await recovered(published, way, sink)
    await published.execute("INSERT INTO items VALUES (3, 'c')")
    first = await recovered(published, way, sink)
    assert (0, False) == (first.statistics().slot_losses, first.recovers)
    await published.execute("DELETE FROM items WHERE id = 1", "UPDATE items SET note = 'x' WHERE id = 2")
    await drop(published)
    last = await recovered(published, way, sink, source={"create_slot": create_slot})
    assert {2: "x", 3: "c"} == rows(sink)
    await published.execute("INSERT INTO items VALUES (4, 'd')")
    last = await recovered(published, way, sink)
    assert {2: "x", 3: "c", 4: "d"} == rows(sink)
    assert 1 == last.statistics().slot_losses
    assert any(
        metric.name == "aiorepl_slot_losses"
        for metric, _, _ in samples(last.statistics(), None, None, datetime.now(UTC))
    )


async def test_a_slot_that_is_lost_while_the_pipeline_runs(limited, way, tmp_path):
    """The pipeline ends with SlotLost and says that the next one recovers; the next one does."""
    sink = MemorySink()
    await limited.execute("INSERT INTO items VALUES (1, 'a')")
    await recovered(limited, way, sink)
    await limited.lose_slot()
    await limited.execute("DELETE FROM items WHERE id = 1", "INSERT INTO items VALUES (5, 'e')")
    first = Pipeline(limited.source(), [sink], **way)
    with pytest.raises(SlotLost, match="is lost"):
        await first.run()
    assert first.recovers
    async with Pipeline(limited.source(), [sink], **way) as running:
        await until(lambda: _now(rows(sink)), lambda found: found == {5: "e"})
        # Dropped under a running pipeline: the walsender is ended first.
        await limited.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{limited.slot}'"
        )
        running.stop()


async def _now(value):
    return value


async def test_a_slot_that_another_consumer_has_advanced(published, tmp_path):
    """A gap behind the journal is a loss as well."""
    way = {"on_slot_lost": "resnapshot", "journal": str(tmp_path / "journal")}
    sink = MemorySink()
    await published.execute("INSERT INTO items VALUES (1, 'a')")
    await recovered(published, way, sink, snapshot=True)
    await published.execute("DELETE FROM items WHERE id = 1", "INSERT INTO items VALUES (2, 'b')")
    await advance(published)
    await recovered(published, way, sink)
    assert {2: "b"} == rows(sink)


async def test_the_limit_per_day(published, way, monkeypatch, caplog):
    """The next loss within 24 hours stops the pipeline; a day later it recovers again."""
    sink = MemorySink()
    await recovered(published, way, sink)
    for _ in range(2):
        await drop(published)
        await recovered(published, way, sink, max_resnapshots_per_day=2)
    await drop(published)
    for _ in range(2):
        pipeline = Pipeline(published.source(), [sink], until="now", **way, max_resnapshots_per_day=2)
        with pytest.raises(SlotLost, match="was read before, and does not exist any more"):
            await pipeline.run()
        assert not pipeline.recovers
    assert "2 times within 24 hours, as max_resnapshots_per_day allows" in caplog.text
    assert 2 == pipeline.statistics().slot_losses
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_500)
    last = await recovered(published, way, sink, max_resnapshots_per_day=2)
    assert 1 == last.statistics().slot_losses


async def test_a_loss_stays_pending_until_the_stream_has_started(published, way):
    """A start that fails after the loss was recorded neither forgets nor counts it again."""

    class Failing(MemorySink):
        async def open(self, context):
            raise PermanentError("not now")

    sink = MemorySink()
    await published.execute("INSERT INTO items VALUES (1, 'a')")
    await recovered(published, way, sink)
    await drop(published)
    await published.execute("DELETE FROM items; INSERT INTO items VALUES (2, 'b')")
    first = Pipeline(published.source(), [sink], until="now", **way)
    with pytest.raises(SlotLost):
        await first.run()
    assert first.recovers
    with pytest.raises(PermanentError, match="not now"):
        await Pipeline(published.source(), {"memory": Failing()}, until="now", **way).run()
    last = await recovered(published, way, sink)
    assert {2: "b"} == rows(sink)
    assert 1 == last.statistics().slot_losses


@pytest.mark.parametrize("lost", [False, True])
async def test_starts_that_fail_before_the_first_rows_are_no_losses(published, way, lost):
    """Such a start drops the slot that it has created. The next one reads all tables, also after the limit."""

    class Failing(MemorySink):
        async def write(self, batch):
            raise PermanentError("not now")

    sink = MemorySink()
    way = {"snapshot": True, **way}
    await published.execute("INSERT INTO items VALUES (1, 'a')")
    if lost:
        await recovered(published, way, sink)
        await drop(published)
        await published.execute("DELETE FROM items; INSERT INTO items VALUES (2, 'b')")
        with pytest.raises(SlotLost):
            await Pipeline(published.source(), [sink], until="now", **way).run()
    for _ in range(3):
        with pytest.raises(PermanentError, match="not now"):
            await Pipeline(published.source(), {"memory": Failing()}, until="now", **way).run()
    last = await recovered(published, way, sink)
    assert rows(sink) == ({2: "b"} if lost else {1: "a"})
    assert int(lost) == last.statistics().slot_losses


async def test_an_accepted_gap_reads_nothing_again(published, way):
    """A user who starts with accept_gap goes on without the missing changes, also after a loss was recorded."""
    sink = MemorySink()
    await published.execute("INSERT INTO items VALUES (1, 'a')")
    await recovered(published, way, sink)
    await drop(published)
    with pytest.raises(SlotLost):
        await Pipeline(published.source(), [sink], until="now", **way).run()
    await Pipeline(published.source(), [sink], until="now", **way, accept_gap=True).run()
    await published.execute("INSERT INTO items VALUES (2, 'b')")
    await recovered(published, way, sink)
    assert "truncate" not in [change.kind for batch in sink.batches for change in batch.changes]
    assert 2 in rows(sink)


async def test_masks_hold(published, way):
    """A column that a pattern hides, and that was renamed while there was no slot, stays hidden."""
    await published.execute(
        "ALTER TABLE items ADD email text", "INSERT INTO items VALUES (1, 'a', 'secret-1')"
    )
    sink = MemorySink()
    delivery = Delivery(sink, selection=Selection(drop=("*.*.ema*?",)))
    await recovered(published, way, delivery)
    await drop(published)
    await published.execute(
        "ALTER TABLE items RENAME email TO contact", "INSERT INTO items VALUES (2, 'b', 'secret-2')"
    )
    with pytest.raises(ConfigurationError, match=r"was renamed to public\.items\.contact: add"):
        await recovered(published, way, delivery)
    await recovered(
        published, way, Delivery(sink, selection=Selection(drop=("*.*.ema*?", "public.items.contact")))
    )
    assert {1: "a", 2: "b"} == rows(sink)
    assert "secret" not in repr(
        [dict(c.new) for b in sink.batches for c in b.changes if getattr(c, "new", None)]
    )


async def test_the_default_stops(published, tmp_path):
    """Without the option nothing is read again; a slot that never existed is not lost."""
    sink = MemorySink()
    options = {"journal": str(tmp_path / "journal"), "snapshot": True, "until": "now"}
    with pytest.raises(SlotError, match="does not exist: create it"):
        await Pipeline(
            published.source(create_slot=False), [sink], **options, on_slot_lost="resnapshot"
        ).run()
    await Pipeline(published.source(), [sink], **options).run()
    await published.execute("INSERT INTO items VALUES (1, 'a')")
    await drop(published)
    pipeline = Pipeline(published.source(), [sink], **options)
    with pytest.raises(SlotLost, match="no longer has the transactions"):
        await pipeline.run()
    assert (False, None) == (pipeline.recovers, pipeline.statistics().slot_losses)


def test_wrong_options(published, tmp_path):
    """The record of the losses needs a folder, and the slot must be permanent."""
    for source, options in (
        (published.source(), {}),
        (published.source(temporary=True), {"journal": str(tmp_path)}),
    ):
        with pytest.raises(
            ConfigurationError, match="on_slot_lost needs a permanent slot, and a journal or a folder"
        ):
            Pipeline(source, [MemorySink()], on_slot_lost="resnapshot", **options)
    with pytest.raises(ConfigurationError, match="max_resnapshots_per_day"):
        Pipeline(published.source(), [MemorySink()], on_slot_lost="resnapshot", max_resnapshots_per_day=0)
