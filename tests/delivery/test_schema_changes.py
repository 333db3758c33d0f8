"""The SchemaChange that a sink gets when a table is described again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aiorepl import LSN, SchemaChange
from aiorepl.pgoutput.relations import Attribute, Column, Relation
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.changes import Insert
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaTracker
from aiorepl.transactions.transaction import Transaction
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.selection import Selection
from aiorepl.values import Types

INT4, INT8, TEXT, VARCHAR = 23, 20, 25, 1043
ID, A, B = column("id", INT4, key=True), column("a"), column("b")


def relation(
    *columns: Column,
    schema: str = "public",
    name: str = "t",
    identity: str = "d",
    oid: int = 7,
    numbers: Sequence[int | None] = (),
) -> Relation:
    """Return a Relation message; ``numbers`` are the columns' attribute numbers, as far as they are known."""
    known = {
        column.name: Attribute(number)
        for column, number in zip(columns, numbers, strict=False)
        if number is not None
    }
    return Relation(oid, schema, name, identity, columns, attributes=known)


TOLD = ("added", "dropped", "retyped", "renamed", "replica_identity", "key", "table_renamed")


def differences(change: SchemaChange | None) -> dict | None:
    """Return the differences of a schema change, without empty ones."""
    if change is None:
        return None
    found = {name: value for name in TOLD if (value := getattr(change, name))}
    return found | ({"first": True} if change.first else {})


def told(*relations: Relation) -> list[dict | None]:
    """Return what the tracker reports for each description."""
    tracker = SchemaTracker()
    transaction = Transaction(1, LSN(1), 0)
    rows = [Insert(transaction, 0, Layout(each, Types()), None) for each in relations]
    return [differences(tracker.observe(row)) for row in rows]


FIRST = {"first": True}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ([ID, A], [ID, A, B], {"added": (B,)}),
        ([ID, A, B], [ID, B], {"dropped": (A,)}),
        ([ID, A], [ID, column("a", VARCHAR)], {"retyped": ((A, column("a", VARCHAR)),)}),
        (
            [column("a", VARCHAR, type_modifier=14)],
            [column("a", VARCHAR, type_modifier=24)],
            {"retyped": ((column("a", VARCHAR, type_modifier=14), column("a", VARCHAR, type_modifier=24)),)},
        ),
        ([ID, A], [ID, B], {"dropped": (A,), "added": (B,)}),
        ([ID, A], [ID, column("b", VARCHAR)], {"dropped": (A,), "added": (column("b", VARCHAR),)}),
        ([ID, A, column("c")], [ID, column("c"), B], {"dropped": (A,), "added": (B,)}),
        ([ID, A], [ID, B, column("c")], {"dropped": (A,), "added": (B, column("c"))}),
        ([ID, A, column("c")], [ID, B], {"dropped": (A, column("c")), "added": (B,)}),
        ([ID, A, B], [ID, B, A], None),
        ([ID, A], [ID, A], None),
        ([], [], None),
        ([ID, A], [column("id", INT4), column("a", key=True)], {"key": (("id",), ("a",))}),
        ([ID, A], [ID, column("a", key=True)], {"key": (("id",), ("id", "a"))}),
        ([ID, A], [A, ID], None),
    ],
)
def test_columns(before, after, changed):
    """Added, dropped and retyped columns and a new key are reported; without numbers no column counts as renamed."""
    assert [FIRST, changed] == told(relation(*before), relation(*after))


NO = column("no", INT4, key=True)
C, C8 = column("c"), column("c", INT8)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (([ID, A], [1, 2]), ([ID, B], [1, 2]), {"renamed": ((A, B),)}),
        (([ID, A], [1, 2]), ([ID, B], [1, 3]), {"dropped": (A,), "added": (B,)}),
        (([ID, A], [1, 2]), ([ID, C8], [1, 2]), {"renamed": ((A, C8),), "retyped": ((A, C8),)}),
        (([ID, A, B], [1, 2, 3]), ([ID, B, A], [1, 2, 3]), {"renamed": ((A, B), (B, A))}),
        (([ID, A], [1, 2]), ([ID, A], [1, 3]), {"dropped": (A,), "added": (A,)}),
        (
            ([ID, A, B], [1, 2, 3]),
            ([ID, C, A], [1, 3, 4]),
            {"renamed": ((B, C),), "dropped": (A,), "added": (A,)},
        ),
        (([ID, A], [1, 2]), ([NO, A], [1, 2]), {"renamed": ((ID, NO),)}),
        # A number that is known for one of the two says nothing of a column under the same name.
        (([ID, A], [1, None]), ([ID, A], [1, 3]), None),
        (([ID, A], [1, 2]), ([ID, A], [1, None]), None),
        (([ID, A], [1, None]), ([ID, B], [1, 2]), {"dropped": (A,), "added": (B,)}),
        (([ID, A], [1, 2]), ([ID, A, B], [1, None, 2]), {"renamed": ((A, B),), "added": (A,)}),
    ],
)
def test_numbers(before, after, changed):
    """A column with the same attribute number is the same column, under whatever name and type."""
    (was, numbers), (now, later) = before, after
    assert [FIRST, changed] == told(relation(*was, numbers=numbers), relation(*now, numbers=later))


def test_an_equal_description_without_numbers():
    """A description without numbers, such as a snapshot's, does not hide a rename after it."""
    assert [FIRST, None, {"renamed": ((A, B),)}] == told(
        relation(ID, A, numbers=[1, 2]), relation(ID, A), relation(ID, B, numbers=[1, 2])
    )
    # Too late to say that it was created again: rows since then may have its values.
    assert [FIRST, None, None, {"dropped": (A,), "added": (A,)}] == told(
        relation(ID, A, numbers=[1, 2]),
        relation(ID, A),
        relation(ID, A, numbers=[1, 3]),
        relation(ID, A, numbers=[1, 4]),
    )


def test_missing_values():
    """NULL is distinguished from a value that is not known."""
    known = {
        "id": Attribute(1),
        "a": Attribute(2, "x", missing_known=True),
        "b": Attribute(3, None, missing_known=True),
    }
    table = Relation(7, "public", "t", "d", (ID, A, B), attributes=known)
    row = Insert(Transaction(1, LSN(1), 0), 0, Layout(table, Types()), None)
    assert {"a": "x", "b": None} == SchemaTracker().observe(row).missing_values


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({}, {"name": "u"}, {"table_renamed": (("public", "t"), ("public", "u"))}),
        ({}, {"schema": "s"}, {"table_renamed": (("public", "t"), ("s", "t"))}),
        ({}, {"identity": "i"}, {"replica_identity": ("d", "i")}),
        ({}, {"identity": "f"}, {"replica_identity": ("d", "f"), "key": (("id",), ())}),
        ({"identity": "f"}, {"identity": "n"}, {"replica_identity": ("f", "n")}),
        ({"schema": ""}, {"schema": "pg_catalog"}, None),
    ],
    ids=str,
)
def test_tables(before, after, changed):
    """A new name and a new replica identity are reported under the table's new name."""
    assert [FIRST, changed] == told(relation(ID, A, **before), relation(ID, A, **after))


def test_everything_at_once():
    """One description may contain several changes."""
    (_, change) = told(
        relation(ID, A, B),
        relation(column("id", INT8, key=True), A, column("c", INT8), name="u", identity="f"),
    )

    assert {
        "added": (column("c", INT8),),
        "dropped": (B,),
        "retyped": ((ID, column("id", INT8, key=True)),),
        "replica_identity": ("d", "f"),
        "key": (("id",), ()),
        "table_renamed": (("public", "t"), ("public", "u")),
    } == change


def test_tables_are_told_apart_by_oid():
    """Tables are identified by oid: a table created under an old name counts as new."""
    assert [FIRST, FIRST, None] == told(relation(ID), relation(A, oid=8), relation(ID))


def test_step_by_step():
    """Each description is compared with the previous one; an equal one reports nothing."""
    once = relation(ID, A)

    changes = told(relation(ID), once, once, relation(ID, A), relation(ID))

    assert [
        FIRST,
        {"added": (A,)},
        None,
        None,
        {"dropped": (A,)},
    ] == changes


def test_in_order_with_the_rows():
    """With a selection, only visible differences are reported, before the first selected row."""
    stream, selection, tracker = Stream(), Selection(drop=("*.*.secret",)), SchemaTracker()
    table = stream.table("t", ID)
    stream.transaction(table.insert("1"))
    table = stream.table("t", ID, column("secret"), replaces=table)
    stream.transaction(table.insert("2", "x"))
    table = stream.table("t", ID, column("secret"), A, replaces=table)
    stream.transaction(table.insert("3", "x", "y"), table.insert("4", "x", "y"))

    seen = [
        differences(change) if isinstance(change, SchemaChange) else change.new["id"]
        for part in stream.slices()
        for change in tracker.announced(StreamFilter(selection).apply(part)).changes
    ]

    assert [FIRST, 1, 2, {"added": (A,)}, 3, 4] == seen


async def test_a_sink_that_asked_gets_them(harness):
    """A schema change has the transaction and ordinal of its row; rows keep their ordinals."""
    sink = MemorySink()
    harness = harness(sink, schema_changes=True)
    harness.commit(1)
    harness.table = harness.stream.table("items", ID, A, B, replaces=harness.table)
    harness.receive(
        harness.stream.transaction(harness.table.insert("2", "x", "y"), harness.table.insert("3", "x", "y"))
    )
    await harness.finish()
    kinds = [(change.kind, change.ordinal) for change in sink.changes]
    assert [("schema", 0), ("insert", 0), ("schema", 0), ("insert", 0), ("insert", 1)] == kinds
    assert [["a", "b"], ["note"]] == [
        [column.name for column in columns] for columns in (sink.changes[2].added, sink.changes[2].dropped)
    ]
