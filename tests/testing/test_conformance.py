"""The kit passes sinks that keep the contract, and finds those that do not, each by the test that is about it."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import subprocess
import sys
from contextlib import contextmanager

import pytest

from aiorepl import LSN, UNCHANGED, Message, PermanentError, Position, Sink, SyncSink, TransientError
from aiorepl.pgoutput.messages import CommitPrepared, RollbackPrepared
from aiorepl.testing.conformance import Event, MirrorConformance, SinkConformance


class Target:
    """What outlives a sink: events, and the position of a sink that keeps one with them."""

    def __init__(self):
        self.events: list[Event] = []
        self.position: Position | None = None
        self.rows: dict[tuple[str, str], dict] = {}
        self.away = False

    def check(self):
        """Raise what a client would."""
        if self.away:
            raise TransientError("the target does not answer")


def event_of(change) -> Event:
    """A change as the target keeps it."""
    lsn = change.lsn if isinstance(change, Message) and change.transaction is None else None
    lsn = change.transaction.commit_lsn if lsn is None else lsn
    new = getattr(change, "new", None)
    if new is not None:
        new = {name: value for name, value in new.items() if value is not UNCHANGED}
    table = (change.schema, change.table) if hasattr(change, "schema") else None
    return Event(lsn, change.ordinal, change.kind, table, new)


class Log(Sink):
    """At least once: batches are gathered by write, and sent by flush."""

    def __init__(self, target: Target):
        self.target = target
        self.gathered: list[Event] = []

    async def open(self, context):
        await asyncio.sleep(0)
        self.target.check()

    async def write(self, batch):
        fresh = [event_of(change) for change in batch.changes]
        await asyncio.sleep(0)
        if any(event.new and event.new.get("note") == "poison" for event in fresh):
            raise PermanentError("the target refuses a row")
        self.gathered += fresh

    async def flush(self):
        await asyncio.sleep(0)
        self.target.check()
        await self.send(self.gathered)
        self.gathered = []

    async def send(self, events):
        """To the target."""
        self.target.events += events


class TestLog(SinkConformance):
    """At least once, in order."""

    poison = "poison"
    sink: type[Sink] = Log

    @pytest.fixture(autouse=True)
    def prepare(self):
        self.target = Target()

    def make_sink(self):
        return self.sink(self.target)

    def read(self):
        return self.target.events

    @contextmanager
    def outage(self):
        self.target.away = True
        yield
        self.target.away = False


class Blocking(SyncSink):
    """The same with calls that block."""

    def __init__(self, target):
        self.target = target
        self.gathered = []

    def write(self, batch):
        self.gathered += [event_of(change) for change in batch.changes]

    def flush(self):
        self.target.check()
        self.target.events += self.gathered
        self.gathered = []


class TestBlocking(TestLog):
    """A synchronous sink is tested like any."""

    poison = None
    sink = Blocking


class Exact(Sink):
    """Exactly once and atomic: rows, the position and what is prepared are replaced in one step."""

    takes_prepared = True
    prepared: dict[str, list[Event]] = {}  # noqa: RUF012 - the target's, put there by the test

    def __init__(self, target):
        self.target = target
        self.aside: list[Event] = []
        self.ready: list[Event] = []
        self.prepared_now: dict[str, list[Event]] = {}
        self.end = None

    async def open(self, context):
        await asyncio.sleep(0)
        self.at = self.target.position or context.position
        return self.at

    async def write(self, batch):
        await asyncio.sleep(0)
        for part in batch.transactions:
            if part.first:
                self.aside = []
            self.aside += [event_of(change) for change in part.changes]
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

    def kept(self):
        """What the target has of prepared transactions."""
        return self.target.rows

    async def flush(self):
        await asyncio.sleep(0)
        self.kept().update(self.prepared_now)
        self.target.events = [*self.target.events, *self.ready]
        if self.end is not None:
            self.target.position = self.at.at(self.end)
        self.ready, self.prepared_now = [], {}


class TestExact(TestLog):
    """Exactly once, atomic, two-phase."""

    exactly_once = True
    atomic = True
    poison = None
    outage = SinkConformance.outage
    sink = Exact


class TestExactOnly(TestExact):
    """The same without prepared transactions."""

    def make_sink(self):
        sink = super().make_sink()
        sink.takes_prepared = False
        return sink


class Mirror(Sink):
    """Rows by their keys, put in place by flush."""

    def __init__(self, target):
        self.target = target
        self.gathered = []

    async def write(self, batch):
        await asyncio.sleep(0)
        self.gathered += batch.changes

    async def flush(self):
        await asyncio.sleep(0)
        self.target.check()
        for change in self.gathered:
            self.apply(change)
        self.gathered = []

    def apply(self, change):
        """As an upsert does."""
        if change.kind in ("message", "schema"):
            return
        if change.kind == "truncate":
            for relation in change.relations:
                self.target.rows[relation.schema, relation.name] = {}
            return
        rows = self.target.rows.setdefault((change.schema, change.table), {})
        before = rows.pop(self.key(change), {})
        if change.kind != "delete":
            row = {**before, **self.columns(change)}
            rows[tuple(row[name] for name in change.key)] = row

    def key(self, change):
        """The old one if it changed."""
        old = change.raw_old is not None
        row = self.columns(change, change.raw_old, change.old_kinds) if old else self.columns(change)
        return tuple(row[name] for name in change.key)

    def columns(self, change, raw=None, kinds=None):
        """As text, binary ones in hexadecimal; what was not sent is left out."""
        names = change.relation.names
        if raw is None:
            raw, kinds = change.raw_new, change.new_kinds
        kinds = kinds or b"t" * len(raw)
        return {
            name: value if value is None else value.hex() if kind == ord("b") else value.decode()
            for name, value, kind in zip(names, raw, kinds, strict=True)
            if value is not UNCHANGED
        }


class TestMirror(MirrorConformance):
    """Rows of tables that have keys."""

    tables = tuple(table for table in MirrorConformance.tables if table.key)
    sink: type[Sink] = Mirror

    @pytest.fixture(autouse=True)
    def prepare(self):
        self.target = Target()

    def make_sink(self):
        return self.sink(self.target)

    def rows(self, table):
        return list(self.target.rows.get((table.schema, table.name), {}).values())

    def same(self, type_name, expected, found):
        """Binary columns are kept as they came."""
        from aiorepl.testing.conformance.samples import SAMPLES

        binary = {sample.text: sample.binary for sample in SAMPLES if sample.type_name == type_name}
        number = type_name == "int4" and int(expected).to_bytes(4, "big", signed=True).hex()
        return found in (expected, binary.get(expected), number)

    outage = TestLog.outage


# Sinks that are wrong in one way.


class DropsTheLast(Log):
    """Of each flush."""

    async def send(self, events):
        self.target.events += events[:-1]


class Reorders(Log):
    """Within a flush."""

    async def send(self, events):
        self.target.events += sorted(events, key=lambda event: -event.ordinal)


class Renumbers(Log):
    """Gives identities of its own."""

    async def send(self, events):
        self.target.events += [
            Event(event.lsn, number + 1000, event.kind) for number, event in enumerate(events)
        ]


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
    """Of write."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except asyncio.CancelledError:
            pass


class TurnsCancellationIntoAnError(Log):
    """Of flush."""

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
    """An event that nobody wrote."""

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
            where = event_of(change).identity if key is None else (change.table, *map(str, key.values()))
            self.keys[event_of(change).identity] = str(where)

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
    """Whose write may be called while calls are under way."""

    concurrent = True


class NotReallyConcurrent(Log):
    """Which it says without thinking."""

    concurrent = True

    async def write(self, batch):
        gathered = list(self.gathered)
        await asyncio.sleep(0)
        self.gathered = [*gathered, *map(event_of, batch.changes)]
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
    """In the cause of an error."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except PermanentError as error:
            rows = [dict(change.new) for change in batch.changes]
            raise PermanentError("refused") from ValueError(rows, error)


class RaisesAnything(Log):
    """For a target that is away."""

    async def flush(self):
        try:
            await super().flush()
        except TransientError as error:
            raise ConnectionError("away") from error


class ForgetsAfterAnError(Log):
    """What was gathered is gone when flush fails."""

    async def flush(self):
        gathered, self.gathered = self.gathered, []
        self.target.check()
        await self.send(gathered)


class RefusesTheWrongOnes(Log):
    """Names all changes of the batch as refused."""

    async def write(self, batch):
        try:
            await super().write(batch)
        except PermanentError:
            raise PermanentError("refused", refused=list(batch.changes)) from None


class HalfDone(Log):
    """Keeps the rows before the one that was refused."""

    async def write(self, batch):
        for change in batch.changes:
            event = event_of(change)
            if event.new and event.new.get("note") == "poison":
                raise PermanentError("refused")
            self.gathered.append(event)
            await asyncio.sleep(0)


class SlicesAtOnce(Exact):
    """Shows slices before the last."""

    async def write(self, batch):
        for part in batch.transactions:
            self.ready += [event_of(change) for change in part.changes]
            self.end = part.end_lsn or self.end


class KeepsSlicesOfBefore(Exact):
    """Puts slices aside in the target, and what comes again behind them."""

    async def open(self, context):
        return await super().open(context)

    async def write(self, batch):
        kept = self.target.rows.setdefault("aside", [])
        for part in batch.transactions:
            kept += [event_of(change) for change in part.changes]
            if part.last:
                self.ready += kept
                self.end = part.end_lsn
                kept = self.target.rows["aside"] = []


class PositionApart(Exact):
    """Stores the position with a flush, the rows before."""

    async def write(self, batch):
        await super().write(batch)
        self.target.events += self.ready
        self.ready = []


class PositionOnlyWithChanges(Exact):
    """Does not keep up with WAL that has nothing for it."""

    async def write(self, batch):
        end = self.end
        await super().write(batch)
        if all(part.first and not part.changes and part.two_phase is None for part in batch.transactions):
            self.end = end


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


class MirrorNullForUnchanged(Mirror):
    """Overwrites what was not sent."""

    def columns(self, change, raw=None, kinds=None):
        return {**dict.fromkeys(change.relation.names), **super().columns(change, raw, kinds)}


class MirrorForgetsTheOldKey(Mirror):
    """Leaves the row under its old key when a key changes."""

    def apply(self, change):
        if change.kind == "update" and change.old is not None:
            rows = self.target.rows.setdefault((change.schema, change.table), {})
            row = {**rows.get(self.key(change), {}), **self.columns(change)}
            rows[tuple(row[name] for name in change.key)] = row
        else:
            super().apply(change)


class MirrorIgnoresTruncate(Mirror):
    """Says it does not."""

    def apply(self, change):
        if change.kind != "truncate":
            super().apply(change)


def failures(case: type) -> dict[str, str]:
    """Run every test of a case, and return what those that failed said."""
    failed = {}
    for name, method in inspect.getmembers(case, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        marks = [mark for mark in getattr(method, "pytestmark", ()) if mark.name == "parametrize"]
        values = [[{mark.args[0]: value} for value in mark.args[1]] for mark in marks]
        for chosen in itertools.product(*values):
            test = case()
            test.target = Target()
            try:
                method(test, **{key: value for choice in chosen for key, value in choice.items()})
            except pytest.skip.Exception:
                pass
            except Exception as error:  # noqa: BLE001 - a sink may raise anything
                failed[name] = str(error)
    return failed


def case_of(sink: type, base: type) -> type:
    """The tests of a sink."""
    return type(f"Case{sink.__name__}", (base,), {"sink": sink})


OPEN = "test_a_restart_with_an_older_confirmation test_what_is_flushed_is_there"


@pytest.mark.parametrize(
    ("sink", "base", "tests", "says"),
    [
        (OneOfAnIdentity, TestLog, "test_schema_changes", "1 of 2 changes that were flushed are not"),
        (SwallowsCancellation, TestLog, "test_cancellation", "returned as if nothing had been"),
        (TurnsCancellationIntoAnError, TestLog, "test_cancellation", "and raised TransientError"),
        (KeepsATaskRunning, TestLog, "test_close_lets_go_of_everything", "tasks still run after close"),
        (CannotBeClosedUnopened, TestLog, "test_close_lets_go_of_everything", "close raised AttributeError"),
        (NullForUnchanged, TestLog, f"test_an_unchanged_value {OPEN}", "which was not sent, has a value"),
        (LogsRows, TestLog, "test_rows_are_never_told", "a log record of 'sink'"),
        (QuotesTheRow, TestLog, "test_rows_are_never_told", "PermanentError raised by write"),
        (RaisesAnything, TestLog, "test_an_outage", "ConnectionError was raised"),
        (ForgetsAfterAnError, TestLog, "test_an_outage", "5 of 7 changes that were flushed are not"),
        (RefusesTheWrongOnes, TestLog, "test_poison", "refused names 8 changes, 1 of them"),
        (HalfDone, TestLog, "test_poison", "1 events in the target that were not given"),
        (
            SlicesAtOnce,
            TestExactOnly,
            "test_a_crash_within_a_transaction test_a_transaction_in_slices",
            "seen without the others",
        ),
        (KeepsSlicesOfBefore, TestExactOnly, "test_a_crash_within_a_transaction", "more than once"),
        (
            PositionApart,
            TestExact,
            "test_a_crash_between_write_and_flush test_cancellation",
            "are in the target more than once",
        ),
        (
            PositionOnlyWithChanges,
            TestExact,
            "test_the_position_of_batches_without_changes",
            "was flushed, and open returned",
        ),
        (
            ForgetsPrepared,
            TestExact,
            "test_a_prepared_transaction",
            "that were flushed are not in the target",
        ),
        (ShowsPrepared, TestExact, "test_a_prepared_transaction", "or must not be seen yet"),
        (
            MirrorNullForUnchanged,
            TestMirror,
            f"test_an_unchanged_value {OPEN}",
            "rows differ, in large (text)",
        ),
        (MirrorForgetsTheOldKey, TestMirror, f"test_an_unchanged_value {OPEN}", "rows, not"),
        (MirrorIgnoresTruncate, TestMirror, OPEN, "it has 3 rows, not 1"),
    ],
)
def test_what_is_wrong_is_found(sink, base, tests, says):
    """By the tests that are about it and by no others, in words that tell what it is."""
    found = failures(case_of(sink, base))
    assert set(tests.split()) == set(found)
    assert all(says in text for text in found.values())


@pytest.mark.parametrize(
    ("sink", "test", "says"),
    [
        (DropsTheLast, "test_what_is_flushed_is_there", "that were flushed are not in the target"),
        (FlushesLate, "test_what_was_flushed_survives_a_crash", "that were flushed are not in the target"),
        (Reorders, "test_what_is_flushed_is_there", "comes behind"),
        (Renumbers, "test_a_restart_with_an_older_confirmation", "that were flushed are not in the target"),
        (Invents, "test_what_is_flushed_is_there", "that were not given to the sink"),
        (EmptyForNull, "test_null_and_empty", "is not what was written"),
    ],
)
def test_what_is_always_wrong_is_always_told(sink, test, says):
    """A sink that is wrong in every test is told the same by each that fails."""
    found = failures(case_of(sink, TestLog))
    assert test in found
    assert all(says in text for text in found.values())


@pytest.mark.parametrize(
    ("claims", "fails"), [("commit", True), ("table", True), ("key", False), ("none", False)]
)
def test_order_is_what_the_sink_claims(claims, fails):
    """A target with partitions by key keeps no order over all, and none over a table."""
    case = type("Claims", (TestLog,), {"sink": ByKey, "order": claims})
    assert fails is ("test_what_is_flushed_is_there" in failures(case))


def test_reversed_keys_are_found():
    """Where each key's order is claimed and not kept."""
    case = type("Claims", (TestLog,), {"sink": ReversedByKey, "order": "key"})
    assert "comes behind" in failures(case)["test_what_is_flushed_is_there"]


def test_a_position_has_to_be_declared():
    """A sink that returns one promises more than its tests say."""
    case = type("Claims", (TestExact,), {"exactly_once": False})
    assert all("declare exactly_once = True" in text for text in failures(case).values())
    assert failures(case)


def test_concurrent_writes_are_tried():
    """Where the sink says that it allows them."""
    assert {} == failures(case_of(Concurrent, TestLog))
    assert {"test_writes_at_once"} == set(failures(case_of(NotReallyConcurrent, TestLog)))


@pytest.mark.parametrize(
    "plugins",
    [
        "-p no:asyncio -p no:anyio",
        "-p no:asyncio -p anyio",
        "-p no:anyio -o asyncio_mode=strict",
        "-p no:anyio -o asyncio_mode=auto",
    ],
)
def test_a_failure_as_its_author_sees_it(tmp_path, plugins):
    """Whatever plugins run: which test, what was found, and what the contract says."""
    program = """
from aiorepl import Sink
from aiorepl.testing.conformance import SinkConformance

class Nowhere(Sink):
    async def write(self, batch):
        pass

class TestNowhere(SinkConformance):
    def make_sink(self):
        return Nowhere()

    async def read(self):
        return []
"""
    (tmp_path / "test_nowhere.py").write_text(program)
    options = "-m pytest -q -p no:cacheprovider -k survives_a_crash"
    done = subprocess.run(
        [sys.executable, *options.split(), *plugins.split(), "test_nowhere.py"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert 1 == done.returncode
    assert "after a flush and a crash, 5 of 5 changes that were flushed are not in the target" in done.stdout
    assert "the contract: flush returning means durable" in done.stdout
