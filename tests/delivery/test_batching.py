"""Batches have every slice once and in order, and whole transactions unless one is larger than a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import LSN, BatchPolicy, ConfigurationError, Slice, Transaction
from aiorepl.delivery.batching import Batcher

LIMIT = 100

# Transactions as the sizes of their slices.
transactions = st.lists(st.lists(st.integers(0, 70), min_size=1, max_size=5), max_size=12)


def slices(sizes: list[list[int]]) -> list[Slice]:
    """Return the slices of these transactions, without changes: only sizes and ends matter."""
    return [
        Slice(None, (), place == 0, LSN(number + 1) if place == len(parts) - 1 else None, size)
        for number, parts in enumerate(sizes)
        for place, size in enumerate(parts)
    ]


def drain(batcher: Batcher):
    """Return all batches that are ready."""
    while (batch := batcher.take()) is not None:
        yield batch


@given(transactions, st.lists(st.booleans(), min_size=60, max_size=60))
def test_every_slice_once_in_order(sizes, looks):
    """Batches have every slice once and in order, whenever they are taken."""
    parts, batcher, batches = slices(sizes), Batcher(LIMIT), []
    for part, look in zip(parts, looks, strict=False):
        if look or batcher.full:
            batches += drain(batcher)
        batcher.add(part)
    batches += drain(batcher)
    assert not batcher.has_partial
    assert parts == [part for batch in batches for part in batch.slices]


@given(transactions)
def test_a_transaction_that_fits_is_not_cut(sizes):
    """A batch has all of a transaction or none of it, unless the transaction is as large as a batch; no batch is much larger."""
    parts, batcher, batches = slices(sizes), Batcher(LIMIT), []
    for part in parts:
        while batcher.full and (batch := batcher.take()) is not None:
            batches.append(batch)
        batcher.add(part)
    batches += drain(batcher)

    numbers = [number for number, sizes_of_one in enumerate(sizes) for _ in sizes_of_one]
    number_of = dict(zip(map(id, parts), numbers, strict=True))
    for batch in batches:
        held = [number_of[id(part)] for part in batch.slices]
        for number in set(held):
            assert held.count(number) == len(sizes[number]) or sum(sizes[number]) >= LIMIT
        assert batch.size < LIMIT + 70


def test_a_transaction_under_way_can_be_taken_early():
    """The slices of an unfinished transaction can be taken when memory cannot hold the rest."""
    batcher = Batcher(LIMIT)
    first, last = slices([[10, 10]])
    batcher.add(first)
    assert (None, True) == (batcher.take(), batcher.has_partial)
    assert [first] == list(batcher.take_partial().slices)
    assert not batcher.has_partial
    batcher.add(last)
    assert [last] == list(batcher.take().slices)


def rows(counts: list[list[int]]) -> list[Slice]:
    """Return slices with these numbers of changes, each change a number and one byte."""
    numbers = iter(range(1000))
    headers = [Transaction(number, LSN(number + 1), 0) for number in range(len(counts))]
    return [
        Slice(
            headers[number],
            [next(numbers) for _ in range(count)],
            place == 0,
            LSN(number + 1) if place == len(parts) - 1 else None,
            count,
        )
        for number, parts in enumerate(counts)
        for place, count in enumerate(parts)
    ]


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), max_size=8),
    st.integers(1, 9),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_no_batch_has_more_rows(counts, most, looks):
    """Every change comes once, in order and in its transaction; a transaction that fits is not split, and every slice is counted once."""
    parts, batcher, batches, done = rows(counts), Batcher(10_000, most), [], 0

    def drained() -> int:
        taken = list(drain(batcher))
        batches.extend(taken)
        return sum(map(batcher.added, taken))

    for part, look in zip(parts, looks, strict=False):
        if look or batcher.full:
            done += drained()
            assert not batcher.full
        batcher.add(part)
    done += drained()

    given_out = [part for batch in batches for part in batch.slices]
    assert len(parts) == done
    assert list(range(sum(map(sum, counts)))) == [change for part in given_out for change in part.changes]
    assert all(part.size == len(part.changes) for part in given_out)
    for batch in batches:
        assert len(batch) <= most
    for number, sizes in enumerate(counts):
        own = [part for part in given_out if part.transaction.xid == number]
        assert [True] + [False] * (len(own) - 1) == [part.first for part in own]
        assert [None] * (len(own) - 1) + [LSN(number + 1)] == [part.end_lsn for part in own]
        held = [batch for batch in batches if any(part in own for part in batch.slices)]
        assert len(held) == 1 or sum(sizes) > most


def test_a_batch_ends_with_a_transaction():
    """A transaction that does not fit after others by its rows begins the next batch."""
    batcher = Batcher(10_000, 6)
    for part in rows([[3], [2, 2]]):
        batcher.add(part)

    assert [[3], [2, 2]] == [[len(part.changes) for part in batch.slices] for batch in drain(batcher)]


def test_rows_of_a_transaction_that_was_taken_early():
    """The rows of slices that were taken early do not count any more."""
    batcher = Batcher(10_000, 4)
    first, second, third = rows([[3, 3, 1]])
    batcher.add(first)
    assert [first] == list(batcher.take_partial().slices)
    batcher.add(second)
    assert (False, None) == (batcher.full, batcher.take())
    batcher.add(third)
    assert (True, [second, third]) == (batcher.full, list(batcher.take().slices))
    assert not batcher.full


@pytest.mark.parametrize("taken_early", [False, True])
def test_bytes_that_were_taken(taken_early):
    """A batch is full at exactly its limit, and bytes that were taken do not count any more."""
    batcher = Batcher(LIMIT)
    parts = slices([[LIMIT - 1, 1]] if taken_early else [[LIMIT - 1], [1]])
    for _ in range(2):
        batcher.add(parts[0])
        assert not batcher.full
        if taken_early:
            assert batcher.take() is None
            batcher.take_partial()
            batcher.add(parts[0])
            batcher.add(Slice(None, (), False, None, 1))
        else:
            batcher.add(parts[1])
        assert batcher.full
        assert LIMIT == batcher.take().size
        assert not batcher.full
        assert batcher.take() is None


def test_as_many_rows_as_fit():
    """A transaction of exactly as many rows as fit waits for its end, beside a whole one it makes the batch full."""
    batcher = Batcher(10_000, 4)
    whole, first = rows([[1], [4, 0]])[:2]
    batcher.add(first)
    assert (False, None) == (batcher.full, batcher.take())
    batcher.take_partial()
    batcher.add(whole)
    assert not batcher.full
    batcher.add(first)
    assert batcher.full


def test_the_least_amounts():
    """One byte, one row and no seconds are amounts."""
    policy = BatchPolicy(max_bytes=1, max_rows=1, flush_bytes=1, linger=0, flush_seconds=0)
    assert (1, 1, 1) == (policy.max_bytes, policy.max_rows, policy.flush_bytes)


@pytest.mark.parametrize(
    "wrong",
    [{"max_bytes": 0}, {"max_rows": 0}, {"flush_bytes": 0}, {"linger": -1}, {"flush_seconds": float("inf")}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_is_no_amount(wrong):
    """The policy rejects the value and names the option."""
    with pytest.raises(ConfigurationError, match=f"batches: {next(iter(wrong))} is "):
        BatchPolicy(**wrong)


def test_the_defaults():
    """Batches of 1 MiB without waiting, and a flush after 64 MiB or a second."""
    policy = BatchPolicy()
    assert (2**20, None, 0.0) == (policy.max_bytes, policy.max_rows, policy.linger)
    assert (64 * 2**20, 1.0) == (policy.flush_bytes, policy.flush_seconds)
