"""The plan of a snapshot, and the SQL of its chunks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aiorepl import LSN
from aiorepl.snapshot.chunk_query import copy_statement, keys_condition
from aiorepl.snapshot.chunks import (
    BlockRange,
    KeyRange,
    SnapshotPlan,
    TablePlan,
    block_ranges,
    key_ranges,
)
from aiorepl.snapshot.tables import PublishedColumn, PublishedTable

PLAN = SnapshotPlan(
    (
        TablePlan(1, "public", "a", 10, 8192, (None,)),
        TablePlan(2, "public", "b", None, 0, block_ranges(5, 2)),
        TablePlan(3, "s", "c", 5, 9, key_ranges([("1", "x'"), ("2", "")]), ("k", "l")),
    )
)
TABLE = PublishedTable(
    1,
    "S",
    "T, x",
    (PublishedColumn("a", 23, -1, True), PublishedColumn("b X", 25, -1, False)),
    ("a > 1", "b IS NULL"),
    "d",
    False,
    False,
)


def test_keys():
    """Bytes that are not UTF-8 are escaped; without operators keys are compared as text."""
    rows = [(b"it's \\",), (b"\xe9\xc3\xa9",)]
    listed = r"(ROW(E'it''s \\'), ROW(E'\xe9é'))"
    assert f'ROW("a") IN {listed}' == keys_condition(TABLE, rows)
    assert f"""ROW(pg_catalog.format('%s', "a")) IN {listed}""" == keys_condition(
        replace(TABLE, comparable=False), rows
    )


def test_every_block_is_in_one_chunk():
    """Ranges join, and the last one has no end, because the table may grow."""
    assert (BlockRange(0, 2), BlockRange(2, 4), BlockRange(4, None)) == block_ranges(5, 2)
    assert (BlockRange(0, 2), BlockRange(2, None)) == block_ranges(4, 2)
    assert (BlockRange(0, None),) == block_ranges(0, 2)


def test_every_key_is_in_one_chunk():
    """A bound is the last key of one range, and not in the next."""
    assert (KeyRange(None, ("1",)), KeyRange(("1",), ("2",)), KeyRange(("2",), None)) == key_ranges(
        [("1",), ("2",)]
    )


def test_chunks_are_numbered_over_the_plan_and_within_the_table():
    """Each chunk says what is complete with it."""
    assert 7 == len(PLAN)
    assert [
        (0, "a", 1, True, False),
        (1, "b", 1, False, False),
        (2, "b", 2, False, False),
        (3, "b", 3, True, False),
        (4, "c", 1, False, False),
        (5, "c", 2, False, False),
        (6, "c", 3, True, True),
    ] == [(c.number, c.table.name, c.part, c.last_of_table, c.last) for c in PLAN.chunks()]
    assert [5, 6] == [chunk.number for chunk in PLAN.chunks(5)]
    header = PLAN.chunk(6).header(LSN(100))
    assert (LSN(100), 3, "s", "c", 3, True, True) == (
        header.snapshot_lsn,
        header.oid,
        header.schema,
        header.table,
        header.number,
        header.last_of_table,
        header.last,
    )
    assert not PLAN.chunk(6).header(LSN(100), complete=False).last
    assert LSN(91) == PLAN.base(LSN(100))


def test_an_empty_plan():
    """A publication without tables has no chunk."""
    assert (0, []) == (len(SnapshotPlan(())), list(SnapshotPlan(()).chunks()))


def test_a_plan_survives_json():
    """The ledger keeps it as JSON."""
    assert PLAN == SnapshotPlan.from_json(json.loads(json.dumps(PLAN.to_json())))


@pytest.mark.parametrize(
    "damage",
    [
        lambda table: table.update(chunks=[]),
        lambda table: table.update(oid="1"),
        lambda table: table.update(rows=-1),
        lambda table: table.update(chunks=[{"first": -1, "end": None}]),
        lambda table: table.update(key=["k"], chunks=[{"after": None, "until": ["1", "2"]}]),
        lambda table: table.pop("size"),
        lambda table: table.update(schema=None),
    ],
)
def test_damaged_plans_are_refused(damage):
    """A damaged plan raises an error."""
    fields = PLAN.to_json()
    damage(fields["tables"][0])
    with pytest.raises((KeyError, TypeError, ValueError)):
        SnapshotPlan.from_json(fields)


def test_bounds_are_not_printed():
    """The bounds of keys are row data."""
    assert "x'" not in repr(PLAN)


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        (None, ""),
        (BlockRange(0, None), ""),
        (BlockRange(0, 4), "(ctid < '(4,0)') AND "),
        (BlockRange(4, 8), "(ctid >= '(4,0)') AND (ctid < '(8,0)') AND "),
        (BlockRange(8, None), "(ctid >= '(8,0)') AND "),
        (KeyRange(("1", "x'\\"), None), """(ROW("a", "b X") > ROW(E'1', E'x''\\\\')) AND """),
        (KeyRange(None, ("1", "2")), """(ROW("a", "b X") <= ROW(E'1', E'2')) AND """),
    ],
)
def test_the_command_of_a_chunk(rows, where):
    """Names and bounds are quoted, and the publication's filters hold together."""
    assert (
        """COPY (SELECT "a", CASE WHEN "b X" IS NOT DISTINCT FROM NULL THEN NULL ELSE pg_catalog.format('%s', "b X") END """
        f"""FROM ONLY "S"."T, x" WHERE {where}((a > 1) OR (b IS NULL))) TO STDOUT (FORMAT binary)"""
    ) == copy_statement(TABLE, b"bt", rows, ("a", "b X"))
