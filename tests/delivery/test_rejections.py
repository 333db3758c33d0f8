"""Changes that a sink rejects are handled by its policy, and nothing else is affected."""

from __future__ import annotations

import pytest

from aiorepl import BatchPolicy, PermanentError, Selection, Sink, SinkContext, SinkError, TransientError
from aiorepl.delivery import writer
from aiorepl.testing.faults import FaultySink, MemorySink, Reject


class Picky(MemorySink):
    """Rejects rows by their ids: it names them, or fails as a whole."""

    def __init__(self, *rejected: int, names: bool = True, keeps_position: bool = False) -> None:
        super().__init__(keeps_position=keeps_position)
        self.rejected = set(rejected)
        self.names = names
        self.writes = 0

    async def write(self, batch) -> None:
        self.writes += 1
        poison = [change for change in batch.changes if change.new["id"] in self.rejected]
        if poison and not self.names:
            raise PermanentError("rejected")
        await super().write(batch)
        if poison:
            taken = self.batches.pop()
            self.batches.append(
                type(taken)(
                    tuple(
                        type(part)(
                            part.transaction,
                            [change for change in part.changes if change.new["id"] not in self.rejected],
                            part.first,
                            part.end_lsn,
                            part.size,
                        )
                        for part in taken.slices
                    )
                )
            )
            raise PermanentError("rejected", rejected=poison)


def flat(batches) -> list[int]:
    return [number for batch in batches for number in batch]


async def test_by_default_the_sink_stops(harness):
    """With ``halt`` the sink stops, and nothing after the last durable transaction is confirmed."""
    harness = harness(Picky(2))
    begin = harness.ledger.flushed
    harness.commit(1, 2)
    with pytest.raises(PermanentError):
        await harness.finish()
    assert begin == harness.ledger.flushed


async def test_named_changes_are_dead_letters(harness, ids):
    """Only the named changes become dead letters, with the reason; the batch counts as delivered."""
    letters = MemorySink()
    sink = Picky(2, 4)
    harness = harness(sink, on_error="dead_letter", dead_letters=letters)
    harness.commit(1, 2)
    end = harness.commit(3, 4)
    await harness.finish()
    assert [1, 3] == flat(ids(sink))
    assert [2, 4] == flat(ids(letters))
    rejection = letters.batches[0].rejection
    assert ("s", "PermanentError", "rejected", "write") == (
        rejection.sink,
        rejection.kind,
        rejection.error,
        rejection.stage,
    )
    assert (1, 2, end) == (sink.writes, harness.worker.statistics.dead_letters, harness.ledger.flushed)


@pytest.mark.parametrize("selection", [None, Selection(drop=("*.*.note",))], ids=["whole", "selected"])
async def test_named_changes_that_are_on_disk(harness, ids, tmp_path, selection):
    """Spooled changes, which are new objects on each iteration, are matched by identity, and none is lost."""
    letters, sink = MemorySink(), Picky(2, 4)
    harness = harness(sink, selection=selection, on_error="dead_letter", dead_letters=letters)
    end = harness.commit_from_disk(tmp_path, 1, 2, 3, 4, 5)
    await harness.finish()
    assert [1, 3, 5] == flat(ids(sink))
    assert [2, 4] == flat(ids(letters))
    assert (2, end) == (harness.worker.statistics.dead_letters, harness.ledger.flushed)


@pytest.mark.parametrize("named", ["another's", "a row"])
async def test_what_is_not_in_the_batch_cannot_be_refused(harness, named):
    """A sink that names something else stops whatever its policy, because a change may be lost."""
    first = []

    class Confused(MemorySink):
        async def write(self, batch) -> None:
            await super().write(batch)
            first.extend(batch.changes)
            if batch.end_lsn == end:
                raise PermanentError(
                    "no", rejected=[first[0] if named == "another's" else dict(first[0].new)]
                )

    harness = harness(Confused(), batches=BatchPolicy(max_bytes=1, flush_seconds=0.01), on_error="skip")
    before = harness.commit(1)
    end = harness.commit(2)
    with pytest.raises(SinkError, match=r"not in its batch|not a change"):
        await harness.finish()
    assert harness.ledger.flushed <= before


async def test_a_position_passes_the_changes_that_were_named(harness):
    """A sink that keeps its position before a rejected change gets the end of that change's batch."""

    class Keeping(Picky):
        async def write(self, batch) -> None:
            before = self.position
            try:
                await super().write(batch)
            except PermanentError:
                self.position = before
                raise

    sink = Keeping(1, keeps_position=True)
    sink.position = (harness := harness(sink, keeps_position=True, on_error="skip")).stream.position
    await sink.open(SinkContext("s", harness.stream.position))
    end = harness.commit(1, 2)
    await harness.finish()
    assert [2] == [change.new["id"] for change in sink.changes]
    assert end == sink.position.lsn == harness.ledger.flushed


async def test_else_the_transactions_that_fail_by_themselves(harness, ids):
    """Transactions that fail alone become dead letters; the others are delivered in order."""
    letters = MemorySink()
    sink = Picky(3, names=False)
    harness = harness(sink, on_error="dead_letter", dead_letters=letters)
    harness.commit(1, 2)
    harness.commit(3, 4)
    end = harness.commit(5)
    await harness.finish()
    assert [1, 2, 5] == flat(ids(sink))
    assert [3, 4] == flat(ids(letters))
    assert end == harness.ledger.flushed


async def test_a_transaction_that_went_on_after_a_reconnect_is_one(harness, ids):
    """A transaction whose slices have headers of two connections becomes a dead letter as a whole."""
    letters, sink = MemorySink(), Picky(3, names=False)
    harness = harness(sink, on_error="dead_letter", dead_letters=letters)
    harness.commit(1)
    end = harness.stream.transaction(*(harness.table.insert(str(number), "x") for number in (2, 3, 4)))
    first, *_ = harness.stream.slices(2)
    _, _, *rest = harness.stream.again(2)
    harness.ledger.complete(end)
    harness.buffer.extend([first, *rest])
    await harness.finish()
    assert [1] == flat(ids(sink))
    assert [2, 3, 4] == flat(ids(letters))
    assert end == harness.ledger.flushed


async def test_skipped_changes_are_counted(harness, ids):
    """Skipped changes are counted, and logged without their contents."""
    sink = Picky(2)
    harness = harness(sink, on_error="skip")
    harness.commit(1, 2, 3)
    await harness.finish()
    assert [1, 3] == flat(ids(sink))
    assert (1, 0) == (harness.worker.statistics.skipped, harness.worker.statistics.dead_letters)


async def test_spent_retries_put_the_batch_aside_at_once(harness, ids):
    """Once retries are spent, the whole batch becomes dead letters without retries for each transaction."""
    letters = MemorySink()
    sink = FaultySink(write=[Reject(TransientError("away"))] * 3)
    harness = harness(sink, on_error="dead_letter", dead_letters=letters)
    harness.commit(1)
    harness.commit(2)
    await harness.finish()
    assert [1, 2] == flat(ids(letters))
    assert 3 == sink.calls.count("write")


async def test_a_position_passes_what_was_put_aside(harness):
    """A sink that keeps its position gets the end of a transaction that became a dead letter."""
    sink = Picky(1, names=False, keeps_position=True)
    harness = harness(sink, keeps_position=True, on_error="skip")
    end = harness.commit(1)
    await harness.finish()
    assert [] == sink.changes
    assert end == sink.batches[-1].end_lsn == harness.ledger.flushed


async def test_a_part_of_a_transaction_is_never_put_aside(harness):
    """A part of a transaction never becomes a dead letter; the sink halts instead."""
    sink = Picky(4, names=False)
    harness = harness(sink, batches=BatchPolicy(max_bytes=1, flush_seconds=0.01), on_error="skip")
    begin = harness.ledger.flushed
    harness.commit(1, 2, 3, 4, 5, at_once=2)
    with pytest.raises(SinkError, match="larger than a batch"):
        await harness.finish()
    assert begin == harness.ledger.flushed


@pytest.mark.parametrize(
    "rejected", [(1, 6, 10), tuple(range(1, 11)), (10,)], ids=["some", "all", "the last"]
)
@pytest.mark.parametrize("names", [False, True])
async def test_rows_of_a_chunk(harness, ids, rejected, names):
    """Rows of a snapshot do not belong together: whatever the batches, only the rejected ones are diverted, and the chunk ends."""
    letters = MemorySink()
    sink = Picky(*rejected, names=names, keeps_position=True)
    policy = BatchPolicy(max_rows=4, flush_seconds=0.01)
    harness = harness(sink, on_error="dead_letter", dead_letters=letters, batches=policy, keeps_position=True)
    end = harness.chunk(*range(1, 11), at_once=60)
    await harness.finish()
    assert [number for number in range(1, 11) if number not in rejected] == flat(ids(sink))
    assert sorted(rejected) == flat(ids(letters))
    assert end == harness.ledger.flushed == sink.batches[-1].end_lsn
    assert 1 == sum(part.first for batch in sink.batches for part in batch.slices if part.transaction)


async def test_a_chunk_that_is_rejected_whole(harness, ids, monkeypatch):
    """The sink is not asked for each row, if it accepts none."""
    monkeypatch.setattr(writer, "_MOST_FAILURES", 5)
    letters = MemorySink()
    sink = Picky(*range(1, 101), names=False)
    harness = harness(sink, on_error="dead_letter", dead_letters=letters)
    harness.chunk(*range(1, 101), at_once=10**6)
    await harness.finish()
    assert [*range(1, 101)] == flat(ids(letters))
    assert sink.writes < 15


async def test_a_flush_that_fails_halts(harness):
    """A failed flush halts the sink whatever its policy, because the accepted changes are gone from memory."""
    sink = FaultySink(flush=[Reject(PermanentError("disk gone"))])
    harness = harness(sink, on_error="skip")
    begin = harness.ledger.flushed
    harness.commit(1)
    with pytest.raises(PermanentError, match="disk gone"):
        await harness.finish()
    assert begin == harness.ledger.flushed


async def test_dead_letters_that_cannot_be_written_halt(harness):
    """If dead letters cannot be written, nothing counts as delivered."""
    letters = FaultySink(write=[Reject(PermanentError("full"))])
    harness = harness(Picky(1), on_error="dead_letter", dead_letters=letters)
    begin = harness.ledger.flushed
    harness.commit(1)
    with pytest.raises(PermanentError, match="full"):
        await harness.finish()
    assert begin == harness.ledger.flushed


async def test_what_is_final_stops_the_sink(harness):
    """A fatal error stops the sink whatever its policy; otherwise the whole stream would become dead letters."""
    letters = MemorySink()
    sink = FaultySink(write=[Reject(PermanentError("gone", fatal=True))])
    harness = harness(sink, on_error="dead_letter", dead_letters=letters)
    begin = harness.ledger.flushed
    harness.commit(1)
    with pytest.raises(PermanentError, match="gone"):
        await harness.finish()
    assert ([], begin) == (letters.batches, harness.ledger.flushed)


async def test_any_exception_is_a_refusal(harness, ids):
    """Any exception of a sink is a rejection; its text, which may quote the row, appears nowhere."""
    letters = MemorySink()

    class Buggy(Sink):
        async def write(self, batch) -> None:
            raise KeyError("secret 1")

    harness = harness(Buggy(), on_error="dead_letter", dead_letters=letters)
    harness.commit(1)
    await harness.finish()
    assert [[1]] == ids(letters)
    assert "secret" not in letters.batches[0].rejection.error
