"""The record of a slot's losses gives the next start the gap, unless nothing tells what the consumers had."""

from __future__ import annotations

import pickle
from pathlib import Path

from aiorepl import LSN, Selection, SlotLost
from aiorepl.pipeline.slot_losses import SlotLosses, consumers
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan
from aiorepl.snapshot.gap import Gap
from aiorepl.storage.checked_json import seal

PLAN = SnapshotPlan((TablePlan(7, "public", "a", None, 0, (None,), history="abc"),))
LOST = SlotLost("lost", catalog_xmin=990, confirmed=LSN(50))


async def losses(folder: Path) -> SlotLosses:
    found = SlotLosses(folder, "s", 5)
    await found.load()
    return found


async def running(folder: Path) -> SlotLosses:
    """A pipeline that has read its tables."""
    found = await losses(folder)
    await found.started({"sink"}, PLAN, 2**32 + 1000, None)
    return found


async def test_an_invalidated_slot_has_a_gap(tmp_path):
    """The gap survives restarts, until the stream has started again. Later starts keep the states of the tables."""
    await (await running(tmp_path)).record(1.0, LOST)
    found = await losses(tmp_path)
    assert found.gap({"sink"}) == Gap(2**32 + 990, LSN(50), {7: "abc"})
    assert found.gap({"sink", "new"}) is None
    await found.started({"sink"}, None, 2**32 + 1000, None)
    assert (await losses(tmp_path)).gap({"sink"}) is None
    await found.record(2.0, LOST)
    assert found.gap({"sink"}) == Gap(2**32 + 990, LSN(50), {7: "abc"})


async def test_the_epoch_of_a_slot_that_is_lost_much_later(tmp_path):
    """The gap's xid has the epoch of the xid that the pipeline has recorded last."""
    found = await running(tmp_path)
    await found.reached(2**33 + 5)
    await found.record(1.0, LOST)
    gap = found.gap({"sink"})
    assert gap is not None
    assert 2**33 + 990 == gap.xid


async def test_the_server_that_sent_what_the_consumers_have(tmp_path):
    """It is the server of the last connection; a start that never had the slot leaves the record as it is."""
    found = await running(tmp_path)
    for started in ("1", None):
        await found.started({"sink"}, None, 2**32 + 1000, started)
        await found.record(1.0, LOST)
        assert found.gap({"sink"}) == Gap(2**32 + 990, LSN(50), {7: "abc"}, started)
    for started in ("1", None):
        await found.started({"sink"}, None, 2**32 + 1000, None)
        await found.reached(2**32 + 1000, started)
        await found.record(1.0, LOST, "2")
        assert (await losses(tmp_path)).gap({"sink"}) == Gap(2**32 + 990, LSN(50), {7: "abc"}, "2")


async def test_other_losses_have_no_gap(tmp_path):
    found = await running(tmp_path)
    await found.record(1.0, SlotLost("dropped"))
    assert found.gap({"sink"}) is None


async def test_a_loss_while_a_loss_is_pending_has_no_gap(tmp_path):
    """A slot that a start has created, and lost before its stream began, says nothing about the first loss."""
    found = await running(tmp_path)
    await found.record(1.0, LOST)
    await found.record(2.0, SlotLost("lost", catalog_xmin=1500, confirmed=LSN(90)))
    assert found.gap({"sink"}) is None


async def test_a_start_that_drops_its_slot_keeps_the_loss(tmp_path):
    await (await running(tmp_path)).record(1.0, LOST)
    found = await losses(tmp_path)
    await found.started({"sink"}, PLAN, 2**32 + 1200, None)
    await found.dropped()
    assert (await losses(tmp_path)).gap({"sink"}) == Gap(2**32 + 990, LSN(50), {7: "abc"})


async def test_a_file_of_an_earlier_version(tmp_path):
    (tmp_path / "s.losses.json").write_bytes(seal({"pending": True, "times": [1.0], "known": True}))
    found = await losses(tmp_path)
    assert (found.pending, found.known, found.gap(set())) == (True, True, None)


def test_the_error_can_be_pickled():
    found = pickle.loads(pickle.dumps(LOST))
    assert (990, LSN(50), False, "lost") == (found.catalog_xmin, found.confirmed, found.busy, str(found))


async def test_a_sink_that_was_added_or_absent_since_the_tables_were_read(tmp_path):
    """It may have nothing of what the others have, until all tables are read again."""
    for names in ({"sink", "new"}, {"new"}):
        found = await running(tmp_path)
        for each in (names, {"sink", "new"}):
            await found.narrow(each)
            await found.started(each, None, 2**32 + 1100, None)
        await found.record(1.0, LOST)
        assert found.gap({"sink", "new"}) is None
        assert (found.gap({"sink"}) is None) == (names == {"new"})


async def test_a_pipeline_that_does_not_keep_the_file(tmp_path):
    """What it did is not known afterwards, also if a loss was pending."""
    for lost_before in (False, True):
        found = await running(tmp_path)
        if lost_before:
            await found.record(1.0, LOST)
        await (await losses(tmp_path)).narrow(())
        found = await losses(tmp_path)
        if not lost_before:
            await found.started({"sink"}, None, 2**32 + 1100, None)
            await found.record(1.0, LOST)
        assert found.pending
        assert found.gap({"sink"}) is None


def test_what_a_sink_gets_is_compared():
    """Everything but the secret of its masks, which does not choose rows."""
    whole = consumers(("p",), None, {"a": None, "b": None})
    assert 2 == len(whole)
    selections = [
        Selection(tables=("public.a",)),
        Selection(kinds=("insert",)),
        Selection(drop=("public.a.b",)),
    ]
    others = [
        consumers(("p", "q"), None, {"a": None}),
        consumers(("p",), selections[0], {"a": None}),
        *(consumers(("p",), None, {"a": each}) for each in selections),
    ]
    assert len(others) == len(set().union(*others) - whole)
    masks = [Selection(mask=("public.a.b",), secret=secret) for secret in ("x", "y")]
    assert 1 == len({consumers(("p",), None, {"a": mask}) for mask in masks})
