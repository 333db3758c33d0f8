"""The kit passes sinks that keep their position with the data, and finds those that only seem to."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from aiorepl import PermanentError, Sink, TransientError
from aiorepl.pgoutput.messages import CommitPrepared, RollbackPrepared
from aiorepl.testing.conformance import Event, SinkConformance

pytestmark = pytest.mark.by_day


class Exact(Sink):
    """Exactly once and atomic: rows, the position and what is prepared are replaced in one step."""

    supports_prepared = True

    def __init__(self, target):
        self.target = target
        self.aside: list[Event] = []
        self.ready: list[Event] = []
        self.prepared_now: dict[str, list[Event]] = {}
        self.end = None

    async def open(self, context):
        await asyncio.sleep(0)
        self.at = context.position
        return self.target.position or self.at

    async def write(self, batch):
        await asyncio.sleep(0)
        for part in batch.slices:
            if part.first:
                self.aside = []
            self.aside += [self.target.event(change) for change in part.changes]
            if not part.last:
                continue
            prepared = part.transaction is not None and part.transaction.prepared
            if prepared and isinstance(part.two_phase, CommitPrepared):
                self.ready += self.prepared_now.get(part.two_phase.gid) or self.kept()[part.two_phase.gid]
            elif prepared and isinstance(part.two_phase, RollbackPrepared):
                pass
            elif prepared:
                self.prepared_now[part.transaction.gid] = self.aside
            else:
                self.ready += self.aside
            self.aside, self.end = [], part.end_lsn

    async def replay(self, batch):
        end = self.end
        await self.write(batch)
        self.end = end

    def kept(self):
        """The prepared transactions in the target."""
        return self.target.rows

    async def flush(self):
        await asyncio.sleep(0)
        if not self.is_there():
            self.kept().update(self.prepared_now)
            self.target.events = [*self.target.events, *self.ready]
            if self.end is not None:
                self.target.position = self.at.at(self.end)
        self.target.answer()
        self.ready, self.prepared_now = [], {}

    def is_there(self):
        """Return whether the target has executed the request whose answer was lost."""
        return self.end is not None and self.target.position == self.at.at(self.end)


class TestExact(SinkConformance):
    """Exactly once, atomic, two-phase."""

    exactly_once = True
    atomic = True
    sink: type[Sink] = Exact

    def make_sink(self):
        return self.sink(self.target)

    def read(self):
        return self.target.events

    def lost_answer(self):
        return self.target.lost_answer()


class TestExactOnly(TestExact):
    """The same sink without prepared transactions."""

    def make_sink(self):
        sink = super().make_sink()
        sink.supports_prepared = False
        return sink

    def lost_answer(self):
        return None


class Transactional(Exact):
    """Writes slices in a transaction of the target's, which is lost with it."""

    supports_prepared = False
    held = False

    async def open(self, context):
        self.target.check()
        self.aside, self.held = [], False
        # What was accepted and not flushed lies behind the position, and comes again.
        self.ready, self.end = [], None
        return await super().open(context)

    async def write(self, batch):
        if self.target.away:
            self.aside, self.held = [], False
        self.target.check()
        if self.lost(batch):
            raise TransientError("the transaction was lost", rewind=True)
        await super().write(batch)
        self.held = not batch.slices[-1].last

    def lost(self, batch):
        """Return whether written slices are missing."""
        return bool(batch.slices) and not batch.slices[0].first and not self.held


class TestTransactional(TestExact):
    """Exactly once, atomic, and slices are with the target."""

    sink = Transactional

    def outage(self):
        return self.target.outage()


class Refusing(Exact):
    """Refuses a batch whole, and is as it was before the call."""

    async def write(self, batch):
        if self.poison_of(batch):
            raise PermanentError("the target refuses a row")
        await super().write(batch)

    def poison_of(self, batch):
        """The changes that the target refuses."""
        rows = [change for change in batch.changes if getattr(change, "new", None)]
        return [change for change in rows if change.new.get("note") == "poison"]


class TestRefusing(TestExact):
    """Exactly once, with a row that is rejected."""

    sink = Refusing
    poison = "poison"


class Naming(Refusing):
    """Takes all but what it names, and knows that again when it comes again; the position stays."""

    supports_prepared = False

    async def open(self, context):
        self.aside, self.ready, self.end = [], [], None
        return await super().open(context)

    async def write(self, batch):
        poison = self.poison_of(batch)
        rest = [replaced(part, poison) for part in batch.slices]
        await Exact.write(self, type(batch)(rest))
        if poison:
            self.end = None
            await self.flush()
            raise PermanentError("the target refuses a row", rejected=poison)

    async def flush(self):
        there = {event.identity for event in self.target.events}
        self.ready = [event for event in self.ready if event.identity not in there]
        await super().flush()


def replaced(part, poison):
    """The slice without these changes."""
    return dataclasses.replace(part, changes=[change for change in part.changes if change not in poison])


class TestNaming(TestRefusing):
    """A sink that names the rejected row, and accepts the others of its batch."""

    sink = Naming
    atomic = False


# Sinks that are wrong in one way.


class PassesWhatItRefuses(Naming):
    """Moves the position with what it took."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except PermanentError:
            self.end = batch.end_lsn
            await self.flush()
            raise


class SlicesAtOnce(Exact):
    """Shows slices before the last."""

    async def write(self, batch):
        for part in batch.slices:
            self.ready += [self.target.event(change) for change in part.changes]
            self.end = part.end_lsn or self.end

    def is_there(self):
        return False


class KeepsSlicesOfBefore(Exact):
    """Keeps slices in the target, and adds those that are sent again."""

    async def write(self, batch):
        kept = self.target.rows.setdefault("aside", [])
        for part in batch.slices:
            kept += [self.target.event(change) for change in part.changes]
            if part.last:
                self.ready += kept
                self.end = part.end_lsn
                kept = self.target.rows["aside"] = []


class DoesItAgain(Exact):
    """Does not look whether the target has done what it heard nothing of."""

    def is_there(self):
        return False


class PositionApart(Exact):
    """Stores the position with a flush, the rows before."""

    async def write(self, batch):
        await super().write(batch)
        self.target.events += self.ready
        self.ready = []


class GoesOnFromWhatWasReadBack(Exact):
    """Keeps the timeline that it once began with."""

    async def open(self, context):
        held = await super().open(context)
        self.at = dataclasses.replace(held, timelines=None)
        return held


class KeepsHalfThePosition(Exact):
    """Without what the next start compares with the server."""

    async def flush(self):
        await super().flush()
        if self.target.position is not None:
            self.target.position = dataclasses.replace(self.target.position, last=None)


class PositionOnlyWithChanges(Exact):
    """Does not keep up with WAL that has nothing for it."""

    async def write(self, batch):
        end = self.end
        await super().write(batch)
        if all(part.first and not part.changes and part.two_phase is None for part in batch.slices):
            self.end = end


class PassesOverReplays(Exact):
    """Writes nothing that lies before its position."""

    async def replay(self, batch):
        if batch.end_lsn > self.target.position.lsn:
            await self.write(batch)


class MovesBackWithReplays(Exact):
    """Stores the end of a dead letter as its position."""

    async def replay(self, batch):
        await self.write(batch)


class ForgetsPrepared(Exact):
    """Keeps prepared rows in memory."""

    def kept(self):
        return {}

    async def write(self, batch):
        try:
            await super().write(batch)
        except KeyError:
            self.end = batch.end_lsn


class ShowsPrepared(Exact):
    """Before they are committed."""

    async def write(self, batch):
        await super().write(batch)
        for events in self.prepared_now.values():
            self.ready += events
        self.prepared_now = dict.fromkeys(self.prepared_now, ())

    def kept(self):
        return {"conformance 'gid'": []}


class GoesOnWithoutSlices(Transactional):
    """Takes what comes for the rest of what it has lost."""

    def lost(self, batch):
        return False


class CommitsWhatItHad(Transactional):
    """Commits the part of a transaction that broke off, before it receives all of it again."""

    async def write(self, batch):
        if self.target.away:
            self.target.events = [*self.target.events, *self.aside]
        await super().write(batch)


class AsksForTheBatchAlone(Transactional):
    """Says that trying again is enough."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except TransientError as error:
            raise PermanentError(str(error)) if error.rewind else error from None


def case_of(sink: type, base: type) -> type:
    """The tests of a sink."""
    return type(f"Case{sink.__name__}", (base,), {"sink": sink})


@pytest.mark.parametrize(
    ("sink", "base", "tests", "says"),
    [
        (
            PassesWhatItRefuses,
            TestNaming,
            "test_a_rejection_halts_every_start",
            "the next start did not stop at a change that the target rejects",
        ),
        (
            SlicesAtOnce,
            TestExactOnly,
            "test_a_crash_within_a_transaction test_a_transaction_in_slices",
            "seen without the others",
        ),
        (
            DoesItAgain,
            TestExact,
            "test_a_lost_answer test_a_lost_answer_within_a_transaction",
            "more than once",
        ),
        (KeepsSlicesOfBefore, TestExactOnly, "test_a_crash_within_a_transaction", "more than once"),
        (
            PositionApart,
            TestExact,
            "test_a_crash_between_write_and_flush test_cancellation",
            "are in the target more than once",
        ),
        (
            GoesOnFromWhatWasReadBack,
            TestExact,
            "test_a_promotion",
            "of timeline 2 was flushed, and open returned 1",
        ),
        (KeepsHalfThePosition, TestExact, "test_a_position_is_kept_whole", "was flushed, and open returned"),
        (
            PositionOnlyWithChanges,
            TestExact,
            "test_the_position_of_batches_without_changes",
            "was flushed, and open returned",
        ),
        (
            PassesOverReplays,
            TestExact,
            "test_replay_behind_later_rows",
            "that were flushed are not in the target",
        ),
        (
            MovesBackWithReplays,
            TestExact,
            "test_replay_behind_later_rows",
            "before a replay and",
        ),
        (
            ForgetsPrepared,
            TestExact,
            "test_a_prepared_transaction",
            "that were flushed are not in the target",
        ),
        (ShowsPrepared, TestExact, "test_a_prepared_transaction", "or must not be visible yet"),
        (
            GoesOnWithoutSlices,
            TestTransactional,
            "test_an_outage_within_a_transaction",
            "that were flushed are not in the target",
        ),
        (CommitsWhatItHad, TestTransactional, "test_an_outage_within_a_transaction", "more than once"),
        (
            AsksForTheBatchAlone,
            TestTransactional,
            "test_an_outage_within_a_transaction",
            "the transaction was lost",
        ),
    ],
)
def test_what_is_wrong_is_found(failures, sink, base, tests, says):
    """The tests about a defect find it, no others do, and their messages describe it."""
    found = failures(case_of(sink, base))
    assert set(tests.split()) == set(found)
    assert all(says in text for text in found.values())


def test_a_position_has_to_be_declared(failures):
    """A sink that returns one promises more than its tests say."""
    case = type("Claims", (TestExact,), {"exactly_once": False})
    found = failures(case)
    assert found
    assert all("declare exactly_once = True" in text for text in found.values())
