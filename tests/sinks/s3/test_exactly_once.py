"""Each event once, whatever is cut, fails, dies or comes back from the dead, wherever that happens."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl import LSN, Batch, PermanentError, SinkContext, Slice, SlotError, TransientError
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.schema_changes import SchemaTracker
from aiorepl_sinks.objects.encodings import JsonLinesEncoding
from aiorepl_sinks.objects.manifest import LAYOUT
from aiorepl_sinks.objects.sink import ObjectSink

pytestmark = pytest.mark.by_day

INT4 = 23


class Killed(BaseException):
    """The process ends here."""


class Memory:
    """A store in memory that fails on purpose.

    :param plan: by the number of a call that writes, what happens: ``"before"`` and ``"after"`` kill, ``"refused"`` is a
        transient error, ``"lost"`` one although it was done.
    """

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.plan: dict[int, str] = {}
        self.calls = 0
        self.looks: list[tuple[list[str], list[str]]] = []

    def put(self, name: str, data: Iterable[bytes]) -> int:
        whole = b"".join(data)
        self._does(lambda: self.objects.__setitem__(name, whole))
        return len(whole)

    def create(self, name: str, data: bytes) -> bool:
        before = name in self.objects
        self._does(lambda: self.objects.setdefault(name, bytes(data)))
        return not before

    def read(self, name: str | None = None) -> bytes | None:
        return self.objects.get(name)

    def names(self, prefix: str = "", after: str = "") -> list[str]:
        return sorted(name for name in self.objects if name.startswith(prefix) and name > after)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._does(lambda name=name: self.objects.pop(name, None))

    def abort(self, names: Collection[str]) -> None:
        """Do nothing: no object is ever incomplete."""

    def _does(self, write) -> None:
        self.calls += 1
        fate = self.plan.get(self.calls)
        if fate == "before":
            raise Killed
        if fate == "refused":
            raise TransientError("refused")
        write()
        if fate == "after":
            raise Killed
        if fate == "lost":
            raise TransientError("lost")


class Sink(ObjectSink):
    """Small objects, and less memory than one of them needs."""

    def __init__(self, store: Memory, layout: str = LAYOUT) -> None:
        encoding = JsonLinesEncoding("native", "typed", "none")
        super().__init__(
            store,
            encoding,
            layout=layout,
            object_bytes=2500,
            memory_bytes=1000,
            spill_dir=None,
            spill_bytes=5000,
        )


def told(sizes: Sequence[int]) -> Stream:
    """Transactions of so many rows, over two tables."""
    stream = Stream()
    tables = [stream.table(name, column("id", INT4, key=True), column("note")) for name in ("a", "b")]
    number = 0
    for size in sizes:
        rows = []
        for _ in range(size):
            number += 1
            rows.append(tables[number % 3 % 2].insert(str(number), "x" * 40))
        stream.transaction(*rows)
    return stream


def deliver(sink: Sink, stream: Stream, seed: int, *, schema_changes: bool = False) -> None:
    """One process: delivers the missing changes, randomly cut, with flushes and retries of transient errors."""
    dice = random.Random(seed)
    held = sink.open(SinkContext("s", stream.position))
    slices = stream.again(dice.choice([None, 1, 3, 10]), after=held.lsn)
    if schema_changes:
        slices = [part for whole in map(SchemaTracker().announced, slices) for part in alone(whole)]
    while slices:
        count = dice.randint(1, 6)
        # Whole transactions come together; one that is larger than a batch comes alone.
        batch, slices = slices[:count], slices[count:]
        insist(lambda batch=batch: sink.write(Batch(tuple(batch))))
        if dice.random() < 0.4:
            insist(sink.flush)
    insist(sink.flush)


def alone(part: Slice) -> list[Slice]:
    """A slice with a slice for each schema change in it, as where a batch has few rows."""
    parts: list[list] = [[]]
    for change in part.changes:
        parts[-1].append(change)
        if change.kind == "schema":
            parts.append([])
    last = len(parts) - 1
    return [
        replace(
            part, changes=changes, first=part.first and not at, end_lsn=part.end_lsn if at == last else None
        )
        for at, changes in enumerate(parts)
    ]


def insist(call) -> None:
    for _ in range(10):
        try:
            call()
            return
        except TransientError:
            pass
    raise AssertionError("it does not pass")


def expected(stream: Stream) -> list[tuple[str, int]]:
    return [
        (str(change.transaction.commit_lsn), change.ordinal)
        for part in stream.again()
        for change in part.changes
    ]


def require_exactly_once(store: Memory, stream: Stream, read) -> None:
    """Check the rows by the manifest, by the folders, and by the order of each table."""
    for names in (read.listed(store), read.data(store)):
        assert expected(stream) == sorted(read.identities(read.lines(store, names)), key=_order)
    for table in ("a", "b"):
        events = [event for event in read.lines(store, read.listed(store)) if event["table"] == table]
        assert sorted(read.identities(events), key=_order) == read.identities(events)


def _order(at: tuple[str, int]) -> tuple[int, int]:
    high, _, low = at[0].partition("/")
    return (int(high, 16) << 32) + int(low, 16), at[1]


SIZES = st.lists(st.sampled_from([1, 1, 2, 5, 30, 90]), min_size=1, max_size=8)


@settings(deadline=None, max_examples=150)
@given(
    sizes=SIZES,
    fates=st.lists(
        st.tuples(st.integers(1, 25), st.sampled_from(["before", "after", "refused", "lost"])), max_size=6
    ),
    seed=st.integers(0, 2**32),
)
def test_lives_that_end_anywhere(read, sizes, fates, seed):
    """Processes that end before or after any write, with different batches and lost answers: each event is there once."""
    stream, store = told(sizes), Memory()
    for number, (call, fate) in enumerate(fates):
        store.plan = {store.calls + call: fate}
        try:
            deliver(Sink(store), stream, seed + number)
        except Killed:
            # Who merely lists the folders sees nothing twice even now.
            found = read.identities(read.lines(store, read.data(store)))
            assert len(set(found)) == len(found)
    store.plan = {}
    deliver(Sink(store), stream, seed - 1)

    require_exactly_once(store, stream, read)


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES, seed=st.integers(0, 2**32))
def test_whole_transactions_at_every_moment(read, sizes, seed):
    """After every single write the manifest lists whole transactions, from the beginning without a gap."""
    stream, store = told(sizes), Memory()
    wholes = [[]]
    for part in stream.again():
        wholes.append(
            wholes[-1] + [(str(change.transaction.commit_lsn), change.ordinal) for change in part.changes]
        )
    do = store._does

    def watched(write) -> None:
        do(write)
        seen = sorted(read.identities(read.lines(store, read.listed(store))), key=_order)
        assert seen in wholes

    store._does = watched
    deliver(Sink(store), stream, seed)

    require_exactly_once(store, stream, read)


@settings(deadline=None, max_examples=100)
@given(sizes=SIZES, at=st.integers(0, 6), seed=st.integers(0, 2**32), flushes=st.booleans())
def test_a_writer_that_comes_back_from_the_dead(read, sizes, at, seed, flushes):
    """A slow writer that was replaced changes nothing any more, and fails."""
    stream, store = told([*sizes, 3, 40]), Memory()
    slow = Sink(store)
    held = slow.open(SinkContext("s", stream.position))
    slices = stream.again(7, after=held.lsn)
    for part in slices[:at]:
        slow.write(Batch((part,)))
        if flushes:
            slow.flush()
    first = Sink(store)
    first.open(SinkContext("s", stream.position))
    deliver(Sink(store), stream, seed)
    before = dict(store.objects)

    with pytest.raises(PermanentError, match="another process or sink writes there"):
        for part in slices[at:]:
            slow.write(Batch((part,)))
            slow.flush()
    slow.close()
    with pytest.raises(PermanentError, match="another process or sink writes there"):
        first.write(Batch(tuple(slices[:1])))
    first.close()

    assert read.entries(store) == read.entries(_Frozen(before))
    require_exactly_once(store, stream, read)


def test_a_second_process_that_was_started_by_mistake(read):
    """A second sink does not disturb the first until it gets a batch, for which it needs the slot."""
    stream, store = told([3, 3]), Memory()
    at_work, mistaken = Sink(store), Sink(store)
    slices = stream.again()
    at_work.open(SinkContext("s", stream.position))
    at_work.write(Batch(tuple(slices[:1])))
    mistaken.open(SinkContext("s", stream.position))
    mistaken.flush()
    mistaken.close()
    at_work.write(Batch(tuple(slices[1:])))
    at_work.flush()
    at_work.close()

    require_exactly_once(store, stream, read)


def test_a_writer_that_was_asleep_in_its_claim(read):
    """Another one took over meanwhile, and has objects that it is about to list: they are left alone."""
    stream, store = told([3, 3]), Memory()
    batch = Batch(tuple(stream.again()))
    slow, quick = Sink(store), Sink(store)
    slow.open(SinkContext("s", stream.position))
    create = store.create

    def refuse(name: str, data: bytes) -> bool:
        raise TransientError("refused")

    def asleep(name: str, data: bytes) -> bool:
        created = create(name, data)
        store.create = create
        quick.open(SinkContext("s", stream.position))
        quick.write(batch)
        store.create = refuse
        with pytest.raises(TransientError):
            quick.flush()
        store.create = create
        return created

    store.create = asleep
    slow.write(batch)
    quick.flush()
    with pytest.raises(PermanentError, match="another process or sink writes there"):
        slow.flush()
    slow.close()
    quick.close()

    require_exactly_once(store, stream, read)


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES, seed=st.integers(0, 2**32))
def test_schema_changes_in_objects_of_their_own(read, sizes, seed):
    """An object with a schema change alone has another name than its row's: no event is lost, none is listed twice."""
    stream, store = told(sizes), Memory()
    deliver(Sink(store), stream, seed, schema_changes=True)
    listed = read.listed(store)
    assert sorted(set(listed)) == sorted(listed) == sorted(read.data(store))
    events = read.lines(store, listed)
    rows = [event for event in events if event["kind"] != "schema"]
    assert expected(stream) == sorted(read.identities(rows), key=_order)
    for table in {row["table"] for row in rows}:
        kinds = [event["kind"] for event in events if event["table"] == table]
        assert ["schema", *["insert"] * (len(kinds) - 1)] == kinds


def test_schemas_called_as_our_own_folders(read):
    """Their objects lie beside the manifest and the messages, whatever the layout begins with."""
    stream, store = Stream(), Memory()
    names = [("_aiorepl", "manifest"), ("_aiorepl", "writers"), ("messages", "a"), ("%5Faiorepl", "manifest")]
    tables = [stream.table(table, column("id", INT4, key=True), namespace=schema) for schema, table in names]
    stream.transaction(*(table.insert("1") for table in tables))
    stream.message("alone")
    sink = Sink(store, layout="{schema}/{table}")
    sink.open(SinkContext("s", stream.position))
    sink.write(Batch(tuple(stream.again())))
    sink.flush()
    sink.close()
    listed = read.listed(store)
    folders = {name.rpartition("/")[0] for name in listed}
    assert len(names) + 1 == len(folders)
    assert not any(folder.startswith(("_aiorepl", "messages/")) for folder in folders)
    assert stream.lsn == Sink(store).open(SinkContext("s", stream.position)).lsn


class _Frozen(Memory):
    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects


def test_a_stop_while_nobody_knows_whether_the_entry_is_there(read):
    """If the answer for an entry was lost, the objects that it may list are not deleted."""
    stream, store = told([3]), Memory()
    sink = Sink(store)
    sink.open(SinkContext("s", stream.position))
    sink.write(Batch(tuple(stream.again())))
    store.plan = {store.calls + 4: "lost"}  # a note, an object for each of two tables, the entry
    with pytest.raises(TransientError):
        sink.flush()
    sink.close()

    require_exactly_once(store, stream, read)
    deliver(Sink(store), stream, 1)
    require_exactly_once(store, stream, read)


def test_an_idle_stream_makes_no_entries(read):
    """WAL that has nothing for us moves the position, in one object that is written over and over."""
    stream, store = told([3]), Memory()
    sink = Sink(store)
    sink.open(SinkContext("s", stream.position))
    sink.write(Batch(tuple(stream.again())))
    sink.flush()
    before = set(store.objects)
    for step in range(1, 50):
        end = LSN(stream.lsn + 0x100 * step)
        sink.write(Batch((Slice(None, (), True, end, 0),)))
        sink.flush()

    assert before == set(store.objects)
    assert end == Sink(store).open(SinkContext("s", stream.position)).lsn

    # The next one writes, so that what the first one noted is behind the times.
    following = Sink(store)
    following.open(SinkContext("s", stream.position))
    following.write(Batch((Slice(None, (), True, LSN(end + 1), 0),)))
    following.flush()
    assert end + 1 == Sink(store).open(SinkContext("s", stream.position)).lsn


def test_a_prefix_of_another_slot():
    """``open`` refuses it, and names both slots."""
    stream, store = told([3]), Memory()
    deliver(Sink(store), stream, 1)

    with pytest.raises(SlotError, match=r"memory holds a position of slot 'test', not of 'other'"):
        Sink(store).open(SinkContext("s", Stream(slot="other").position))
    with pytest.raises(SlotError, match="cluster"):
        Sink(store).open(SinkContext("s", replace(stream.position, system_identifier="7")))


def readable(data: bytes) -> object:
    """Decode JSON; return ``None`` if it is invalid."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


@pytest.mark.parametrize("place", ["_aiorepl/manifest/", "_aiorepl/writers/"])
def test_a_damaged_manifest(place):
    """A flipped bit in the last entry or a writer's file is found; the error names the file and says what to do."""
    stream, store = told([3, 5]), Memory()
    deliver(Sink(store), stream, 1)
    held = Sink(store).open(SinkContext("s", stream.position))
    name = max(store.names(place))
    whole = store.objects[name]
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        store.objects[name] = bytes(flipped)
        if readable(flipped) == orjson.loads(whole):
            continue  # white space
        with pytest.raises(PermanentError, match=f"{name} in memory .* a (new prefix|prefix of its own)"):
            Sink(store).open(SinkContext("s", stream.position))
    store.objects[name] = whole
    assert held == Sink(store).open(SinkContext("s", stream.position))


def test_a_manifest_of_another_version():
    """The error says what to do."""
    stream, store = told([3]), Memory()
    deliver(Sink(store), stream, 1)
    store.objects[max(store.names("_aiorepl/manifest/"))] = b'{"format":1}'
    with pytest.raises(
        PermanentError, match="has format 1, but this version reads format 2: give the sink a new prefix"
    ):
        Sink(store).open(SinkContext("s", stream.position))


def test_entries_that_are_missing():
    """An entry that a writer's file proves is missed; without that file the position is the previous entry's."""
    stream, store = told([3, 5]), Memory()
    deliver(Sink(store), stream, 1)
    held = Sink(store).open(SinkContext("s", stream.position))
    _, known, *_, last = store.names("_aiorepl/manifest/")
    del store.objects[last]
    assert Sink(store).open(SinkContext("s", stream.position)).lsn < held.lsn
    del store.objects[known]
    before = dict(store.objects)
    with pytest.raises(PermanentError, match=f"{known} in memory is damaged: it is missing"):
        Sink(store).open(SinkContext("s", stream.position))
    assert before == store.objects


def test_an_entry_under_another_number():
    """A copy under the next number is no entry."""
    stream, store = told([3]), Memory()
    deliver(Sink(store), stream, 1)
    last = max(store.names("_aiorepl/manifest/"))
    number = int(last.rpartition("/")[2].removesuffix(".json"))
    store.objects[f"_aiorepl/manifest/{number + 1:016d}.json"] = store.objects[last]
    with pytest.raises(PermanentError, match=f"is damaged: it is entry {number}"):
        Sink(store).open(SinkContext("s", stream.position))
