"""Concurrent writes keep the configured order, and lose or invent no change."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import Batch, ConfigurationError, Delivery, PermanentError, Routing, Sink
from aiorepl.delivery.partitioning import order, stages
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.source.catalog.tables import CatalogTable, TableCatalog
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.publication_changes import Difference, PublicationChange
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo

KEYS = st.integers(0, 5)
TABLES = st.sampled_from(["keyed", "other", "full"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), TABLES, KEYS),
        st.tuples(st.just("delete"), TABLES, KEYS),
        st.tuples(st.just("move"), st.sampled_from(["keyed", "other"]), KEYS, KEYS),
        st.tuples(st.just("truncate"), TABLES),
    ),
    max_size=12,
)


def batch_of(transactions) -> Batch:
    """Return these operations as one batch."""
    stream = Stream()
    columns = column("id", 23, key=True), column("note")
    tables = {
        "keyed": stream.table("keyed", *columns),
        "other": stream.table("other", *columns),
        "full": stream.table("full", *columns, replica_identity="f"),
    }
    for operations in transactions:
        contents = []
        for kind, name, *keys in operations:
            table, texts = tables[name], [str(key) for key in keys]
            if kind == "insert":
                contents.append(table.insert(texts[0], "x"))
            elif kind == "delete":
                contents.append(table.delete(texts[0], None if name != "full" else "x", full=name == "full"))
            elif kind == "move":
                contents.append(table.update(texts[1], "y", key=(texts[0], None)))
            else:
                contents.append(table.truncate())
        stream.transaction(*contents)
    return Batch(tuple(stream.slices()))


def identity(change):
    return change.transaction.commit_lsn, change.ordinal


def touched(change) -> set:
    """Return what a change must stay in order with, computed from values and not as in the code."""
    if change.kind == "truncate":
        return {("truncate", relation.name) for relation in change.relations}
    keys = set() if change.key is None else {change.key["id"]}
    if change.new is not None and change.key is not None:
        keys.add(change.new["id"])
    return {("truncate", change.table)} | {(change.table, key) for key in keys or {None}}


@given(st.lists(OPERATIONS, max_size=5), st.integers(1, 4), st.sampled_from(["key", "table"]))
def test_order_holds_where_it_can_be_seen(transactions, concurrency, by):
    """All changes come once, and two changes of the same row are written in order."""
    batch = batch_of(transactions)
    place: dict = {}
    for number, stage in enumerate(stages(batch, concurrency, order(by, None)(TableCatalog()))):
        assert 1 <= len(stage) <= concurrency
        for index, part in enumerate(stage):
            for position, change in enumerate(part.changes):
                assert identity(change) not in place
                place[identity(change)] = (number, index, position)
    changes = list(batch.changes)
    assert set(place) == set(map(identity, changes))
    for later, change in enumerate(changes):
        for earlier in changes[:later]:
            both = touched(change) & touched(earlier)
            rows = {pair for pair in both if pair[0] != "truncate"}
            if rows or (both and "truncate" in (change.kind, earlier.kind)) or (by == "table" and both):
                first, second = place[identity(earlier)], place[identity(change)]
                assert first[0] < second[0] or (first[:2] == second[:2] and first[2] < second[2])


def test_the_end_of_a_chunk_comes_last():
    """A sink learns that a table is complete after all of its rows, and is never told so by a part of them."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.snapshot(table, *(table.insert(str(number)) for number in range(6)))
    rows, ends = stages(Batch(tuple(stream.slices())), 4, order("key", None)(TableCatalog()))

    assert 4 == len(rows)
    assert all(part.end_lsn is None for part in rows)
    assert [stream.lsn] == [part.end_lsn for part in ends]
    assert [(False, (), 0)] == [
        (piece.first, piece.changes, piece.size) for part in ends for piece in part.slices
    ]


def test_a_chunk_without_rows():
    """Its only slice is its first and its last one."""
    stream = Stream()
    stream.snapshot(stream.table("t", column("id", 23, key=True)))
    (ends,) = stages(Batch(tuple(stream.slices())), 4, order("key", None)(TableCatalog()))

    assert [(True, True)] == [(piece.first, piece.last) for part in ends for piece in part.slices]


def test_a_part_of_a_chunk_does_not_end_it():
    """Rows of a chunk in several slices are one stage, and its end is another."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.snapshot(table, *(table.insert(str(number)) for number in range(6)))
    parts = list(stream.slices(2))
    assert len(parts) > 2
    rows, ends = stages(Batch(tuple(parts)), 2, order("key", None)(TableCatalog()))

    assert [[0, 2, 4], [1, 3, 5]] == [[change.ordinal for change in part.changes] for part in rows]
    assert [(0, False)] == [(len(part), piece.first) for part in ends for piece in part.slices]

    parts[-1] = replace(parts[-1], changes=())
    _, ends = stages(Batch(tuple(parts)), 2, order("key", None)(TableCatalog()))
    assert [False] == [piece.first for part in ends for piece in part.slices]


def test_parts_have_the_begin_and_end_of_their_transaction():
    """Each part has both. Only the end of a snapshot's chunk is a part of its own."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    end = stream.transaction(table.insert("1"), table.insert("2"))
    (stage,) = stages(Batch(tuple(stream.slices())), 2, order("key", None)(TableCatalog()))
    assert [(True, True, end)] * 2 == [
        (piece.first, piece.last, piece.end_lsn) for part in stage for piece in part.slices
    ]


def test_parts_have_about_the_same_number_of_changes():
    """The row with the most changes is placed first."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.transaction(*map(table.insert, "abcc"))
    (stage,) = stages(Batch(tuple(stream.slices())), 2, order("key", None)(TableCatalog()))
    assert [2, 2] == [len(part) for part in stage]


def test_tables_that_alternate():
    """Rows of two tables that come by turns are one stage."""
    stream = Stream()
    one, two = (stream.table(name, column("id", 23, key=True)) for name in ("one", "two"))
    stream.transaction(one.insert("1"), two.insert("1"), one.insert("2"), two.insert("2"))
    assert [4] == list(map(len, written(Batch(tuple(stream.slices())))))


@pytest.mark.parametrize("by", ["key", "table"])
def test_what_does_not_wait_for_other_rows(by):
    """Messages of a prefix stay in order, and are written beside rows; so are a new key beside other keys, and a truncate
    under the order of tables.
    """
    stream = Stream()
    table, other = (stream.table(name, column("id", 23, key=True)) for name in ("t", "other"))
    stream.transaction(
        table.insert("1"),
        table.update("2", key=("1",)),
        other.insert("3"),
        *([other.truncate()] if by == "table" else []),
    )
    for prefix in ("a", "b", "a"):
        stream.message(prefix)
    batch = Batch(tuple(stream.slices()))
    (stage,) = stages(batch, 4, order(by, None)(TableCatalog()))

    written = [[getattr(change, "prefix", None) or change.kind for change in part.changes] for part in stage]
    assert sorted(written) == sorted(
        [["insert", "update"], ["insert", "truncate"] if by == "table" else ["insert"], ["a", "a"], ["b"]]
    )


@pytest.mark.parametrize(
    ("type_oid", "modifier"),
    [
        *(
            (oid, -1)
            for oid in (16, 17, 18, 19, 20, 21, 23, 25, 26, 1043, 1082, 1083, 1114, 1184, 1560, 1562)
        ),
        (2950, -1),
        (1042, 5),
    ],
)
def test_keys_that_are_compared_as_bytes(type_oid, modifier):
    """Rows with different keys of these types are written at once."""
    stream = Stream()
    table = stream.table("t", column("id", type_oid, key=True, type_modifier=modifier))
    stream.transaction(table.insert("1"), table.insert("0"))
    (stage,) = stages(Batch(tuple(stream.slices())), 4, order("key", None)(TableCatalog()))
    assert 2 == len(stage)


def test_a_routing_key_decides_when_asked():
    """Rows of one tenant are in one part, whatever their keys."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("tenant"))
    stream.transaction(*(table.insert(str(number), "ab"[number % 2]) for number in range(6)))
    batch = Batch(tuple(stream.slices()))
    (stage,) = stages(batch, 4, order("routing_key", Routing("{new.tenant}"))(TableCatalog()))
    assert [[0, 2, 4], [1, 3, 5]] == sorted([change.ordinal for change in part.changes] for part in stage)


@pytest.mark.parametrize("by", ["key", "table", "routing_key"])
def test_changes_that_are_no_rows(by):
    """Truncates and messages have routing keys, too. All other changes wait for all earlier ones."""
    stream = Stream()
    table = stream.table("t", ID)
    stream.transaction(table.insert("1"), table.truncate(), table.insert("1"))
    stream.message("m")
    slices = stream.slices()
    row = slices[0].changes[0]
    others = (
        SchemaChange(None, 0, row.layout, None),
        Resync(stream.lsn),
        PublicationChange(Difference("table_added", 1, "public", "t"), stream.lsn, 0),
    )
    slices.append(replace(slices[0], changes=[*others, row]))
    keys = order(by, lambda change: (change.kind,))(TableCatalog())
    found = [
        [[change.kind for change in part.changes] for part in stage]
        for stage in stages(Batch(tuple(slices)), 4, keys)
    ]
    assert [[["schema"]], [["resync"]], [["publication"]], [["insert"]]] == found[-4:]
    if by == "routing_key":
        assert [[["insert", "insert"], ["truncate"], ["message"]]] == found[:-4]


@pytest.mark.parametrize(
    ("type_oid", "texts"),
    [(1700, ("1.0", "1.00")), (1042, ("a", "a ")), (701, ("0", "-0")), (90001, ("a", "A"))],
    ids=["numeric", "bpchar", "float8", "unknown"],
)
def test_equal_keys_with_different_bytes(type_oid, texts):
    """Changes of such a key stay in order: the whole table is ordered."""
    stream = Stream()
    table = stream.table("t", column("id", type_oid, key=True), column("note"))
    first, second = texts
    stream.transaction(table.insert(first, "x"), table.delete(first, None), table.insert(second, "y"))
    (stage,) = stages(Batch(tuple(stream.slices())), 4, order("key", None)(TableCatalog()))
    assert [[0, 1, 2]] == [[change.ordinal for change in part.changes] for part in stage]


def test_a_key_with_one_column_that_is_not_compared_as_bytes():
    """The whole table stays in order, whatever the other columns of the key are."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("n", 1700, key=True))
    stream.transaction(table.insert("1", "1.0"), table.delete("1", "1.00"), table.insert("2", "1"))
    (stage,) = stages(Batch(tuple(stream.slices())), 4, order("key", None)(TableCatalog()))
    assert [[0, 1, 2]] == [[change.ordinal for change in part.changes] for part in stage]


def test_an_update_that_lacks_its_key():
    """A key that is stored out of line and did not change is not sent, so the update waits for all others."""
    stream = Stream()
    table = stream.table("t", column("id", 25, key=True), column("note"))
    stream.transaction(table.insert("a", "x"), table.update(UNCHANGED, "y"), table.insert("b", "x"))
    batch = Batch(tuple(stream.slices()))
    assert [[[0]], [[1]], [[2]]] == [
        [[change.ordinal for change in part.changes] for part in stage]
        for stage in stages(batch, 4, order("key", None)(TableCatalog()))
    ]


def test_keys_of_enums_and_domains_are_compared():
    """A domain counts as its base type, and an enum's labels are unique."""
    stream = Stream()
    types = Types(
        [TypeInfo(90001, "public", "mood", "e"), TypeInfo(90002, "public", "d", "d", element=90001)]
    )
    for type_oid in (90001, 90002):
        table = stream.table(f"t{type_oid}", column("id", type_oid, key=True), column("note"))
        stream.transaction(table.insert("sad", "x"), table.insert("ok", "y"))
        (part,) = stream.slices()
        layout = Layout(part.changes[0].layout.relation, types)
        changes = [
            type(change)(change.transaction, change.ordinal, layout, change.message)
            for change in part.changes
        ]
        (stage,) = stages(Batch((replace(part, changes=changes),)), 4, order("key", None)(TableCatalog()))
        assert [1, 1] == [len(part) for part in stage]


def written(batch: Batch, catalog: TableCatalog | None = None) -> list[list[list]]:
    """Return the stages by key, each with the rows of its parts."""
    split = stages(batch, 4, order("key", None)(catalog or TableCatalog()))
    return [[[change.new or change.old for change in part.changes] for part in stage] for stage in split]


def in_order(batch: Batch, row: int, catalog: TableCatalog | None = None) -> bool:
    """Whether the changes of a row, identified by its constant value ``r``, are always written in order."""
    place: dict = {}
    for number, stage in enumerate(stages(batch, 4, order("key", None)(catalog or TableCatalog()))):
        for index, part in enumerate(stage):
            place |= {identity(change): (number, index, at) for at, change in enumerate(part.changes)}
    rows = [(change, change.new or change.old) for change in batch.changes]
    # Of a deleted row the key alone is there, which is the same.
    places = [
        place[identity(change)]
        for change, values in rows
        if row == int(values["r" if "r" in values else "id"])
    ]
    assert len(places) > 1
    return all(a[0] < b[0] or (a[:2] == b[:2] and a[2] < b[2]) for a, b in itertools.pairwise(places))


ID, ROW, OTHER = column("id", 23, key=True), column("r", 23), column("other", 23)


@pytest.mark.parametrize(
    ("described", "updates"),
    [
        ({"columns": (ID, ROW), "replica_identity": "f"}, lambda table, n: table.update(n, n, old=(n, n))),
        ({"columns": (ID, ROW), "replica_identity": "n"}, lambda table, n: table.insert(n, n)),
        ({"columns": (ID, ROW), "name": "renamed"}, lambda table, n: table.update(n, n)),
        ({"columns": (column("nr", 23, key=True), ROW)}, lambda table, n: table.update(n, n)),
        ({"columns": (column("id", 25, key=True), ROW)}, lambda table, n: table.update(f"0{n}", n)),
        ({"columns": (ID, ROW, column("new", 23))}, lambda table, n: table.update(n, n, None)),
        # Another unique index, another primary key, and one column dropped and added again.
        ({"columns": (column("id", 23), column("r", 23, key=True))}, lambda table, n: table.update(n, n)),
        ({"columns": (ID, column("r", 23, key=True))}, lambda table, n: table.update(n, n)),
        ({"columns": (ID, ROW)}, lambda table, n: table.update(f"9{n}", n)),
    ],
    ids=["full", "nothing", "table", "column", "type", "added", "index", "key", "again"],
)
def test_a_row_of_a_table_that_is_described_anew(described, updates):
    """A row's changes stay in order after changes of names, replica identity and key columns."""
    stream = Stream()
    table = stream.table("t", ID, ROW)
    numbers = [str(number) for number in range(1, 6)]
    stream.transaction(*(table.update(number, number) for number in (*numbers, "1", "1", "1")))
    table = stream.table(
        described.get("name", "t"),
        *described["columns"],
        replica_identity=described.get("replica_identity", "d"),
        replaces=table,
    )
    stream.transaction(*(updates(table, number) for number in (*numbers, "1")))
    batch = Batch(tuple(stream.slices()))
    assert all(in_order(batch, int(number)) for number in numbers)


@pytest.fixture
def partitions():
    """Return two partitions with different column orders, and the catalog that knows them."""
    stream = Stream()
    one = stream.table("one", ID, OTHER, ROW)
    two = stream.table("two", OTHER, ROW, ID)
    root = CatalogTable(1, "public", "t", ("id", "other", "r"), partitioned=True)
    leaves = [CatalogTable(each.oid, "public", each.name, parents=(1,)) for each in (one, two)]
    return stream, one, two, TableCatalog([root, *leaves])


def test_a_row_that_moves_to_another_partition(partitions):
    """The DELETE in one partition and the INSERT in the other stay in order; other rows do not wait."""
    stream, one, two, catalog = partitions
    stream.transaction(
        *(one.insert(str(number), "0", str(number)) for number in range(2, 8)),
        one.delete("1", None, "1"),
        two.insert("0", "1", "1"),
    )
    batch = Batch(tuple(stream.slices()))
    assert in_order(batch, 1, catalog)
    assert not in_order(batch, 1)
    assert 4 == len(written(batch, catalog)[0])


def test_a_partition_with_another_replica_identity(partitions):
    """If partitions have different key columns, changes of one wait for those of the other."""
    stream, one, two, catalog = partitions
    stream.transaction(one.insert("1", "0", "1"))
    two = stream.table("two", column("other", 23, key=True), ROW, column("id", 23), replaces=two)
    stream.transaction(
        *(one.update(str(number), "0", str(number)) for number in (2, 3, 4, 1)),
        one.delete("1", None, "1"),
        two.insert("0", "1", "1"),
        two.update("0", "1", "1"),
        one.update("1", "0", "1"),
    )
    assert in_order(Batch(tuple(stream.slices())), 1, catalog)


def test_key_columns_in_another_order():
    """A row that moves to a partition whose key columns have another order keeps its key."""
    stream = Stream()
    a, b, row = column("a", 23, key=True), column("b", 23, key=True), column("r", 23)
    one, two = stream.table("one", a, b, row), stream.table("two", b, a, row)
    catalog = TableCatalog(CatalogTable(each.oid, "public", each.name, parents=(1,)) for each in (one, two))
    stream.transaction(
        *(one.insert(str(number), "2", "0") for number in range(4)),
        one.insert("1", "2", "1"),
        two.insert("2", "1", "1"),
    )
    batch = Batch(tuple(stream.slices()))
    assert in_order(batch, 1, catalog)
    assert 1 == len(written(batch, catalog))


def test_two_tables_that_are_no_longer_known(partitions):
    """Both may have been partitions of one table, so a row may have moved from one to the other."""
    stream, one, two, _ = partitions
    catalog = TableCatalog()
    catalog.add([], [one.oid, two.oid])
    stream.transaction(one.insert("1", "0", "1"), one.delete("1", None, "1"), two.insert("0", "1", "1"))
    assert in_order(Batch(tuple(stream.slices())), 1, catalog)


def test_a_table_that_nobody_knows_any_more(partitions):
    """A table that is not in the catalog may have been a partition, so all others wait for it."""
    stream, one, two, _ = partitions
    catalog = TableCatalog(
        [CatalogTable(one.oid, "public", "one", parents=(1,)), CatalogTable(1, "public", "t")]
    )
    catalog.add([], [two.oid])
    stream.transaction(
        *(one.update(str(number), "0", str(number)) for number in (2, 3, 4, 1)),
        one.delete("1", None, "1"),
        two.insert("0", "1", "1"),
        one.insert("1", "0", "1"),
    )
    assert in_order(Batch(tuple(stream.slices())), 1, catalog)


def test_a_routing_key_whose_column_is_renamed():
    """After a rename a template returns other keys, so rows from before and after it are in different stages."""
    stream = Stream()
    table = stream.table("t", ID, column("tenant"))
    stream.transaction(*(table.insert(str(number), "a") for number in range(3)))
    table = stream.table("t", ID, column("customer"), replaces=table)
    stream.transaction(*(table.insert(str(number), "a") for number in range(3)))
    split = list(
        stages(
            Batch(tuple(stream.slices())), 4, order("routing_key", Routing("{new.tenant}"))(TableCatalog())
        )
    )
    assert [[["0", "1", "2"]], [["0"]], [["1", "2"]]] == [
        [[str(change.new["id"]) for change in part.changes] for part in stage] for stage in split
    ]


class Together(MemorySink):
    """No write returns before ``width`` writes are in progress."""

    concurrent = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.barrier = asyncio.Barrier(width)

    async def write(self, batch) -> None:
        async with asyncio.timeout(60):
            await self.barrier.wait()
        await super().write(batch)


async def test_a_concurrent_sink_is_called_several_times_at_once(harness):
    """The batch is accepted when all concurrent writes have returned."""
    sink = Together(3)
    harness = harness(sink, concurrency=3)
    end = harness.commit(1, 2, 3, 4, 5, 6)
    await harness.finish()
    assert {1, 2, 3, 4, 5, 6} == {change.new["id"] for change in sink.changes}
    assert end == harness.ledger.flushed


async def test_one_refusal_of_several_writes(harness, ids):
    """A rejection diverts only its own changes; the other writes continue."""

    class Half(MemorySink):
        concurrent = True

        async def write(self, batch) -> None:
            poison = [change for change in batch.changes if change.new["id"] == 2]
            if poison:
                raise PermanentError("no", rejected=list(batch.changes))
            await super().write(batch)

    letters, sink = MemorySink(), Half()
    harness = harness(sink, concurrency=3, on_error="dead_letter", dead_letters=letters)
    end = harness.commit(1, 2, 3)
    await harness.finish()
    assert {1, 3} == {change.new["id"] for change in sink.changes}
    assert [[2]] == ids(letters)
    assert end == harness.ledger.flushed


async def test_refusals_of_several_writes_come_one_at_a_time(harness):
    """The dead letters' sink gets one call at a time."""

    class Nothing(Sink):
        concurrent = True

        async def write(self, batch) -> None:
            raise PermanentError("no", rejected=list(batch.changes))

    class Serial(MemorySink):
        calls = most = 0

        async def write(self, batch) -> None:
            await self._alone(super().write(batch))

        async def flush(self) -> None:
            await self._alone(super().flush())

        async def _alone(self, call) -> None:
            self.calls += 1
            self.most = max(self.most, self.calls)
            await asyncio.sleep(0)
            await call
            self.calls -= 1

    letters = Serial()
    harness = harness(Nothing(), concurrency=3, on_error="dead_letter", dead_letters=letters)
    harness.commit(1, 2, 3)
    await harness.finish()
    assert {1, 2, 3} == {change.new["id"] for change in letters.changes}
    assert 1 == letters.most


def test_choices_that_do_not_go_together():
    """Contradictory options are refused when the delivery is created."""

    class Serial(Sink):
        async def write(self, batch):
            pass

    with pytest.raises(ConfigurationError, match="Serial does not support concurrent writes"):
        Delivery(Serial(), concurrency=2)
    with pytest.raises(ConfigurationError, match="at least 1"):
        Delivery(Serial(), concurrency=0)
    with pytest.raises(ConfigurationError, match="needs a routing_key"):
        order("routing_key", None)
    with pytest.raises(ConfigurationError, match="order is 'size', but must be"):
        order("size", None)
    with pytest.raises(ConfigurationError, match="needs dead_letters"):
        Delivery(Serial(), on_error="dead_letter")
    with pytest.raises(ConfigurationError, match="only with on_error"):
        Delivery(Serial(), dead_letters="folder")
    with pytest.raises(ConfigurationError, match="on_error is 'ignore', but must be"):
        Delivery(Serial(), on_error="ignore")
