"""A mirror's tables know until when they have every transaction, by the commit times that heartbeats have proven. Without Spark."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.journal import JournalSink
from aiorepl.journal.completeness import Completeness, Gap, TableSnapshot
from aiorepl.journal.times import Times
from aiorepl.lsn import LSN
from aiorepl.sink import SinkContext
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergLake, IcebergTarget
from aiorepl.spark.mirroring.complete import BatchRange, Complete, Hold, Lapse
from aiorepl.spark.mirroring.mirrored import LateTransactions, MirroredTables
from aiorepl.spark.mirroring.source import MirrorReader
from aiorepl.spark.mirroring.state import StateFile
from aiorepl.storage.opening import open_store
from aiorepl.table_name import TableName
from aiorepl.testing.messages import column
from aiorepl.transactions.transaction import from_datetime, to_datetime

from .batches import Killed, Lake

pytestmark = pytest.mark.by_day

ID, NOTE = column("id", 23, key=True), column("note")
KEYLESS = column("id", 23)
BASE = 800_000_000_000_000
HOUR = 3_600_000_000


def at(hours: float) -> datetime:
    return to_datetime(BASE + int(hours * HOUR))


class Timed(Lake):
    """A mirror whose source has heartbeats."""

    def grow(self, *contents: bytes, proven: float, committed: float | None = None) -> LSN:
        """Write a transaction that commits at some hour, and a heartbeat after it, and mirror both."""
        stream = self.journal.stream
        time = BASE + int((proven if committed is None else committed) * HOUR)
        end = stream.transaction(*contents, commit_time=time)
        self.write(end, proven)
        self.stage()
        self.again()
        return end

    def write(self, end: LSN, proven: float) -> None:
        self.journal.write(proofs={end: BASE + int(proven * HOUR)})

    def idle(self, proven: float) -> None:
        """Write a heartbeat alone, and look for a batch, as Spark does while there is none."""
        self.write(self.journal.stream.message("aiorepl"), proven)
        self.look()

    def look(self) -> None:
        reader, start = MirrorReader(self.staging), self.offset.to_json()
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start

    @property
    def tables(self) -> MirroredTables:
        """What a reader in another process sees."""
        return MirroredTables(self.target, self._open() if self._open else None)

    def versions(self, name: str) -> list[tuple[LSN, datetime | None]]:
        """The ends of the batches in a table's own log, newest first, with their times."""
        target = self.lake.table(("public", name))
        return [(each.commit.lsn, each.commit.complete_until) for each in target.versions()]


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path, journal) -> Callable[..., Timed]:
    if request.param == "delta":
        return partial(Timed, tmp_path, journal)

    def opened() -> IcebergLake:
        (tmp_path / "iceberg").mkdir(exist_ok=True)
        return IcebergLake(
            SqlCatalog(
                "test", uri=f"sqlite:///{tmp_path}/iceberg/catalog", warehouse=f"file://{tmp_path}/iceberg"
            )
        )

    return partial(Timed, tmp_path, journal, lake=opened)


@pytest.fixture
def delta(tmp_path, journal) -> Callable[..., Timed]:
    return partial(Timed, tmp_path, journal)


def test_batches_and_heartbeats(lake, journal) -> None:
    """A batch's commits have its time. Heartbeats move the lake and all tables, and commit nothing. A restart changes nothing."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    first = mirror.grow(t.insert("1", "a"), u.insert("1", "a"), proven=1)
    tables = mirror.tables
    assert tables.complete_until() == at(1)
    second = mirror.grow(t.insert("2", "b"), proven=2)
    assert mirror.versions("t") == [(second, at(2)), (first, at(1))]
    assert mirror.versions("u") == [(first, at(1))]
    # The other table had no change, so it is complete as well.
    assert (tables.complete_until(), tables.complete_until("public.u")) == (at(2), at(2))
    mirror.idle(3)
    assert (tables.complete_until(), tables.complete_until("public.t")) == (at(3), at(3))
    assert (len(mirror.versions("t")), tables.lsn) == (2, second)
    mirror.restart()
    mirror.again()
    assert tables.complete_until() == at(3)
    mirror.look()
    assert tables.complete_until() == at(3)
    assert (tables.incomplete, tables.late_transactions) == ({}, None)
    with pytest.raises(ConfigurationError, match=r"no table public\.x"):
        tables.complete_until("public.t", "public.x")


def test_the_file_for_schedulers(delta, journal) -> None:
    """Its first line is a JSON object with the times of the lake and of each table; it follows batches and heartbeats."""
    mirror = delta()
    path = Path(mirror.target) / "_aiorepl" / "complete.json"
    mirror.grow(journal.stream.table("t", ID, NOTE).insert("1", "a"), proven=1)
    found = orjson.loads(path.read_bytes().splitlines()[0])
    assert (found["complete_until"], found["tables"]) == (
        at(1).isoformat(),
        {"public.t": at(1).isoformat()},
    )
    mirror.idle(2)
    found = orjson.loads(path.read_bytes().splitlines()[0])
    assert (found["complete_until"], found["late_transactions"], found["lsn"]) == (
        at(2).isoformat(),
        0,
        str(mirror.tables.lsn),
    )
    path.write_bytes(path.read_bytes().replace(b"late_since", b"late_sinCe"))
    with pytest.raises(JournalError, match=r"complete\.json in .* is damaged"):
        mirror.tables.complete_until()


def test_without_heartbeats(lake, journal) -> None:
    """Commit times alone prove nothing."""
    mirror = lake()
    journal.stream.transaction(journal.stream.table("t", ID, NOTE).insert("1", "a"))
    mirror.step()
    tables = mirror.tables
    assert tables.complete_until() is tables.complete_until("public.t") is None
    assert [time for _, time in mirror.versions("t")] == [None]
    with pytest.raises(ConfigurationError, match="complete until None, and not yet until"):
        tables.as_of(time=at(0))


def test_a_batch_that_is_applied_again(lake, journal, monkeypatch) -> None:
    """A kill between two commits, or before the state: until the batch has reached all tables, the lake's time stays."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    mirror.grow(t.insert("1", "a"), u.insert("1", "a"), proven=1)
    mirror.idle(1.5)
    for number, kind, name in (
        (2, DeltaTarget, "apply"),
        (1, DeltaTarget, "apply"),
        (2, StateFile, "save"),
    ):
        calls = []
        kinds = (DeltaTarget, IcebergTarget) if kind is DeltaTarget else (kind,)
        with monkeypatch.context() as patch:
            for each in kinds:
                own = getattr(each, name)

                def failing(
                    self: Any, *given: Any, own: Any = own, number: int = number, **named: Any
                ) -> Any:
                    calls.append(self)  # noqa: B023
                    if len(calls) == number:  # noqa: B023
                        raise Killed
                    return own(self, *given, **named)

                patch.setattr(each, name, failing)
            before = mirror.tables.complete_until()
            with pytest.raises(Killed):
                mirror.grow(t.insert(str(number + 10), "b"), u.insert(str(number + 10), "b"), proven=2)
            assert mirror.tables.complete_until() == before
        mirror.restart()
        mirror.again()
        assert mirror.tables.complete_until() == at(2)
        assert {time for _, time in mirror.versions("u")[:1]} == {at(2)}
    mirror.idle(3)
    mirror.lose_plan()
    assert mirror.tables.complete_until() == at(3)


def test_as_of_a_time(lake, journal) -> None:
    """The first batch that is complete until a time: never a row too few, and the answer says where the batch ended."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    ends = [
        mirror.grow(t.insert("1", "a"), u.insert("1", "a"), proven=1, committed=0.5),
        mirror.grow(t.insert("2", "b"), proven=2, committed=1.9),
        mirror.grow(u.insert("2", "b"), proven=3, committed=2.9),
    ]
    mirror.idle(4)
    tables = mirror.tables

    def end_of(name: str, version: int) -> LSN:
        versions = mirror.lake.table(("public", name)).versions()
        return next(each.commit.lsn for each in versions if each.number == version)

    def at_time(hours: float) -> tuple[LSN, dict[str, int]]:
        found = tables.as_of(time=at(hours))
        (lsn,) = {each.lsn for each in found.values()}
        return lsn, {name[-1]: end_of(name[-1], each.version) for name, each in found.items()}

    assert at_time(0.7) == at_time(1) == (ends[0], {"t": ends[0], "u": ends[0]})
    assert at_time(1.1) == at_time(2) == (ends[1], {"t": ends[1], "u": ends[0]})
    assert at_time(2.5) == at_time(4) == (ends[2], {"t": ends[1], "u": ends[2]})
    with pytest.raises(ConfigurationError, match="and not yet until"):
        tables.as_of(time=at(4.1))
    for wrong in ({"time": at(1).replace(tzinfo=None)}, {"time": at(1), "lsn": ends[0]}):
        with pytest.raises(ConfigurationError, match="an LSN or an aware time"):
            tables.as_of(**wrong)


def test_a_snapshot_that_is_read(lake, journal) -> None:
    """A table is not complete before the last chunk of its snapshot; the others are. A table that came without one is."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    mirror.grow(t.insert("1", "a"), proven=1)
    journal.stream.snapshot(u, u.insert("1", "a"), last_of_table=False)
    mirror.grow(u.insert("5", "e"), proven=2)
    tables = mirror.tables
    assert (tables.complete_until("public.t"), tables.complete_until("public.u")) == (at(2), None)
    assert tables.complete_until() is None
    assert tables.incomplete == {"public.u": "it lacks a complete snapshot"}
    assert [time for _, time in mirror.versions("u")] == [None]
    assert tables.as_of(time=at(1.5)).keys() == {"public.t"}
    mirror.idle(2.5)
    assert tables.complete_until("public.u") is None
    journal.stream.snapshot(u, u.insert("2", "b"), number=2)
    mirror.grow(t.insert("2", "b"), proven=3)
    assert (tables.complete_until(), tables.incomplete) == (at(3), {})
    # Another reading of a table that is whole leaves it whole.
    journal.stream.snapshot(u, u.insert("1", "a"), last_of_table=False)
    mirror.grow(t.insert("3", "b"), proven=4)
    assert tables.complete_until() == at(4)


def test_set_aside(lake, journal) -> None:
    """A table that is set aside stays at the time of its last batch, until it has caught up."""
    mirror = lake(on_error="set_aside")
    t, log = journal.stream.table("t", ID, NOTE), journal.stream.table("log", ID, NOTE)
    mirror.grow(t.insert("1", "a"), log.insert("1", "a"), proven=1)
    mirror.idle(1.5)
    # A wider type that the column cannot get.
    altered = journal.stream.table("log", ID, column("note", 17), replaces=log)
    mirror.grow(t.insert("2", "b"), altered.insert("2", "\\x00"), proven=2)
    tables = mirror.tables
    assert (tables.complete_until("public.t"), tables.complete_until("public.log")) == (at(2), at(1.5))
    assert tables.incomplete == {"public.log": "it is set aside"}
    mirror.idle(3)
    mirror.grow(t.insert("3", "c"), proven=4)
    assert (tables.complete_until(), tables.complete_until("public.t")) == (at(1.5), at(4))
    assert tables.as_of(time=at(1.2)).keys() == {"public.t"}


def test_set_aside_and_repaired(delta, journal) -> None:
    """A table that has caught up is complete as the others are."""
    mirror = delta(on_error="set_aside", keys={"public.log": ["missing"]})
    t = journal.stream.table("t", ID, NOTE)
    keyless = journal.stream.table("log", KEYLESS, NOTE, replica_identity="f")
    mirror.grow(t.insert("1", "a"), keyless.insert("2", "b"), proven=1)
    assert mirror.tables.complete_until("public.log") is None
    mirror.settings = delta(on_error="set_aside", keys={"public.log": ["id"]}).settings
    mirror.restart()
    mirror.grow(t.insert("9", "z"), proven=2)
    assert (mirror.tables.complete_until(), mirror.versions("log")[0][1]) == (at(2), at(2))


def test_added_tables(delta, journal) -> None:
    """A table that a pattern matches later is complete once it has its earlier changes; one that was renamed needs a snapshot."""
    mirror = delta(tables=["public.t"])
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    mirror.grow(t.insert("1", "a"), u.insert("1", "a"), proven=1)
    mirror.settings = delta(tables=["public.*"]).settings
    mirror.staging = replace(mirror.staging, settings=mirror.settings)
    mirror.restart()
    mirror.grow(t.insert("2", "a"), proven=2)
    assert (mirror.tables.tables, mirror.tables.complete_until()) == (["public.t", "public.u"], at(2))
    renamed = journal.stream.table("v", ID, NOTE, replaces=u)
    mirror.grow(renamed.insert("3", "a"), proven=3)
    assert mirror.tables.incomplete == {"public.v": "its earlier rows are missing: request a snapshot"}
    assert mirror.versions("v")[0][1] is None
    journal.stream.snapshot(renamed, renamed.insert("1", "a"))
    mirror.grow(t.insert("4", "a"), proven=4)
    assert mirror.tables.complete_until() == at(4)


def test_restarted(delta, journal) -> None:
    """A table that begins again is complete with the snapshot that was requested after that, not with an older one."""
    mirror = delta()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.snapshot(t, t.insert("1", "a"))
    mirror.grow(t.insert("2", "b"), proven=1)
    tables = mirror.tables
    shutil.rmtree(f"{mirror.target}/public/t")
    tables.restart("public.t")
    assert tables.complete_until() is None
    mirror.restart()
    mirror.grow(t.insert("3", "c"), proven=2)
    assert tables.incomplete == {"public.t": "it was restarted: request a snapshot"}
    journal.stream.snapshot(t, t.insert("1", "a"))
    mirror.grow(t.insert("4", "d"), proven=3)
    assert tables.complete_until() == at(3)


def test_within_a_transaction(delta, journal) -> None:
    """Batches that end within a segment leave the time where heartbeats had moved it."""
    mirror = delta()
    t = journal.stream.table("t", ID, NOTE)
    mirror.grow(t.insert("1", "a"), proven=1)
    mirror.idle(2)
    end = journal.stream.transaction(
        *[t.insert(str(key), "x" * 200) for key in range(2, 40)], commit_time=BASE + 2 * HOUR
    )
    journal.write(proofs={end: BASE + 3 * HOUR}, block_bytes=1024)
    seen = []
    while mirror.stage(most=1024) is not None:
        mirror.again()
        seen.append(mirror.tables.complete_until())
    assert len(seen) > 2
    assert (set(seen[:-1]), seen[-1]) == ({at(2)}, at(3))


def test_late_transactions(lake, journal) -> None:
    """The clock goes back: the time stays, the late transaction is in the lake, and a reader sees how far it goes back."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    mirror.grow(t.insert("1", "a"), proven=5)
    late = mirror.grow(t.insert("2", "b"), proven=3, committed=3)
    tables = mirror.tables
    found = tables.late_transactions
    assert isinstance(found, LateTransactions)
    assert (found.count, found.since, found.lsn < late) == (1, at(3), True)
    assert (tables.complete_until(), [time for _, time in mirror.versions("t")]) == (at(5), [at(5), at(5)])
    # The first version that is complete until then does not have it. Only the promise for later positions holds.
    mirror.idle(6)
    assert (tables.complete_until(), tables.late_transactions) == (at(6), found)


def test_lost_transactions() -> None:
    """An accepted gap holds every table at its time before, until a snapshot from after the gap is complete."""
    a, b = TableName("public", "a"), TableName("public", "b")
    gap = Gap(LSN(100), LSN(200), LSN(90))
    before = Complete(Times(10), {b: Hold(None, "it lacks a complete snapshot", LSN(0))})

    def after(
        state: Complete, time: int, start: int, end: int, journal: Completeness, **sets: Any
    ) -> Complete:
        begins, new = sets.pop("begins", LSN(0)), sets.pop("new", ())
        batch = BatchRange(begins, LSN(start), LSN(end), LSN(end), Times(time))
        return state.after(batch, journal, {a, b}, new, **sets)

    assert after(before, 11, 50, 100, Completeness((gap,))).until(a) == 11
    crossed = after(before, 20, 100, 300, Completeness((gap,)))
    assert (crossed.until(a), crossed.until(b)) == (10, None)
    assert crossed.held[a].reason == "transactions from 0/64 to 0/C8 are lost: request a snapshot"

    def snapshot(start: int, end: int | None, table: TableName = a) -> TableSnapshot:
        return TableSnapshot(1, table.schema, table.name, LSN(start), None if end is None else LSN(end))

    old = Completeness((gap,), (snapshot(50, 60),))
    assert after(crossed, 30, 300, 400, old).until(a) == 10
    fresh = Completeness((gap,), (snapshot(250, 450),))
    assert after(crossed, 30, 300, 400, fresh).until(a) == 10
    assert after(crossed, 40, 400, 450, fresh).until(a) == 40
    # A table that appears after the gap has lost nothing; one with a snapshot from before has.
    assert after(Complete(), 40, 400, 450, Completeness(), new=(b,)).until(b) == 40
    held = after(Complete(), 40, 400, 450, Completeness((gap,), (snapshot(50, 60, b),)), new=(b,))
    assert held.until(b) is None
    # A mirror that began after a snapshot does not have it. A table without one has its transactions since then.
    late = Completeness((), (snapshot(50, 60, b),))
    assert after(Complete(), 40, 400, 450, late, new=(a, b), begins=LSN(51)).held.keys() == {b}
    assert after(Complete(), 40, 400, 450, late, new=(a, b), begins=LSN(50)).held.keys() == set()
    assert Complete.from_json(orjson.loads(orjson.dumps(crossed.to_json()))) == crossed


def test_readers_of_a_version(delta, journal) -> None:
    """Who reads one version finds its time in the commit."""
    mirror = delta()
    mirror.grow(journal.stream.table("t", ID, NOTE).insert("1", "a"), proven=1)
    (info, *_) = DeltaTable(f"{mirror.target}/public/t").history()
    assert datetime.fromisoformat(info["aiorepl.complete_until"]) == at(1)
    assert from_datetime(at(1)) == BASE + HOUR
    assert at(1) - at(0) == timedelta(hours=1)
    assert StateFile(open_store(mirror.target)).load().complete.times.until == BASE + HOUR


def test_a_time_before_a_snapshot_ended(lake, journal) -> None:
    """A table whose snapshot ended later is not returned with a part of the snapshot."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    mirror.grow(t.insert("1", "a"), proven=1)
    journal.stream.snapshot(u, u.insert("1", "a"), last_of_table=False)
    mirror.grow(t.insert("2", "b"), u.insert("5", "e"), proven=2)
    journal.stream.snapshot(u, u.insert("2", "b"), number=2)
    whole = mirror.grow(t.insert("3", "c"), proven=3)
    mirror.grow(t.insert("4", "d"), u.insert("6", "f"), proven=4)
    for hours in (1, 1.5, 2):
        assert mirror.tables.as_of(time=at(hours)).keys() == {"public.t"}
    found = mirror.tables.as_of(time=at(3))
    assert {name: each.lsn for name, each in found.items()} == {"public.t": whole, "public.u": whole}
    complete = StateFile(open_store(mirror.target)).load().complete
    assert complete.lapses == (Lapse(TableName("public", "u"), None, whole),)
    assert Complete.from_json(orjson.loads(orjson.dumps(complete.to_json()))) == complete


def test_a_gap_without_a_batch_after_it(delta, journal) -> None:
    """An idle database after lost transactions does not move the time over them."""
    mirror = delta()
    t = journal.stream.table("t", ID, NOTE)
    mirror.grow(t.insert("1", "a"), proven=1)
    journal.stream.transaction(t.insert("2", "lost"), commit_time=BASE + 2 * HOUR)
    end = journal.stream.transaction(t.insert("3", "lost"), commit_time=BASE + 2 * HOUR)
    list(journal.stream.slices())

    async def skip() -> None:
        sink = JournalSink(journal.folder)
        after = await sink.open(SinkContext("journal", journal.stream.position))
        await sink.skip(after.lsn, after.at(end))
        await sink.close()

    asyncio.run(skip())
    mirror.idle(3)
    assert mirror.tables.complete_until() == at(1)
    mirror.grow(t.insert("4", "d"), proven=4)
    assert mirror.tables.complete_until() == at(1)
    assert "are lost" in mirror.tables.incomplete["public.t"]


def test_a_reader_beside_a_batch(delta, journal, monkeypatch) -> None:
    """A reader that reads the state before a batch, and the file after it, does not see the time go back."""
    mirror = delta()
    t = journal.stream.table("t", ID, NOTE)
    mirror.grow(t.insert("1", "a"), proven=1)
    mirror.idle(5)
    tables = mirror.tables
    assert tables.complete_until() == at(5)
    load, turns = StateFile.load, [lambda: mirror.grow(t.insert("2", "b"), proven=6)]

    def loaded(file: StateFile) -> Any:
        state = load(file)
        if turns:
            turns.pop()()
        return state

    monkeypatch.setattr(StateFile, "load", loaded)
    assert tables.complete_until() == at(6)
