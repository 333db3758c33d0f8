"""The kit passes sinks that write events at least once, and finds those that are wrong in one way."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import nullcontext

import pytest

from aiorepl import LSN, PermanentError, Sink, SyncSink, TransientError
from aiorepl.testing.conformance import Event, SinkConformance

pytestmark = pytest.mark.by_day


class Log(Sink):
    """At least once: batches are gathered by write, and sent by flush."""

    def __init__(self, target):
        self.target = target
        self.gathered: list[Event] = []

    async def open(self, context):
        await asyncio.sleep(0)
        self.target.check()

    async def write(self, batch):
        fresh = [self.target.event(change) for change in batch.changes]
        await asyncio.sleep(0)
        if any(event.new and event.new.get("note") == "poison" for event in fresh):
            raise PermanentError("the target refuses a row")
        self.gathered += fresh

    async def flush(self):
        await asyncio.sleep(0)
        self.target.check()
        await self.send(self.gathered)
        self.target.answer()
        self.gathered = []

    async def send(self, events):
        """To the target."""
        self.target.events += events


class TestLog(SinkConformance):
    """At least once, in order."""

    poison = "poison"
    sink: type[Sink] = Log

    def make_sink(self):
        return self.sink(self.target)

    def read(self):
        return self.target.events

    def outage(self):
        return self.target.outage()

    def lost_answer(self):
        return self.target.lost_answer()


class Blocking(SyncSink):
    """The same sink with blocking calls."""

    def __init__(self, target):
        self.target = target
        self.gathered = []

    def write(self, batch):
        self.gathered += [self.target.event(change) for change in batch.changes]

    def flush(self):
        self.target.check()
        self.target.events += self.gathered
        self.target.answer()
        self.gathered = []


class TestBlocking(TestLog):
    """A synchronous sink is tested like any."""

    poison = None
    sink = Blocking


# Sinks that are wrong in one way.


class DropsTheLast(Log):
    """Drops the last event of each flush."""

    async def send(self, events):
        self.target.events += events[:-1]


class Reorders(Log):
    """Within a flush."""

    async def send(self, events):
        self.target.events += sorted(events, key=lambda event: -event.ordinal)


class ReordersLargeBatches(Log):
    """Sends the second portion of a large flush first."""

    async def send(self, events):
        self.target.events += events if len(events) <= 1000 else events[1000:] + events[:1000]


class Renumbers(Log):
    """Gives identities of its own."""

    async def send(self, events):
        self.target.events += [
            Event(event.lsn, number + 1000, event.kind) for number, event in enumerate(events)
        ]


class RenumbersAfterALostAnswer(Log):
    """Takes what comes again for something else."""

    failed = False

    async def send(self, events):
        renumbered = [Event(event.lsn, event.ordinal + 1000, event.kind) for event in events]
        self.target.events += renumbered if self.failed else events
        self.failed = self.target.losing


class NamesAnewAfterALostAnswer(Log):
    """Gives each attempt to send an event an id of its own."""

    async def send(self, events):
        self.attempts = getattr(self, "attempts", 0) + 1
        self.target.events += [
            dataclasses.replace(one, id=f"{one.identity} {self.attempts}") for one in events
        ]


class SharesAnId(Log):
    """Names events after their transactions."""

    async def send(self, events):
        self.target.events += [dataclasses.replace(one, id=str(one.lsn)) for one in events]


class DropsWhatItHeardNothingOf(Log):
    """Takes a call that failed for done."""

    async def flush(self):
        try:
            await super().flush()
        except TransientError:
            if self.target.losing:
                return
            raise


class FlushesLate(Log):
    """Reports durable what it sends with the next flush or at close."""

    def __init__(self, target):
        super().__init__(target)
        self.late = []

    async def send(self, events):
        self.target.events += self.late
        self.late = events

    async def close(self):
        await self.send([])


class OneOfAnIdentity(Log):
    """Takes a row for the schema change before it."""

    async def send(self, events):
        known = {event.identity for event in self.target.events}
        for event in events:
            if event.identity not in known:
                known.add(event.identity)
                self.target.events.append(event)


class SwallowsCancellation(Log):
    """Ignores the cancellation of ``write``."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except asyncio.CancelledError:
            pass


class TurnsCancellationIntoAnError(Log):
    """Raises another error when ``flush`` is cancelled."""

    async def flush(self):
        try:
            await super().flush()
        except asyncio.CancelledError:
            raise TransientError("was interrupted") from None


class KeepsATaskRunning(Log):
    """After close."""

    async def open(self, context):
        self.task = asyncio.create_task(asyncio.Event().wait())
        return await super().open(context)


class CannotBeClosedUnopened(Log):
    """Needs what open makes."""

    async def open(self, context):
        self.opened = True
        return await super().open(context)

    async def close(self):
        assert self.opened


class Invents(Log):
    """Writes an event that it was not given."""

    async def send(self, events):
        self.target.events += [Event(LSN(1), 0, "insert")] * bool(events) + events


class ByKey(Log):
    """To partitions, which are read one after the other."""

    reverse = False

    def __init__(self, target):
        super().__init__(target)
        self.keys = {}

    async def write(self, batch):
        await super().write(batch)
        for change in batch.changes:
            key = getattr(change, "key", None)
            where = (
                self.target.event(change).identity if key is None else (change.table, *map(str, key.values()))
            )
            self.keys[self.target.event(change).identity] = str(where)

    async def send(self, events):
        self.target.rows.update(self.keys)
        self.target.events = sorted(
            [*self.target.events, *events],
            key=lambda event: self.target.rows[event.identity],
            reverse=self.reverse,
        )


class ReversedByKey(ByKey):
    """Each key's events the wrong way round."""

    async def send(self, events):
        await super().send(events[::-1])


class Concurrent(Log):
    """Accepts concurrent calls of ``write``."""

    concurrent = True


class NotReallyConcurrent(Log):
    """Which it says without thinking."""

    concurrent = True

    async def write(self, batch):
        gathered = list(self.gathered)
        await asyncio.sleep(0)
        self.gathered = [*gathered, *map(self.target.event, batch.changes)]
        if "poison" in [event.new and event.new.get("note") for event in self.gathered]:
            self.gathered = gathered
            raise PermanentError("the target refuses a row")


class NullForUnchanged(Log):
    """Writes NULL where the server sent nothing."""

    async def write(self, batch):
        before = len(self.gathered)
        await super().write(batch)
        for place, change in zip(range(before, len(self.gathered)), batch.changes, strict=True):
            event = self.gathered[place]
            if names := getattr(change, "unchanged", ()):
                new = {**event.new, **dict.fromkeys(names)}
                self.gathered[place] = Event(event.lsn, event.ordinal, event.kind, event.table, new)


class EmptyForNull(Log):
    """Takes NULL for the empty string."""

    async def send(self, events):
        for event in events:
            new = None if event.new is None else {name: value or "" for name, value in event.new.items()}
            self.target.events.append(Event(event.lsn, event.ordinal, event.kind, event.table, new))


class LogsRows(Log):
    """At INFO."""

    async def write(self, batch):
        for change in batch.changes:
            if getattr(change, "new", None):
                logging.getLogger("sink").info("writing %s", dict(change.new))
        await super().write(batch)


class QuotesTheRow(Log):
    """Quotes a row in the cause of an error."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except PermanentError as error:
            rows = [dict(change.new) for change in batch.changes]
            raise PermanentError("rejected") from ValueError(rows, error)


class RaisesAnything(Log):
    """For a target that is away."""

    async def flush(self):
        try:
            await super().flush()
        except TransientError as error:
            raise ConnectionError("away") from error


class ForgetsAfterAnError(Log):
    """Loses its buffered events when flush fails."""

    async def flush(self):
        gathered, self.gathered = self.gathered, []
        self.target.check()
        await self.send(gathered)
        self.target.answer()


class RefusesTheWrongOnes(Log):
    """Names all changes of the batch as rejected."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except PermanentError:
            raise PermanentError("rejected", rejected=list(batch.changes)) from None


class HalfDone(Log):
    """Keeps the rows before the one that was rejected."""

    async def write(self, batch):
        for change in batch.changes:
            event = self.target.event(change)
            if event.new and event.new.get("note") == "poison":
                raise PermanentError("rejected")
            self.gathered.append(event)
            await asyncio.sleep(0)


def case_of(sink: type, **claims) -> type:
    """The tests of a sink."""
    return type(f"Case{sink.__name__}", (TestLog,), {"sink": sink, **claims})


LOST_ANSWERS = "test_a_lost_answer test_a_lost_answer_within_a_transaction"
OUTAGES = "test_an_outage test_an_outage_within_a_transaction"
OPEN = "test_a_restart_with_an_older_confirmation test_what_is_flushed_is_there"


@pytest.mark.parametrize(
    ("sink", "tests", "says"),
    [
        (OneOfAnIdentity, "test_schema_changes", "1 of 2 changes that were flushed are not"),
        (ReordersLargeBatches, "test_a_large_batch", "comes after"),
        (RenumbersAfterALostAnswer, LOST_ANSWERS, "that were not written to the sink"),
        (NamesAnewAfterALostAnswer, LOST_ANSWERS, "under a second id"),
        (DropsWhatItHeardNothingOf, LOST_ANSWERS, "in spite of a lost answer"),
        (SwallowsCancellation, "test_cancellation", "returned normally"),
        (TurnsCancellationIntoAnError, "test_cancellation", "and raised TransientError"),
        (KeepsATaskRunning, "test_close_lets_go_of_everything", "tasks still run after close"),
        (
            CannotBeClosedUnopened,
            "test_a_sink_is_opened_and_closed test_close_lets_go_of_everything",
            "AttributeError",
        ),
        (
            NullForUnchanged,
            f"test_an_unchanged_value test_rows_of_a_snapshot {OPEN}",
            "which was not sent, has a value",
        ),
        (LogsRows, "test_rows_are_never_logged", "a log record of 'sink'"),
        (QuotesTheRow, "test_rows_are_never_logged", "PermanentError raised by write"),
        (RaisesAnything, f"{OUTAGES} {LOST_ANSWERS}", "ConnectionError"),
        (ForgetsAfterAnError, OUTAGES, "changes that were flushed are not"),
        (RefusesTheWrongOnes, "test_poison", "rejected names 8 changes, 1 of them"),
        (
            HalfDone,
            "test_poison test_a_rejection_halts_every_start",
            "the target has 1 events that were not written",
        ),
    ],
)
def test_what_is_wrong_is_found(failures, sink, tests, says):
    """The tests about a defect find it, no others do, and their messages describe it."""
    found = failures(case_of(sink))
    assert set(tests.split()) == set(found)
    assert all(says in text for text in found.values())


def test_an_outage_that_is_none_is_found(failures):
    """An ``outage`` in which nothing fails is reported."""
    found = failures(case_of(Log, outage=lambda _: nullcontext()))
    assert {
        "test_an_outage",
        "test_an_outage_within_a_transaction",
        "test_a_target_that_is_away_at_the_start",
    } == set(found)
    assert "no call failed" in found["test_an_outage_within_a_transaction"]


@pytest.mark.parametrize(
    ("sink", "test", "says"),
    [
        (DropsTheLast, "test_what_is_flushed_is_there", "that were flushed are not in the target"),
        (FlushesLate, "test_what_was_flushed_survives_a_crash", "that were flushed are not in the target"),
        (Reorders, "test_what_is_flushed_is_there", "comes after"),
        (Renumbers, "test_a_restart_with_an_older_confirmation", "that were flushed are not in the target"),
        (SharesAnId, "test_what_is_flushed_is_there", "under that of another event"),
        (Invents, "test_what_is_flushed_is_there", "that were not written to the sink"),
        (EmptyForNull, "test_null_and_empty", "is not what was written"),
    ],
)
def test_what_is_always_wrong_is_always_told(failures, sink, test, says):
    """A sink that fails in every test gets the same message from each."""
    found = failures(case_of(sink))
    assert test in found
    assert all(says in text for text in found.values())


@pytest.mark.parametrize(
    ("claims", "fails"), [("commit", True), ("table", True), ("key", False), ("none", False)]
)
def test_order_is_what_the_sink_claims(failures, claims, fails):
    """A target with partitions by key keeps no order over all, and none over a table."""
    name = "test_what_is_flushed_is_there"
    assert fails is (name in failures(case_of(ByKey, order=claims), name))


def test_reversed_keys_are_found(failures):
    """A sink that claims an order per key and does not keep it is found."""
    name = "test_what_is_flushed_is_there"
    assert "comes after" in failures(case_of(ReversedByKey, order="key"), name)[name]


def test_concurrent_writes_are_tried(failures):
    """Concurrent writes are tested if the sink allows them."""
    assert {} == failures(case_of(Concurrent))
    assert {"test_writes_at_once"} == set(failures(case_of(NotReallyConcurrent)))
