"""Attributes of described columns come from a catalog that may be ahead of the stream."""

from __future__ import annotations

import pytest

from aiorepl.pgoutput.relations import Attribute, Relation
from aiorepl.source.catalog.attributes import CatalogColumn, CatalogColumns, attributes, left_out
from aiorepl.testing.messages import column

INT4, TEXT = 23, 25
# The transaction of the description, and transactions before and after it.
XID, BEFORE, AFTER = 1000, 900, 1100


def catalog(
    *columns: CatalogColumn, file: int = 7, rewritten: bool = False, listed: bool = False
) -> CatalogColumns:
    """Return a table of the catalog."""
    return CatalogColumns(7, file, rewritten, listed, columns)


def row(
    number: int, name: str | None, xmin: int = BEFORE, *missing: str, oid: int = TEXT, generated: bool = False
) -> CatalogColumn:
    """Return a row of pg_attribute; without a name, of a dropped column."""
    if name is None:
        return CatalogColumn(number, f"........pg.dropped.{number}........", 0, -1, True, False, xmin, ())
    return CatalogColumn(number, name, oid, -1, False, generated, xmin, missing)


def found(table: CatalogColumns, *names: str, previous: CatalogColumns | None = None) -> dict[str, object]:
    """Return the known attributes of a description's columns: number and missing value."""
    relation = Relation(7, "public", "t", "d", tuple(column(name) for name in names))
    return {
        name: (each.number, each.missing) if each.missing_known else each.number
        for name, each in attributes(relation, XID, table, previous).items()
    }


ID, A, B = row(1, "id"), row(2, "a"), row(3, "b")


@pytest.mark.parametrize(
    ("table", "names", "expected"),
    [
        ([ID, A], "id a", {"id": (1, None), "a": (2, None)}),
        ([ID, row(2, "a", BEFORE, "x")], "id a", {"id": (1, None), "a": (2, "x")}),
        ([ID, row(2, "a", XID, "x")], "id a", {"id": (1, None), "a": (2, "x")}),
        ([ID, row(2, "a", AFTER, "x")], "id a", {"id": (1, None), "a": (2, "x")}),
        # Dropped before.
        ([ID, row(2, None), B], "id b", {"id": (1, None), "b": (3, None)}),
        # Added or renamed later, or both.
        ([ID, A, row(3, "b", AFTER, "x")], "id a", {"id": (1, None), "a": (2, None)}),
        ([ID, row(2, "z", AFTER, "x")], "id a", {"id": (1, None), "a": (2, "x")}),
        (
            [ID, row(2, "b", AFTER), row(3, "a", AFTER)],
            "id a b",
            {"id": (1, None), "a": (2, None), "b": (3, None)},
        ),
        ([ID, row(2, "z", AFTER), row(3, "a", AFTER, "y")], "id a", {"id": (1, None), "a": (2, None)}),
        # Dropped later, and perhaps created again with another default.
        ([ID, row(2, None, AFTER), row(3, "a", AFTER, "y")], "id a", {"id": (1, None)}),
        ([ID, row(2, None, XID), row(3, "a", XID, "y")], "id a", {"id": (1, None)}),
        ([ID, row(2, None, AFTER), B], "id a b", {"id": (1, None), "b": (3, None)}),
        # The column has another type now, so its text is that of the other type.
        ([ID, row(2, "a", AFTER, "1", oid=INT4)], "id a", {"id": (1, None), "a": 2}),
        # Generated columns, which are published from PostgreSQL 18 on.
        ([ID, row(2, "g", generated=True), B], "id b", {"id": (1, None), "b": (3, None)}),
        ([ID, row(2, "g", generated=True), B], "id g b", {"id": (1, None), "g": 2, "b": (3, None)}),
        # The partitions differ.
        ([ID, row(2, "a", BEFORE, "x", "y")], "id a", {"id": (1, None), "a": 2}),
        # Another table: nothing fits.
        ([row(1, "x"), row(2, "y")], "id a", {}),
        ([], "id a", {}),
        # An xid from before the wraparound, and a frozen one.
        ([ID, row(2, "a", 2**32 - 5, "x")], "id a", {"id": (1, None), "a": (2, "x")}),
        ([ID, row(2, "a", 2, "x")], "id a", {"id": (1, None), "a": (2, "x")}),
    ],
)
def test_only_what_is_certain(table, names, expected):
    """A column gets the attribute that it must have had, whatever was altered since."""
    assert expected == found(catalog(*table), *names.split())


def test_a_rewritten_table_has_no_missing_values():
    """NULL is certain only if the table was not rewritten since the column was added."""
    before, now = catalog(ID, file=8, rewritten=True), catalog(ID, A, file=8, rewritten=True)
    assert {"id": 1, "a": 2} == found(now, "id", "a")
    assert {"id": 1, "a": (2, None)} == found(now, "id", "a", previous=before)
    assert {"id": 1, "a": 2} == found(now, "id", "a", previous=catalog(ID, file=7))
    assert {"id": 1, "a": 2} == found(now, "id", "a", previous=now)
    assert {"id": 1, "a": (2, "x")} == found(catalog(ID, row(2, "a", BEFORE, "x"), rewritten=True), "id", "a")


def test_a_column_list_hides_when_a_column_was_added():
    """A column that is published only now may have been written before, so its missing value is not known."""
    now = [ID, row(2, "a", BEFORE, "x"), row(3, "b", AFTER)]
    assert {"id": 1, "a": 2} == found(catalog(*now, listed=True), "id", "a", "b")
    before = catalog(ID, listed=True)
    assert {"id": 1, "a": 2} == found(catalog(*now[:2]), "id", "a", previous=before)


def test_an_attribute_is_comparable():
    """NULL and an unknown missing value differ."""
    assert Attribute(1, None, missing_known=True) != Attribute(1)


def test_columns_that_were_not_published_before():
    """Older rows have unknown values in columns that are older than the table's publication, and in columns that were not published before."""
    older = CatalogColumns(7, 7, False, False, (ID, A, row(3, "b", AFTER)), members=(XID,))
    assert {"id": 1, "a": 2, "b": (3, None)} == found(older, "id", "a", "b")
    first = Relation(7, "public", "t", "d", (column("id"),))
    generated = row(3, "g", XID, generated=True)
    assert {2, 3} == left_out(first, XID, catalog(ID, A, generated, row(4, "later", XID), row(5, None)))
    second = Relation(7, "public", "t", "d", (column("id"), column("a"), column("b")))
    known = attributes(second, XID, catalog(ID, A, B), None, {2})
    assert {"id": True, "a": False, "b": True} == {name: each.missing_known for name, each in known.items()}
