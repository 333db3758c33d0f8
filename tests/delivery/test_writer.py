"""The calls that a sink gets from its writer, one by one, when it rejects changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from aiorepl import (
    Batch,
    BatchPolicy,
    PermanentError,
    RetryPolicy,
    Sink,
    SinkContext,
    SinkError,
    TransientError,
)
from aiorepl.delivery import writer
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.partitioning import by_key
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.writer import SinkWriter
from aiorepl.errors import DataError, SlotError
from aiorepl.source.catalog.tables import CatalogTable, TableCatalog
from aiorepl.testing.faults import FaultySink, MemorySink, Reject
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

QUICK = RetryPolicy(attempts=2, wait_initial=0.001, wait_max=0.002)
ID = column("id", 23, key=True)
UNNAMED = PermanentError("no")


class Rejecting(MemorySink):
    """Raises what ``reject`` returns for a batch; keeps all calls, and the batches that it has accepted.

    :param reject: returns the error of a write; ``None`` accepts the batch.
    """

    def __init__(self, reject: Callable[[Batch], Exception | None]) -> None:
        super().__init__()
        self.reject = reject
        self.calls: list[Batch] = []

    async def write(self, batch: Batch) -> None:
        self.calls.append(batch)
        if (error := self.reject(batch)) is not None:
            raise error
        await super().write(batch)


def rows(batch: Batch) -> list[str]:
    """Return the ids of the batch's rows, and ``truncate`` for a truncate."""
    return [change.kind if change.kind == "truncate" else str(change.new["id"]) for change in batch.changes]


def having(*rejected: str, error: Exception = UNNAMED) -> Callable[[Batch], Exception | None]:
    """Reject batches that have one of these rows."""
    return lambda batch: error if set(rejected) & set(rows(batch)) else None


def write_to(sink: Sink, *, keeps_position: bool = False, catalog: TableCatalog | None = None, **choices):
    """Return a writer, its statistics and its dead letters."""
    letters = MemorySink()
    if choices.get("on_error") == "dead_letter":
        choices["dead_letters"] = letters
    delivery = ResolvedDelivery(sink, BatchPolicy(), QUICK, **choices)
    statistics = SinkStatistics("s")
    made = SinkWriter("s", delivery, statistics, keeps_position=keeps_position, catalog=catalog)
    return made, statistics, letters


def chunk(*numbers: int, truncates: bool = False, at_once: int | None = None) -> Batch:
    """Return a chunk of a snapshot with these rows."""
    stream = Stream()
    table = stream.table("t", ID)
    stream.snapshot(table, *(table.insert(str(number)) for number in numbers))
    slices = stream.slices(at_once)
    if truncates:
        stream.transaction(table.truncate())
        changes = [*stream.slices()[0].changes, *slices[0].changes]
        slices[0] = replace(slices[0], changes=changes)
    return Batch(tuple(slices))


def transaction(*numbers: int) -> Batch:
    """Return a transaction that inserts these rows."""
    stream = Stream()
    table = stream.table("t", ID)
    stream.transaction(*(table.insert(str(number)) for number in numbers))
    return Batch(tuple(stream.slices()))


@pytest.mark.parametrize("error", [UNNAMED, ValueError()], ids=repr)
async def test_the_calls_for_a_chunk(error):
    """The sink gets halves of the rows, in order, then the end; only the first piece that it accepts begins the chunk."""
    sink, batch = Rejecting(having("1", error=error)), chunk(*range(8))
    write, statistics, letters = write_to(sink, on_error="dead_letter")
    await write.write(batch)
    (whole,) = batch.slices
    assert ["01234567", "0123", "01", "0", "1", "23", "4567", ""] == [
        "".join(rows(call)) for call in sink.calls
    ]
    pieces = [piece for accepted in sink.batches for piece in accepted.slices]
    assert [
        (True, None, whole.size // 8),
        (False, None, whole.size // 4),
        (False, None, whole.size // 2),
        (False, whole.end_lsn, 0),
    ] == [(piece.first, piece.end_lsn, piece.size) for piece in pieces]
    assert len(sink.batches) == statistics.write_seconds.count
    ((letter,),) = (each.slices for each in letters.batches)
    assert (False, None, 0, "write") == (
        letter.first,
        letter.end_lsn,
        letter.size,
        letters.batches[0].rejection.stage,
    )


async def test_a_chunk_of_rejected_rows():
    """The end alone begins the chunk and ends it."""
    sink = Rejecting(having("1"))
    write, statistics, _ = write_to(sink, on_error="skip")
    await write.write(chunk(1))
    assert [["1"], ["1"], []] == list(map(rows, sink.calls))
    assert [True] == [piece.first for piece in sink.batches[0].slices]
    assert 1 == statistics.skipped


async def test_a_part_of_a_chunk():
    """The middle of a chunk is written without a begin and an end."""
    batch = chunk(*range(8), at_once=4)
    _, middle, *_ = batch.slices
    first, *others = rows(Batch((middle,)))
    sink = Rejecting(having(first))
    write, *_ = write_to(sink, on_error="skip")
    await write.write(Batch((middle,)))
    assert others == [row for accepted in sink.batches for row in rows(accepted)]
    assert all(map(len, sink.batches))
    assert {(False, None)} == {
        (piece.first, piece.end_lsn) for accepted in sink.batches for piece in accepted.slices
    }


async def test_a_chunk_that_is_only_too_large():
    """If every half is accepted, nothing is diverted."""
    sink = Rejecting(lambda batch: UNNAMED if len(batch) > 2 else None)
    write, _, letters = write_to(sink, on_error="dead_letter")
    await write.write(chunk(*range(4)))
    assert [["0", "1"], ["2", "3"], []] == list(map(rows, sink.batches))
    assert [] == letters.batches


async def test_a_chunk_without_rows_that_is_rejected():
    """The chunk is skipped."""
    sink = Rejecting(lambda _: UNNAMED)
    write, statistics, _ = write_to(sink, on_error="skip")
    await write.write(chunk())
    assert (1, 0) == (len(sink.calls), statistics.skipped)


async def test_the_truncate_of_a_chunk_comes_first():
    """The truncate is written alone, before the rows."""
    sink = Rejecting(having("1"))
    write, *_ = write_to(sink, on_error="skip")
    await write.write(chunk(0, 1, truncates=True))
    assert [["truncate"], ["0"], []] == list(map(rows, sink.batches))


@pytest.mark.parametrize("numbers", [(), (0, 1)], ids=["alone", "with rows"])
async def test_a_truncate_that_is_rejected(numbers):
    """It is never skipped, because the sink would have the rows after it twice."""
    error = PermanentError("no truncate")
    sink = Rejecting(having("truncate", error=error))
    write, statistics, _ = write_to(sink, on_error="skip")
    with pytest.raises(PermanentError, match="no truncate"):
        await write.write(chunk(*numbers, truncates=True))
    assert ([], 0) == (sink.batches, statistics.skipped)
    assert 2 == len(sink.calls)


@pytest.mark.parametrize("error", [TransientError("away"), PermanentError("gone", fatal=True)], ids=repr)
async def test_a_sink_that_fails_while_rows_are_looked_for(error):
    """An error that is no rejection of rows is raised."""
    sink = Rejecting(lambda batch: UNNAMED if len(batch) > 2 else error)
    write, statistics, _ = write_to(sink, on_error="skip")
    with pytest.raises(type(error), match=str(error)):
        await write.write(chunk(*range(4)))
    assert 0 == statistics.skipped


async def test_rows_that_are_named_in_a_half():
    """Once the sink names rejected rows of a half, it gets the half's other rows."""

    def reject(batch: Batch) -> Exception | None:
        named = [change for change in batch.changes if change.new["id"] == 1]
        return UNNAMED if len(batch) > 2 else PermanentError("no", rejected=named) if named else None

    sink = Rejecting(reject)
    write, _, letters = write_to(sink, on_error="dead_letter")
    await write.write(chunk(*range(4)))
    assert [["0", "1", "2", "3"], ["0", "1"], ["2", "3"], []] == list(map(rows, sink.calls))
    assert [["1"]] == list(map(rows, letters.batches))
    assert [False, False] == [piece.first for accepted in sink.batches for piece in accepted.slices]


@pytest.mark.parametrize(("most", "calls"), [(2, 4), (3, 6), (5, 6), (6, 8)])
async def test_the_number_of_failures_is_limited(monkeypatch, most, calls):
    """After the most failures, a piece that fails is rejected as a whole."""
    monkeypatch.setattr(writer, "_MOST_FAILURES", most)
    sink = Rejecting(lambda batch: UNNAMED if batch.changes else None)
    write, statistics, _ = write_to(sink, on_error="skip")
    await write.write(chunk(*range(4)))
    assert calls == len(sink.calls)
    assert 4 == statistics.skipped


async def test_spent_retries_of_a_chunk():
    """The chunk is diverted as a whole, because each half would fail in the same way."""
    sink = Rejecting(lambda _: TransientError("away"))
    write, statistics, _ = write_to(sink, on_error="skip")
    await write.write(chunk(*range(4)))
    assert (2, 4) == (len(sink.calls), statistics.skipped)


@pytest.mark.parametrize("whole", [True, False])
async def test_the_position_of_a_sink_moves_past_a_rejected_end(whole):
    """An empty batch ends where the rejected one did; a batch without an end has no position."""
    batch = transaction(1, 2)
    if not whole:
        batch = Batch((replace(batch.slices[0], end_lsn=None),))

    def reject(batch: Batch) -> Exception | None:
        return PermanentError("no", rejected=batch.changes[:1]) if batch.changes else None

    sink = Rejecting(reject)
    write, statistics, _ = write_to(sink, on_error="skip", keeps_position=True)
    await write.write(batch)
    assert [batch, *sink.batches] == sink.calls
    assert len(sink.batches) == statistics.write_seconds.count
    assert [(None, (), True, batch.end_lsn, 0)] * whole == [
        (piece.transaction, piece.changes, piece.first, piece.end_lsn, piece.size)
        for accepted in sink.batches
        for piece in accepted.slices
    ]


def part_of(begin: bool, end: bool) -> Batch:
    """Return slices of one transaction: with its begin, with its end."""
    stream = Stream()
    table = stream.table("t", ID)
    stream.transaction(*(table.insert(str(number)) for number in range(9)))
    slices = stream.slices(3)
    assert len(slices) > 2
    return Batch(tuple(slices[0 if begin else 1 : None if end else -1]))


@pytest.mark.parametrize(("begin", "end"), [(True, True), (True, False), (False, True), (False, False)])
async def test_only_whole_transactions_are_diverted(begin, end):
    """Parts are diverted only for a concurrent sink, which never gets whole transactions."""
    batch = part_of(begin, end)
    sink = Rejecting(lambda _: UNNAMED)
    write, statistics, _ = write_to(sink, on_error="skip")
    if begin and end:
        await write.write(batch)
    else:
        with pytest.raises(SinkError, match="larger than a batch"):
            await write.write(batch)
    assert (len(batch) if begin and end else 0) == statistics.skipped

    sink.concurrent = True
    write, statistics, _ = write_to(sink, on_error="skip")
    await write.write(batch)
    assert len(batch) == statistics.skipped


async def test_a_prepared_transaction_is_not_diverted():
    """The transaction may still be rolled back."""
    stream = Stream()
    table = stream.table("t", ID)
    stream.prepare("g", table.insert("1"))
    write, *_ = write_to(Rejecting(lambda _: UNNAMED), on_error="skip")
    with pytest.raises(
        SinkError, match=r"rejects the transaction prepared at 0/\w+, which cannot be diverted"
    ):
        await write.write(Batch(tuple(stream.slices())))


async def test_slices_without_rejected_changes():
    """Dead letters have only slices with rejected changes."""
    batch = part_of(begin=True, end=True)
    last = batch.slices[-1] if len(batch.slices[-1].changes) else batch.slices[-2]
    sink = Rejecting(lambda batch: PermanentError("no", rejected=[last.changes[0]]))
    write, _, letters = write_to(sink, on_error="dead_letter")
    await write.write(batch)
    assert [(last.changes[0],)] == [tuple(piece.changes) for piece in letters.batches[0].slices]
    assert letters.batches == letters.durable_batches


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
@pytest.mark.parametrize("outside", [True, False], ids=["message", "transaction"])
async def test_the_log_of_rejected_changes(caplog, on_error, outside):
    """The log names the commit LSN of the first change, unless it is in no transaction."""
    stream = Stream()
    if outside:
        stream.message("m")
    else:
        table = stream.table("t", ID)
        stream.transaction(table.insert("1"))
    batch = Batch(tuple(stream.slices()))
    write, *_ = write_to(Rejecting(lambda _: UNNAMED), on_error=on_error)
    with caplog.at_level(logging.WARNING, "aiorepl.sink"):
        await write.write(batch)
    where = "" if outside else f" from {batch.slices[0].transaction.commit_lsn} on"
    what = "skipped" if on_error == "skip" else "dead letters"
    assert [f"sink s: 1 changes{where} are {what}: no"] == caplog.messages


@pytest.mark.parametrize("failing", ["write", "flush"])
async def test_errors_of_dead_letters_name_them(failing):
    """The error of a call says that the sink is for dead letters."""
    letters = FaultySink(**{failing: [Reject(ValueError("secret"))]})
    delivery = ResolvedDelivery(
        Rejecting(lambda _: UNNAMED), BatchPolicy(), QUICK, on_error="dead_letter", dead_letters=letters
    )
    write = SinkWriter("s", delivery, SinkStatistics("s"), keeps_position=False)
    with pytest.raises(SinkError, match=f"^sink s: {failing} of its dead letters raised ValueError"):
        await write.write(transaction(1))


CONTEXT = SinkContext("s", Stream().position)
CALLS = {
    "open": lambda write: write.reopen(CONTEXT),
    "write": lambda write: write.write(transaction(1)),
    "flush": lambda write: write.flush(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_errors_name_the_call(call):
    """The error names the exception's type and the call, without the exception's text."""
    write, *_ = write_to(FaultySink(**{call: [Reject(ValueError("secret"))]}))
    with pytest.raises(SinkError, match=f"^sink s: {call} raised ValueError"):
        await CALLS[call](write)


@pytest.mark.parametrize("call", ["write", "flush"])
async def test_statistics_of_repeated_calls(call):
    """While a call is repeated, the statistics have its error and the time of the next attempt. Only a call that succeeds is timed."""
    seen = []

    class Seeing(FaultySink):
        async def write(self, batch: Batch) -> None:
            seen.append((statistics.retrying, statistics.next_attempt is None))
            await super().write(batch)

        async def flush(self) -> None:
            seen.append((statistics.retrying, statistics.next_attempt is None))
            await super().flush()

    write, statistics, _ = write_to(Seeing(**{call: [Reject(TransientError("away"))]}))
    await CALLS[call](write)
    assert [(None, True), ("away", False)] == seen
    assert (None, None, 1) == (statistics.retrying, statistics.next_attempt, statistics.retries)
    timed = {"write": statistics.write_seconds, "flush": statistics.flush_seconds}
    assert 1 == timed.pop(call).count
    assert [0] == [each.count for each in timed.values()]


async def test_calls_take_less_than_a_minute():
    """The statistics have the duration of a call, not the time of day."""
    write, statistics, _ = write_to(MemorySink())
    await write.write(transaction(1))
    assert 0 < statistics.write_seconds.sum < 60


async def test_a_sink_that_comes_back_with_another_position():
    """A sink that is opened again must return a position of the same source."""
    sink = MemorySink(keeps_position=True)
    sink.position = replace(CONTEXT.position, system_identifier="another")
    write, *_ = write_to(sink, keeps_position=True)
    with pytest.raises(SlotError, match="sink s"):
        await write.reopen(CONTEXT)


async def test_a_sink_that_is_opened_again():
    """The writer returns the sink's position; ``None`` if the sink keeps no position."""
    write, *_ = write_to(MemorySink())
    assert await write.reopen(CONTEXT) is None
    write, *_ = write_to(MemorySink(keeps_position=True), keeps_position=True)
    assert CONTEXT.position == await write.reopen(CONTEXT)


LOST, DATA = TransientError("lost", rewind=True), DataError("bad")


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ((LOST, LOST), TransientError),
        ((DATA, DATA), DataError),
        ((LOST, DATA), ExceptionGroup),
        ((DATA, UNNAMED), ExceptionGroup),
    ],
    ids=repr,
)
async def test_errors_of_concurrent_writes(errors, raised):
    """Errors of one kind that the worker handles are raised as one error, all others as a group."""
    by_row = {str(number): error for number, error in enumerate(errors)}
    sink = Rejecting(lambda batch: by_row[rows(batch)[0]])
    sink.concurrent = True
    write, *_ = write_to(sink, concurrency=2, order=by_key)
    with pytest.raises(raised) as caught:
        await write.write(transaction(0, 1))
    assert raised is not ExceptionGroup or set(errors) == set(caught.value.exceptions)


async def test_concurrent_writes_know_the_partitions():
    """The catalog has the partitions, so a row that moves to another one is in one write."""
    stream = Stream()
    one, two = stream.table("one", ID), stream.table("two", ID)
    catalog = TableCatalog(CatalogTable(each.oid, "public", each.name, parents=(1,)) for each in (one, two))
    stream.transaction(one.insert("1"), two.insert("1"))
    sink = Rejecting(lambda _: None)
    sink.concurrent = True
    write, *_ = write_to(sink, concurrency=2, order=by_key, catalog=catalog)
    await write.write(Batch(tuple(stream.slices())))
    assert [["1", "1"]] == list(map(rows, sink.batches))
