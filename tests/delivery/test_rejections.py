"""Changes that a sink will never take: what its policy makes of them, and that nothing else suffers."""

from __future__ import annotations

import pytest

from aiorepl import BatchPolicy, PermanentError, Selection, Sink, SinkContext, SinkError, TransientError
from aiorepl.testing.faults import FaultySink, MemorySink, Reject


class Picky(MemorySink):
    """Refuses rows by their ids: it names them, or fails as a whole."""

    def __init__(self, *refused: int, names: bool = True, keeps_position: bool = False) -> None:
        super().__init__(keeps_position=keeps_position)
        self.refused = set(refused)
        self.names = names
        self.writes = 0

    async def write(self, batch) -> None:
        self.writes += 1
        poison = [change for change in batch.changes if change.new["id"] in self.refused]
        if poison and not self.names:
            raise PermanentError("refused")
        await super().write(batch)
        if poison:
            taken = self.batches.pop()
            self.batches.append(
                type(taken)(
                    tuple(
                        type(part)(
                            part.transaction,
                            [change for change in part.changes if change.new["id"] not in self.refused],
                            part.first,
                            part.end_lsn,
                            part.size,
                        )
                        for part in taken.slices
                    )
                )
            )
            raise PermanentError("refused", refused=poison)


def flat(batches) -> list[int]:
    return [number for batch in batches for number in batch]


async def test_by_default_the_sink_stops(lane):
    """And nothing behind the last durable transaction is confirmed."""
    lane = lane(Picky(2))
    begin = lane.ledger.flushed
    lane.commit(1, 2)
    with pytest.raises(PermanentError):
        await lane.finish()
    assert begin == lane.ledger.flushed


async def test_named_changes_are_dead_letters(lane, ids):
    """They alone, with the reason; the batch counts as delivered."""
    letters = MemorySink()
    sink = Picky(2, 4)
    lane = lane(sink, on_error="dead_letter", dead_letters=letters)
    lane.commit(1, 2)
    end = lane.commit(3, 4)
    await lane.finish()
    assert [1, 3] == flat(ids(sink))
    assert [2, 4] == flat(ids(letters))
    refusal = letters.batches[0].rejection
    assert ("s", "PermanentError", "refused", "write") == (
        refusal.sink,
        refusal.kind,
        refusal.error,
        refusal.stage,
    )
    assert (1, 2, end) == (sink.writes, lane.runner.statistics.dead_letters, lane.ledger.flushed)


@pytest.mark.parametrize("selection", [None, Selection(drop=("*.*.note",))], ids=["whole", "selected"])
async def test_named_changes_that_are_on_disk(lane, ids, tmp_path, selection):
    """Changes that are new objects each time they are walked are matched by identity: none of them is lost."""
    letters, sink = MemorySink(), Picky(2, 4)
    lane = lane(sink, selection=selection, on_error="dead_letter", dead_letters=letters)
    end = lane.commit_from_disk(tmp_path, 1, 2, 3, 4, 5)
    await lane.finish()
    assert [1, 3, 5] == flat(ids(sink))
    assert [2, 4] == flat(ids(letters))
    assert (2, end) == (lane.runner.statistics.dead_letters, lane.ledger.flushed)


@pytest.mark.parametrize("named", ["another's", "a row"])
async def test_what_is_not_in_the_batch_cannot_be_refused(lane, named):
    """A sink that names something else may have lost a change, so it stops whatever its policy."""
    first = []

    class Confused(MemorySink):
        async def write(self, batch) -> None:
            await super().write(batch)
            first.extend(batch.changes)
            if batch.end_lsn == end:
                raise PermanentError("no", refused=[first[0] if named == "another's" else dict(first[0].new)])

    lane = lane(Confused(), batches=BatchPolicy(max_bytes=1, flush_seconds=0.01), on_error="skip")
    before = lane.commit(1)
    end = lane.commit(2)
    with pytest.raises(SinkError, match=r"not in the batch|not a change"):
        await lane.finish()
    assert lane.ledger.flushed <= before


async def test_a_position_passes_the_changes_that_were_named(lane):
    """A sink that leaves its position before a change that it refuses is told where that change's batch ended."""

    class Keeping(Picky):
        async def write(self, batch) -> None:
            before = self.position
            try:
                await super().write(batch)
            except PermanentError:
                self.position = before
                raise

    sink = Keeping(1, keeps_position=True)
    sink.position = (lane := lane(sink, keeps_position=True, on_error="skip")).stream.position
    await sink.open(SinkContext("s", lane.stream.position))
    end = lane.commit(1, 2)
    await lane.finish()
    assert [2] == [change.new["id"] for change in sink.changes]
    assert end == sink.position.lsn == lane.ledger.flushed


async def test_else_the_transactions_that_fail_by_themselves(lane, ids):
    """The others of the batch are delivered, in order."""
    letters = MemorySink()
    sink = Picky(3, names=False)
    lane = lane(sink, on_error="dead_letter", dead_letters=letters)
    lane.commit(1, 2)
    lane.commit(3, 4)
    end = lane.commit(5)
    await lane.finish()
    assert [1, 2, 5] == flat(ids(sink))
    assert [3, 4] == flat(ids(letters))
    assert end == lane.ledger.flushed


async def test_a_transaction_that_went_on_after_a_reconnect_is_one(lane, ids):
    """Its slices have headers of two connections; it is put aside whole all the same."""
    letters, sink = MemorySink(), Picky(3, names=False)
    lane = lane(sink, on_error="dead_letter", dead_letters=letters)
    lane.commit(1)
    end = lane.stream.transaction(*(lane.table.insert(str(number), "x") for number in (2, 3, 4)))
    first, *_ = lane.stream.slices(2)
    _, _, *rest = lane.stream.again(2)
    lane.ledger.complete(end)
    lane.window.extend([first, *rest])
    await lane.finish()
    assert [1] == flat(ids(sink))
    assert [2, 3, 4] == flat(ids(letters))
    assert end == lane.ledger.flushed


async def test_skipped_changes_are_counted(lane, ids):
    """And told in a log without what is in them."""
    sink = Picky(2)
    lane = lane(sink, on_error="skip")
    lane.commit(1, 2, 3)
    await lane.finish()
    assert [1, 3] == flat(ids(sink))
    assert (1, 0) == (lane.runner.statistics.skipped, lane.runner.statistics.dead_letters)


async def test_spent_retries_put_the_batch_aside_at_once(lane, ids):
    """Trying each transaction as long would take as many times as long, for a peer that is not there."""
    letters = MemorySink()
    sink = FaultySink(write=[Reject(TransientError("away"))] * 3)
    lane = lane(sink, on_error="dead_letter", dead_letters=letters)
    lane.commit(1)
    lane.commit(2)
    await lane.finish()
    assert [1, 2] == flat(ids(letters))
    assert 3 == sink.calls.count("write")


async def test_a_position_passes_what_was_put_aside(lane):
    """A sink that keeps its position is told where a refused transaction ended."""
    sink = Picky(1, names=False, keeps_position=True)
    lane = lane(sink, keeps_position=True, on_error="skip")
    end = lane.commit(1)
    await lane.finish()
    assert [] == sink.changes
    assert end == sink.batches[-1].end_lsn == lane.ledger.flushed


async def test_a_part_of_a_transaction_is_never_put_aside(lane):
    """The sink has the rest of it, or has undone it: half a transaction would be lost without a trace."""
    sink = Picky(4, names=False)
    lane = lane(sink, batches=BatchPolicy(max_bytes=1, flush_seconds=0.01), on_error="skip")
    begin = lane.ledger.flushed
    lane.commit(1, 2, 3, 4, 5, at_once=2)
    with pytest.raises(SinkError, match="larger than a batch"):
        await lane.finish()
    assert begin == lane.ledger.flushed


async def test_a_flush_that_fails_halts(lane):
    """What was accepted is not known any more: there is nothing to put aside."""
    sink = FaultySink(flush=[Reject(PermanentError("disk gone"))])
    lane = lane(sink, on_error="skip")
    begin = lane.ledger.flushed
    lane.commit(1)
    with pytest.raises(PermanentError, match="disk gone"):
        await lane.finish()
    assert begin == lane.ledger.flushed


async def test_dead_letters_that_cannot_be_written_halt(lane):
    """Nothing counts as delivered."""
    letters = FaultySink(write=[Reject(PermanentError("full"))])
    lane = lane(Picky(1), on_error="dead_letter", dead_letters=letters)
    begin = lane.ledger.flushed
    lane.commit(1)
    with pytest.raises(PermanentError, match="full"):
        await lane.finish()
    assert begin == lane.ledger.flushed


async def test_what_is_final_stops_the_sink(lane):
    """Whatever its policy: a receiver that is gone would make dead letters of all the stream."""
    letters = MemorySink()
    sink = FaultySink(write=[Reject(PermanentError("gone", fatal=True))])
    lane = lane(sink, on_error="dead_letter", dead_letters=letters)
    begin = lane.ledger.flushed
    lane.commit(1)
    with pytest.raises(PermanentError, match="gone"):
        await lane.finish()
    assert ([], begin) == (letters.batches, lane.ledger.flushed)


async def test_any_exception_is_a_refusal(lane, ids):
    """A bug in a sink as well; its text, which may quote the row, is not told."""
    letters = MemorySink()

    class Buggy(Sink):
        async def write(self, batch) -> None:
            raise KeyError("secret 1")

    lane = lane(Buggy(), on_error="dead_letter", dead_letters=letters)
    lane.commit(1)
    await lane.finish()
    assert [[1]] == ids(letters)
    assert "secret" not in letters.batches[0].rejection.error
