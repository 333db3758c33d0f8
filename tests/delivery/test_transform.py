"""A worker with a transform: results, retries and failures."""

from __future__ import annotations

import pytest

from aiorepl import Batch, SinkError, TransientError
from aiorepl.testing.faults import FaultySink, MemorySink, Reject


async def test_changes_are_replaced_and_left_out(harness):
    """Changes are replaced and dropped, in order and with the same identities."""

    async def transform(change):
        if change.new["id"] == 2:
            return None
        return change.with_columns({"note": change.new["note"].upper()})

    sink = MemorySink()
    harness = harness(sink, transform=transform)
    end = harness.commit(1, 2, 3)
    await harness.finish()
    assert [(1, "SECRET 1", 0), (3, "SECRET 3", 2)] == [
        (change.new["id"], change.new["note"], change.ordinal) for change in sink.changes
    ]
    assert end == harness.ledger.flushed


async def test_each_change_is_transformed_once(harness):
    """Each change is transformed once, even if the write is repeated."""
    seen = []

    def transform(change):
        seen.append(change.new["id"])
        return change

    harness = harness(FaultySink(write=[Reject(TransientError("later"))]), transform=transform)
    harness.commit(1, 2)
    await harness.finish()
    assert [1, 2] == seen


async def test_a_transient_error_calls_it_again(harness, ids):
    """A TransientError of the transform is retried."""
    tries = []

    async def transform(change):
        tries.append(change)
        if len(tries) < 3:
            raise TransientError("the look-up is not there")
        return change

    sink = MemorySink()
    harness = harness(sink, transform=transform)
    harness.commit(1)
    await harness.finish()
    assert ([[1]], 3) == (ids(sink), len(tries))


@pytest.mark.parametrize("wrong", [lambda change: 1 / 0, lambda change: change.new, lambda change: Batch(())])
async def test_what_it_cannot_do_stops_the_sink(harness, wrong):
    """A failing transform stops the sink; the error does not contain the row."""
    harness = harness(MemorySink(), transform=wrong)
    begin = harness.ledger.flushed
    harness.commit(1)
    with pytest.raises(SinkError, match="sink s: its transform") as raised:
        await harness.finish()
    assert "secret" not in str(raised.value)
    assert begin == harness.ledger.flushed


async def test_or_makes_a_dead_letter_of_the_change(harness, ids):
    """A change whose transform fails becomes an untransformed dead letter; the others are delivered."""

    def transform(change):
        if change.new["id"] == 2:
            raise ValueError("secret 2")
        return change

    letters, sink = MemorySink(), MemorySink()
    harness = harness(sink, transform=transform, on_error="dead_letter", dead_letters=letters)
    harness.commit(1, 2, 3)
    await harness.finish()
    assert [[1, 3]] == ids(sink)
    assert [[2]] == ids(letters)
    assert "transform" == letters.batches[0].rejection.stage


async def test_what_fails_of_a_transaction_on_disk(harness, ids, tmp_path):
    """Spooled changes, which are new objects on each iteration, become dead letters as well."""

    def transform(change):
        if change.new["id"] % 2:
            raise ValueError
        return change

    letters, sink = MemorySink(), MemorySink()
    harness = harness(sink, transform=transform, on_error="dead_letter", dead_letters=letters)
    end = harness.commit_from_disk(tmp_path, 1, 2, 3, 4)
    await harness.finish()
    assert [2, 4] == [number for batch in ids(sink) for number in batch]
    assert [1, 3] == [number for batch in ids(letters) for number in batch]
    assert end == harness.ledger.flushed
