"""The initial snapshot agrees with the slot, and has the form of the stream, for any table."""

from __future__ import annotations

import pytest

from aiorepl import LSN, SnapshotOptions
from tests.waiting import until

AWKWARD = [
    "tab\there",
    "new\nline",
    "return\rhere",
    "back\\slash",
    "\\N",
    "\\.",
    "",
    " ",
    "quote'\"",
    "ünïcode ☃",
    "\b\f\v",
]


async def test_each_chunk_is_a_transaction_below_the_slot(loaded):
    """Chunks end one after the other below the consistent point, each says what is complete with it, and the last slice ends at
    the point.
    """
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int); "
        "INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (3)"
    )
    *slices, end = await loaded.load()
    assert 3 == loaded.rows
    base = loaded.plan.base(loaded.consistent_point)
    assert [(True, LSN(base + number + 1)) for number in range(3)] == [
        (part.first, part.end_lsn) for part in slices
    ]
    assert [
        (0, LSN(base + number), loaded.consistent_point, table, 1, True, table == "c")
        for number, table in enumerate("abc")
    ] == [
        (
            part.transaction.xid,
            part.transaction.commit_lsn,
            part.transaction.snapshot.snapshot_lsn,
            part.transaction.snapshot.table,
            part.transaction.snapshot.number,
            part.transaction.snapshot.last_of_table,
            part.transaction.snapshot.last,
        )
        for part in slices
    ]
    assert [("read", "a", 1, 0), ("read", "a", 2, 1), ("read", "b", 3, 0)] == [
        (change.kind, change.table, change.key["id"], change.ordinal)
        for part in slices
        for change in part.changes
    ]
    assert (None, loaded.consistent_point) == (end.transaction, end.end_lsn)


async def test_a_table_that_is_read_ahead_has_a_rate(loaded):
    """The rows per second of a table count from the beginning of its reading, while the table before it is being delivered."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); "
        "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1), (2)"
    )

    async def read_ahead():
        await until(lambda: [each.rows for each in loaded.snapshot.counters.values()], [1, 2].__eq__)

    await loaded.load(delivering=read_ahead, options=SnapshotOptions(connections=2))
    assert all(each.statistics().rows_per_second > 0 for each in loaded.snapshot.counters.values())


async def test_what_is_committed_after_the_slot_is_not_in_it(loaded):
    """Rows that were committed after the slot's creation are not in the snapshot, but in the stream."""
    await loaded.connection.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    assert {"public.a": [{"id": 1}]} == await loaded.tables(meanwhile="INSERT INTO a VALUES (2)")


async def test_an_empty_table_is_an_empty_chunk(loaded):
    """An empty table has one chunk without rows, which completes it."""
    await loaded.connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
    part, _ = await loaded.load()
    assert ([], "a", True) == (
        list(part.changes),
        part.transaction.snapshot.table,
        part.transaction.snapshot.last_of_table,
    )


async def test_text_that_copy_escapes(loaded):
    """Tabs, line ends, backslashes and text that looks like NULL are unchanged; NULL is NULL."""
    await loaded.connection.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    values = [*AWKWARD, None]
    await loaded.connection.executemany("INSERT INTO a VALUES ($1, $2)", list(enumerate(values)))
    rows = (await loaded.tables())["public.a"]
    assert values == [row["v"] for row in sorted(rows, key=lambda row: row["id"])]


async def test_names_of_any_spelling(loaded):
    """Names of schemas, tables and columns may have quotes, spaces, dots, capitals and other scripts."""
    await loaded.connection.execute(
        'CREATE SCHEMA "Odd.schema"; CREATE TABLE "Odd.schema"."ta ""ble"" é" ("Id" int PRIMARY KEY, "se lect" text); '
        'INSERT INTO "Odd.schema"."ta ""ble"" é" VALUES (1, \'x\')'
    )
    assert {'Odd.schema.ta "ble" é': [{"Id": 1, "se lect": "x"}]} == await loaded.tables()


async def test_column_lists_and_row_filters(loaded):
    """Column lists and row filters apply; a row is read if it passes one of two filters."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY, open text, secret text); "
        "INSERT INTO a SELECT g, 'o', 's' FROM generate_series(1, 9) g; "
        "CREATE PUBLICATION low FOR TABLE a (id, open) WHERE (id < 3); "
        "CREATE PUBLICATION high FOR TABLE a (id, open) WHERE (id > 8)"
    )
    assert {"public.a": [{"id": key, "open": "o"} for key in (1, 2, 9)]} == await loaded.tables("low", "high")


@pytest.mark.parametrize(
    ("root", "expected"), [("true", ["public.a"]), ("false", ["public.a_high", "public.a_low"])]
)
async def test_partitioned_tables(loaded, root, expected):
    """Rows are read once, under the root or under their partitions, as in the stream."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id); "
        "CREATE TABLE a_low PARTITION OF a FOR VALUES FROM (0) TO (10); "
        "CREATE TABLE a_high PARTITION OF a FOR VALUES FROM (10) TO (20); INSERT INTO a VALUES (1), (11); "
        f"CREATE PUBLICATION parts FOR TABLE a WITH (publish_via_partition_root = {root})"
    )
    tables = await loaded.tables("parts")
    assert expected == sorted(tables)
    assert [1, 11] == sorted(row["id"] for rows in tables.values() for row in rows)


async def test_inherited_rows_come_once(loaded):
    """Rows of a child table are not read as the parent's."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (more text) INHERITS (a); "
        "INSERT INTO a VALUES (1); INSERT INTO b VALUES (2, 'x')"
    )
    assert {"public.a": [{"id": 1}], "public.b": [{"id": 2, "more": "x"}]} == await loaded.tables()


async def test_generated_columns_are_left_out(loaded):
    """Generated columns are left out, as in the stream, unless the publication has them."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED); INSERT INTO a VALUES (1)"
    )
    assert {"public.a": [{"id": 1}]} == await loaded.tables()


@pytest.mark.parametrize(
    ("identity", "key"),
    [("DEFAULT", {"id": 1}), ("USING INDEX other", {"code": "c"}), ("FULL", None), ("NOTHING", None)],
)
async def test_replica_identity(loaded, identity, key):
    """A row has the same key as in the stream."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY, code text NOT NULL, more text); "
        "CREATE UNIQUE INDEX other ON a (code) INCLUDE (more); "
        f"INSERT INTO a VALUES (1, 'c', 'm'); ALTER TABLE a REPLICA IDENTITY {identity}"
    )
    (change,) = [change for part in await loaded.load() for change in part.changes]
    assert key == (None if change.key is None else dict(change.key))


async def test_types_of_one_s_own_are_looked_up(loaded):
    """A domain is read as its base type, a composite by its fields."""
    await loaded.connection.execute(
        "CREATE DOMAIN positive AS int CHECK (value > 0); CREATE TYPE pair AS (x int, y text); "
        "CREATE TABLE a (id int PRIMARY KEY, n positive, p pair); INSERT INTO a VALUES (1, 5, (2, 'z'))"
    )
    assert {"public.a": [{"id": 1, "n": 5, "p": {"x": 2, "y": "z"}}]} == await loaded.tables()
