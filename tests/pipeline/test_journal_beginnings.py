"""Where sinks begin to read a journal: no change is skipped silently, and none comes twice."""

from __future__ import annotations

import pytest

from aiorepl import BatchPolicy, Pipeline, SlotError
from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.lsn import LSN
from aiorepl.pipeline import journal_upkeep
from aiorepl.source.continuity import Gap
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column

SOON = BatchPolicy(flush_seconds=0.01)


@pytest.fixture
def stream() -> Stream:
    return Stream(slot="memory")


@pytest.fixture
def commit(stream):
    """Commit a row, and return its end LSN."""
    table = stream.table("items", column("id", 23, key=True))
    return lambda number: stream.transaction(table.insert(str(number)))


async def run(source, sinks, **options) -> Pipeline:
    pipeline = Pipeline(source, sinks, until="now", batches=SOON, **options)
    await pipeline.run()
    return pipeline


def ids(sink) -> list[int]:
    return [change.new["id"] for change in sink.changes]


@pytest.mark.parametrize("keeps_position", [False, True])
async def test_a_new_sink_on_a_pruned_journal(stream, commit, tmp_path, keeps_position):
    """A sink added to a pruned journal fails alone, until accept_gap lets it begin with what is kept."""
    source, journal = MemorySource(stream=stream), str(tmp_path)
    first, second = MemorySink(), MemorySink(keeps_position=keeps_position)
    for number in range(3):
        commit(number)
        await run(source, {"first": first}, journal=journal)
    assert len(prune(journal)) == 2
    begins = JournalReader(journal).chain().start_lsn
    assert begins
    for number in (3, 4):
        commit(number)
        with pytest.raises(
            SlotError, match=f"sink second is new, but the journal begins at {begins}: .*--accept-gap"
        ):
            await run(source, {"first": first, "second": second}, journal=journal)
    assert ([0, 1, 2, 3, 4], []) == (ids(first), ids(second))
    pipeline = await run(source, {"first": first, "second": second}, journal=journal, accept_gap=True)
    assert (Gap("sink second", LSN(0), begins),) == pipeline.statistics().gaps
    assert [2, 3, 4] == ids(second)
    commit(5)
    await run(source, {"first": first, "second": second}, journal=journal)
    assert [2, 3, 4, 5] == ids(second)


async def test_a_sink_that_is_ahead_of_the_journal(stream, commit, tmp_path):
    """A sink that ran without a journal before gets each change once, and its cursor is valid."""
    sink, journal = MemorySink(keeps_position=True), str(tmp_path)
    commit(1)
    reached = commit(2)
    await run(MemorySource(stream=stream), {"s": sink})
    assert reached == sink.position.lsn
    # A slot of the same name, which stands before that.
    await run(MemorySource(stream=stream), {"s": sink}, journal=journal)
    commit(3)
    assert Cursors(journal).get("s").lsn <= JournalReader(journal).position().lsn
    await run(MemorySource(stream=stream), {"s": sink}, journal=journal)
    assert [1, 2, 3] == ids(sink)


async def test_a_sink_that_is_behind_the_journal(stream, commit, tmp_path):
    """A sink whose position is before a new journal is refused, or continues with an accepted gap."""
    sink, journal = MemorySink(keeps_position=True), str(tmp_path)
    ends = [commit(number) for number in range(3)]
    sink.position = sink._durable_position = stream.position.at(ends[0])
    source = MemorySource(stream=stream)
    source._state.confirmed = ends[1]
    with pytest.raises(SlotError, match=f"sink s is at {ends[0]}, but the journal begins at {ends[1]}"):
        await run(source, {"s": sink}, journal=journal)
    assert [] == ids(sink)
    pipeline = await run(source, {"s": sink}, journal=journal, accept_gap=True)
    assert (Gap("sink s", ends[0], ends[1]),) == pipeline.statistics().gaps
    assert [2] == ids(sink)


async def test_retention_waits_for_a_sink_that_was_restored(stream, commit, tmp_path, monkeypatch):
    """Nothing is pruned before every sink has returned its position, which may be before its cursor."""
    source, journal = MemorySource(stream=stream), str(tmp_path)
    sink, restored = MemorySink(keeps_position=True), MemorySink(keeps_position=True)
    ends = []
    for number in range(4):
        ends.append(commit(number))
        await run(source, {"s": sink}, journal=journal)
    assert [0, 1, 2, 3] == ids(sink)
    restored.position = restored._durable_position = stream.position.at(ends[0])
    cursors = []

    async def prune_once(url, retention, lock):
        cursors.append(Cursors(url).get("s").lsn)
        prune(url, retention=retention)

    monkeypatch.setattr(journal_upkeep, "keep_pruned", prune_once)
    await run(source, {"s": restored}, journal=journal, retention="0s")
    assert [ends[0]] == cursors
    assert [1, 2, 3] == ids(restored)
