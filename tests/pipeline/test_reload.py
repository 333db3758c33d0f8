"""Sinks of a running pipeline with a journal are added, replaced, removed, paused and resumed."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import (
    AioreplError,
    BatchPolicy,
    ConfigurationError,
    Delivery,
    PermanentError,
    Pipeline,
    RetryPolicy,
    Selection,
    TransientError,
)
from aiorepl.journal.cursors import Cursors
from aiorepl.testing import FaultySink, MemorySink, MemorySource, Stream
from aiorepl.testing.faults import Hang, Reject
from aiorepl.testing.messages import column
from tests.waiting import until


def ids(sink: MemorySink) -> list[int]:
    return [change.new["id"] for change in sink.changes]


class Running:
    """A stream of rows with the ids 0, 1, …, and a pipeline with a journal."""

    def __init__(self, folder) -> None:
        self.journal = folder / "journal"
        self.stream = Stream()
        self._table = self.stream.table("items", column("id", 23, key=True))
        self._next = 0

    def commit(self, count: int = 1) -> None:
        for _ in range(count):
            self.stream.transaction(self._table.insert(str(self._next)))
            self._next += 1

    def pipeline(self, sinks, **options) -> Pipeline:
        options = {"journal": self.journal, "batches": BatchPolicy(flush_seconds=0.01)} | options
        return Pipeline(MemorySource(stream=self.stream), sinks, **options)


@pytest.fixture
def running(tmp_path):
    return Running(tmp_path)


async def test_sinks_are_added_replaced_and_removed(running):
    """A new sink begins where the journal begins, a replaced one continues without a repetition, a removed one keeps its cursor."""
    stays, former, gone, new, successor = (MemorySink() for _ in range(5))
    running.commit(3)
    async with running.pipeline({"stays": stays, "a": former, "b": gone}, buffer_bytes=100) as pipeline:
        for each in (stays, former, gone):
            await each.wait_for_changes(3)
        changes = await pipeline.reload({"stays": stays, "a": successor, "c": new})
        assert (("c",), ("a",), ("b",)) == (changes.added, changes.altered, changes.removed)
        running.commit(2)
        await new.wait_for_changes(5)
        await successor.wait_for_changes(2)
        await stays.wait_for_changes(5)
        assert former.closed
        assert gone.closed
        assert not stays.closed
        assert ["journal", "stays", "a", "c"] == list(pipeline.statistics().sinks)
        # All buffers share the bytes.
        assert {"source": 25, "stays": 25, "a": 25, "c": 25} == {
            name: buffer.limit for name, buffer in pipeline.statistics().buffers.items()
        }
        await pipeline.reload({"stays": stays})
        assert {"source": 50, "stays": 50} == {
            name: buffer.limit for name, buffer in pipeline.statistics().buffers.items()
        }
    assert [0, 1, 2, 3, 4] == ids(stays) == ids(new)
    assert ([0, 1, 2], [0, 1, 2], [3, 4]) == (ids(former), ids(gone), ids(successor))
    cursors = Cursors(running.journal)
    assert ["a", "b", "c", "stays"] == cursors.names()
    lsns = {name: cursors.get(name).lsn for name in cursors.names()}
    assert lsns["b"] < lsns["a"] == lsns["c"] == lsns["stays"]


async def test_a_sink_keeps_its_position_with_its_data(running):
    """The new sink keeps the position that the former one had, and continues there even if its cursor is behind; nothing comes twice."""
    former, successor = MemorySink(keeps_position=True), MemorySink(keeps_position=True)
    running.commit(3)
    async with running.pipeline({"a": former}) as pipeline:
        await former.wait_for_changes(3)
        for number in range(3):
            successor = MemorySink(keeps_position=True)
            successor.position = successor._durable_position = former.position
            await pipeline.reload({"a": successor})
            assert former.position == successor.position
            running.commit(2)
            await successor.wait_for_changes(2)
            assert [3 + 2 * number, 4 + 2 * number] == ids(successor)
            former = successor


async def test_a_change_that_is_wrong_changes_nothing(running):
    """An error in one sink leaves all sinks as they were, and they continue."""
    a, b = MemorySink(), MemorySink()
    running.commit()
    async with running.pipeline({"a": a, "b": b}) as pipeline:
        for wrong, match in (
            ({"a": MemorySink(), "journal": MemorySink()}, "must not be named 'journal'"),
            ({"a": MemorySink(), "b": object()}, "is not a sink"),
            ({"a": MemorySink(), "b": Delivery(b)}, "is used twice"),
            ({"a": b}, "is used twice"),
            (
                {
                    "a": MemorySink(),
                    "b": b,
                    "c": Delivery(MemorySink(), on_error="dead_letter", dead_letters=b),
                },
                "twice",
            ),
        ):
            with pytest.raises(ConfigurationError, match=match):
                await pipeline.reload(wrong)
        unchanged = await pipeline.reload({"a": a, "b": b})
        assert ((), (), ()) == (unchanged.added, unchanged.altered, unchanged.removed)
        running.commit()
        await a.wait_for_changes(2)
        await b.wait_for_changes(2)
        assert not a.closed
        assert not b.closed


async def test_a_new_sink_that_fails_or_hangs_stops_no_other(running):
    """The statistics report the new sink, the others continue, and a further change repairs it."""
    hang = Hang()
    stays, hangs, fails = (
        MemorySink(),
        FaultySink(open=[hang]),
        FaultySink(open=[Reject(PermanentError("no target"))]),
    )
    async with running.pipeline({"stays": stays}) as pipeline:
        await pipeline.reload({"stays": stays, "hangs": hangs, "fails": fails})
        running.commit(3)
        await stays.wait_for_changes(3)
        sinks = await until(lambda: pipeline.statistics().sinks, lambda sinks: sinks["fails"].failed)
        assert "no target" == sinks["fails"].failed
        repaired = MemorySink()
        await pipeline.resume("fails", repaired)
        await repaired.wait_for_changes(3)
        assert pipeline.statistics().sinks["fails"].failed is None
        await pipeline.reload({"stays": stays, "fails": repaired})
        running.commit()
        await repaired.wait_for_changes(4)
        await stays.wait_for_changes(4)


async def test_a_sink_that_does_not_end_is_cancelled(running):
    """A sink whose target is down has the shutdown timeout; its successor gets what the sink has not made durable."""
    down = FaultySink(write=[Reject(TransientError("down"))] * 1000)
    stays, successor = MemorySink(), MemorySink()
    running.commit(3)
    sinks = {"stays": stays, "a": Delivery(down, retry=RetryPolicy(timeout=None))}
    async with running.pipeline(sinks, shutdown_timeout=0.05) as pipeline:
        await until(lambda: pipeline.statistics().sinks["a"].retrying)
        await pipeline.reload({"stays": stays, "a": successor})
        await successor.wait_for_changes(3)
        assert pipeline.statistics().sinks["a"].retrying is None
    assert [0, 1, 2] == ids(successor)


async def test_pause_and_resume(running):
    """A paused sink is closed, the others continue; resumed with a new object, it gets everything once."""
    stays, paused = MemorySink(), MemorySink()
    running.commit(2)
    async with running.pipeline({"stays": stays, "a": paused}) as pipeline:
        await paused.wait_for_changes(2)
        await pipeline.pause("a")
        await pipeline.pause("a")
        assert paused.closed
        running.commit(2)
        await stays.wait_for_changes(4)
        assert pipeline.statistics().sinks["a"].paused
        with pytest.raises(ConfigurationError, match="is used twice"):
            await pipeline.resume("a", paused)
        with pytest.raises(ConfigurationError, match="neither paused nor stopped"):
            await pipeline.resume("stays", MemorySink())
        with pytest.raises(ConfigurationError, match="there is no sink 'x'; the sinks are stays, a"):
            await pipeline.pause("x")
        # A paused sink stays paused if it is replaced.
        replaced, resumed = MemorySink(), MemorySink()
        await pipeline.reload({"stays": stays, "a": replaced})
        assert pipeline.statistics().sinks["a"].paused
        await pipeline.resume("a", resumed)
        await resumed.wait_for_changes(2)
        assert not pipeline.statistics().sinks["a"].paused
    assert ([0, 1], [], [2, 3]) == (ids(paused), ids(replaced), ids(resumed))


async def test_changes_at_the_same_time(running):
    """Two changes come one after the other, and the last one holds."""
    running.commit(3)
    async with running.pipeline({"a": MemorySink()}) as pipeline:
        last = MemorySink()
        sinks = [{"a": MemorySink(), f"s{number}": MemorySink()} for number in range(5)] + [{"last": last}]
        await asyncio.gather(*map(pipeline.reload, sinks))
        assert {"journal", "last"} == set(pipeline.statistics().sinks)
        await last.wait_for_changes(3)
    assert [0, 1, 2] == ids(last)


async def test_a_change_during_the_start(running):
    """The change waits for the stream."""
    former, new = MemorySink(), MemorySink()
    pipeline = running.pipeline({"a": former})
    reload = asyncio.create_task(pipeline.reload({"b": new}))
    await asyncio.sleep(0)
    running.commit()
    async with pipeline:
        await reload
        await new.wait_for_changes(1)
        assert {"journal", "b"} == set(pipeline.statistics().sinks)


async def test_a_change_during_the_end(running):
    """The change is refused or carried out, and the pipeline ends in order. After the end, a change is refused."""
    former = MemorySink()
    running.commit()
    async with running.pipeline({"a": former}) as pipeline:
        await former.wait_for_changes(1)
        reload = asyncio.create_task(pipeline.reload({"a": MemorySink(), "b": MemorySink()}))
        await asyncio.sleep(0)
        pipeline.stop()
        await asyncio.wait({reload})
    if (error := reload.exception()) is not None:
        assert isinstance(error, AioreplError)
    with pytest.raises(AioreplError, match="is stopping"):
        await pipeline.reload({"a": MemorySink()})
    with pytest.raises(AioreplError, match="is stopping"):
        await pipeline.pause("a")


async def test_a_selection_takes_effect_between_transactions(running):
    """The former selection applies to the rows before the change, and the new one to the rows after it."""
    former, successor = MemorySink(), MemorySink()
    running.commit(2)
    async with running.pipeline({"a": former}) as pipeline:
        await former.wait_for_changes(2)
        await pipeline.reload(
            {"a": Delivery(successor, selection=Selection(mask=("public.items.id",), secret="s"))}
        )
        running.commit()
        await successor.wait_for_changes(1)
    assert [0, 1] == ids(former)
    assert 2 not in ids(successor)


async def test_without_a_journal(running):
    """A change is refused, and the sinks continue."""
    sink = MemorySink()
    async with running.pipeline({"a": sink}, journal=None) as pipeline:
        with pytest.raises(ConfigurationError, match="only if the pipeline has a journal"):
            await pipeline.reload({"a": sink, "b": MemorySink()})
        with pytest.raises(ConfigurationError, match="only if the pipeline has a journal"):
            await pipeline.pause("a")
        running.commit()
        await sink.wait_for_changes(1)


class _OneWriter(MemorySink):
    """A sink whose target refuses a second writer.

    :param writers: the targets that have one.
    """

    def __init__(self, writers: set[str], target: str) -> None:
        super().__init__()
        self._writers, self._target = writers, target

    async def open(self, context):
        if self._target in self._writers:
            raise PermanentError(f"{self._target} has a writer")
        self._writers.add(self._target)
        return await super().open(context)

    async def close(self):
        await asyncio.sleep(0.05 if self._target == "x" else 0.0)
        self._writers.discard(self._target)
        await super().close()


@pytest.mark.parametrize(
    ("former", "new"), [({"a": "x"}, {"b": "x"}), ({"a": "x", "b": "y"}, {"a": "y", "b": "x"})]
)
async def test_a_target_gets_another_name(running, former, new):
    """The former writer of the target is closed before the new one is opened, also if two sinks swap their names."""
    writers: set[str] = set()
    sinks, successors = (
        {name: _OneWriter(writers, target) for name, target in each.items()} for each in (former, new)
    )
    running.commit()
    async with running.pipeline(sinks) as pipeline:
        for sink in sinks.values():
            await sink.wait_for_changes(1)
        await pipeline.reload(successors)
        running.commit()
        for successor in successors.values():
            await successor.wait_for_changes(1)
        assert not any(sink.failed for sink in pipeline.statistics().sinks.values())


async def test_a_sink_fails_while_it_is_replaced(running):
    """That does not end the pipeline, although it is the only sink: the successor continues."""
    fails, successor = FaultySink(flush=[Reject(PermanentError("no"))]), MemorySink()
    running.commit()
    async with running.pipeline(
        {"a": Delivery(fails, batches=BatchPolicy(flush_seconds=3600.0))}
    ) as pipeline:
        await fails.inner.wait_for_changes(1)
        await pipeline.reload({"a": successor})
        await successor.wait_for_changes(1)
        assert pipeline.statistics().sinks["a"].failed is None
        running.commit()
        await successor.wait_for_changes(2)


async def test_a_change_after_the_end_of_the_stream(running):
    """It is refused."""
    running.commit()
    pipeline = running.pipeline({"a": MemorySink()}, until="now")
    await pipeline.run()
    with pytest.raises(AioreplError, match="is stopping"):
        await pipeline.reload({"a": MemorySink()})
