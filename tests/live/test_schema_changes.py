"""Schema changes on a real server: reported in order with the rows, however the table was altered."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import (
    BatchPolicy,
    ConnectionFailed,
    Delivery,
    Pipeline,
    PipelineState,
    RetryPolicy,
    SchemaChange,
    Source,
)
from aiorepl.testing.faults import MemorySink
from tests.waiting import DEADLINE, until

pytestmark = pytest.mark.by_day

SOON = BatchPolicy(flush_seconds=0.1)


def reported(sink) -> list:
    """Rows by their ids, schema changes by their fields."""
    return [
        {
            name: [column.name for column in getattr(change, name)]
            for name in ("added", "dropped")
            if getattr(change, name)
        }
        | {
            name: [(was.name, now.name) for was, now in getattr(change, name)]
            for name in ("retyped", "renamed")
            if getattr(change, name)
        }
        | ({"first": True} if change.first else {})
        if isinstance(change, SchemaChange)
        else (change.kind, change.new["id"])
        for change in sink.changes
    ]


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_a_schema_change_precedes_its_first_row(published, tmp_path, journal):
    """Added, dropped, retyped and renamed columns are reported in the transaction of the first such row, and never if that
    rolls back.
    """
    await published.create_slot()
    sink = MemorySink()
    pipeline = Pipeline(
        published.source(),
        [Delivery(sink, schema_changes=True)],
        journal=str(tmp_path) if journal else None,
        until="now",
        batches=SOON,
    )
    await published.execute("INSERT INTO items (id) VALUES (1)")
    await published.commit("ALTER TABLE items ADD extra int", "INSERT INTO items (id, extra) VALUES (2, 2)")
    await published.execute("ALTER TABLE items RENAME extra TO more", "INSERT INTO items (id) VALUES (3)")
    await published.execute("ALTER TABLE items ALTER more TYPE text", "INSERT INTO items (id) VALUES (4)")
    async with published.connection.transaction():
        await published.connection.execute("SAVEPOINT a")
        await published.connection.execute("ALTER TABLE items ADD never int")
        await published.connection.execute("INSERT INTO items (id) VALUES (5)")
        await published.connection.execute("ROLLBACK TO a")
        await published.connection.execute("INSERT INTO items (id) VALUES (6)")
    await published.execute("ALTER TABLE items DROP more", "INSERT INTO items (id) VALUES (7)")
    await pipeline.run()
    assert [
        {"first": True},
        ("insert", 1),
        {"added": ["extra"]},
        ("insert", 2),
        # It was dropped before the catalog was read, so its number is not known.
        {"added": ["more"], "dropped": ["extra"]},
        ("insert", 3),
        {"retyped": [("more", "more")]},
        ("insert", 4),
        ("insert", 6),
        {"dropped": ["more"]},
        ("insert", 7),
    ] == reported(sink)


async def test_a_restart_describes_each_table_again(published):
    """An alteration while no pipeline ran is found by comparison."""
    await published.create_slot()
    sink = MemorySink()
    for statement in ("INSERT INTO items (id) VALUES (1)", "INSERT INTO items (id) VALUES (2)"):
        await published.execute(statement)
        await Pipeline(
            published.source(), [Delivery(sink, schema_changes=True)], until="now", batches=SOON
        ).run()
        await published.execute("ALTER TABLE items ADD IF NOT EXISTS more int")
    assert [{"first": True}, ("insert", 1), {"first": True}, ("insert", 2)] == reported(sink)
    first, second = (change for change in sink.changes if isinstance(change, SchemaChange))
    assert [*first.relation.names, "more"] == [*second.relation.names]


async def applied(published, tmp_path, statements, *, journal: bool) -> MemorySink:
    """Deliver while the statements run, each after the row of the one before it has arrived."""
    sink = MemorySink()
    pipeline = Pipeline(
        published.source(),
        [Delivery(sink, schema_changes=True)],
        journal=str(tmp_path) if journal else None,
        batches=SOON,
    )
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pipeline.run())
        for number, group in enumerate(statements, 1):
            await published.execute(*group, f"INSERT INTO items (id) VALUES ({number})")

            async def rows() -> int:
                return sum(change.kind == "insert" for change in sink.changes)

            await until(rows, number.__eq__)
        pipeline.stop()
        await running
    return sink


@pytest.mark.parametrize(("server", "journal"), [(13, False), (18, True)], indirect=["server"])
async def test_columns_are_known_by_their_numbers(published, tmp_path, journal):
    """While the stream runs, renames are certain, and each new column has its value in the rows that existed."""
    await published.create_slot()
    sink = await applied(
        published,
        tmp_path,
        [
            (),
            ("ALTER TABLE items RENAME note TO remark",),
            (
                "ALTER TABLE items ADD a text DEFAULT 'it''s, \\ {x}', ADD b int[] DEFAULT '{1,NULL}'",
                "ALTER TABLE items ADD c box DEFAULT '(1,1),(0,0)', ADD d timestamptz DEFAULT '2026-01-02 03:04:05+01'",
                "ALTER TABLE items ADD e bytea DEFAULT '\\x00ff', ADD f int",
                "ALTER TABLE items ALTER a SET DEFAULT 'another'",
            ),
            ("ALTER TABLE items DROP a, ADD g text DEFAULT 'y'",),
            ("ALTER TABLE items ADD h float8 DEFAULT random()",),
            ("ALTER TABLE items ADD i int",),
            ("ALTER TABLE items DROP i", "ALTER TABLE items ADD i int DEFAULT 3"),
            (
                "ALTER TABLE items DROP i",
                "ALTER TABLE items ADD i bigint DEFAULT 5",
                "ALTER TABLE items RENAME g TO gg",
            ),
        ],
        journal=journal,
    )
    changes = [change for change in sink.changes if isinstance(change, SchemaChange)]
    assert [
        {"first": True},
        {"renamed": [("note", "remark")]},
        {"added": ["a", "b", "c", "d", "e", "f"]},
        {"added": ["g"], "dropped": ["a"]},
        {"added": ["h"]},
        {"added": ["i"]},
        {"added": ["i"], "dropped": ["i"]},
        {"added": ["i"], "dropped": ["i"], "renamed": [("g", "gg")]},
    ] == [found for found in reported(sink) if not isinstance(found, tuple)]
    missing = [
        {column.name: change.missing_values.get(column.name, "?") for column in change.added}
        for change in changes
    ]
    assert [
        {},
        {},
        {
            "a": "it's, \\ {x}",
            "b": "{1,NULL}",
            "c": "(1,1),(0,0)",
            "d": "2026-01-02 02:04:05+00",
            "e": "\\x00ff",
            "f": None,
        },
        {"g": "y"},
        # A volatile default rewrites the table, without changes of rows in WAL.
        {"h": "?"},
        {"i": None},
        # The same definition as before, and another column.
        {"i": "3"},
        {"i": "5"},
    ] == missing


async def test_a_partitioned_table_under_its_root(published, tmp_path):
    """The missing value is that of the partitions, if they agree."""
    await published.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
    )
    await published.create_slot()
    await published.execute(
        "INSERT INTO parts VALUES (1)",
        "ALTER TABLE parts ADD a int DEFAULT 7, ADD b int",
        "INSERT INTO parts VALUES (11)",
    )
    sink = MemorySink()
    await Pipeline(published.source(), [Delivery(sink, schema_changes=True)], until="now", batches=SOON).run()
    (_, change) = (change for change in sink.changes if isinstance(change, SchemaChange))
    assert {"id": None, "a": "7", "b": None} == change.missing_values


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_the_catalog_is_ahead(published, tmp_path, journal):
    """Rows from before several alterations are described by the catalog of afterwards, and no value is wrong."""
    await published.create_slot()
    sink = MemorySink()
    pipeline = Pipeline(
        published.source(),
        [Delivery(sink, schema_changes=True)],
        journal=str(tmp_path) if journal else None,
        until="now",
        batches=SOON,
    )
    await published.execute(
        "INSERT INTO items (id) VALUES (1)",
        "ALTER TABLE items ADD a text DEFAULT 'x'",
        "INSERT INTO items (id) VALUES (2)",
        "ALTER TABLE items RENAME a TO b",
        "INSERT INTO items (id) VALUES (3)",
        "ALTER TABLE items ADD a text DEFAULT 'y'",
        "INSERT INTO items (id) VALUES (4)",
    )
    await pipeline.run()
    changes = [change for change in sink.changes if isinstance(change, SchemaChange)]
    assert [
        {"first": True},
        {"added": ["a"]},
        {"renamed": [("a", "b")]},
        {"added": ["a"]},
    ] == [found for found in reported(sink) if not isinstance(found, tuple)]
    assert [("a", "x"), ("a", "y")] == [
        (column.name, change.missing_values[column.name]) for change in changes for column in change.added
    ]


REWRITES = {
    "volatile": (("ALTER TABLE items ADD c uuid DEFAULT md5(random()::text)::uuid",), "c"),
    "serial": (("ALTER TABLE items ADD c serial",), "c"),
    "type": (("ALTER TABLE items ADD c int DEFAULT 7", "ALTER TABLE items ALTER c TYPE bigint"), "c"),
    "present column": (("ALTER TABLE items ALTER note TYPE varchar(9) USING upper(note)",), "note"),
    # The values of these are NULL, or in the catalog; or the table has no older rows.
    "constant": (("ALTER TABLE items ADD c int DEFAULT 7",), None),
    "null": (("ALTER TABLE items ADD c int",), None),
    "rename": (("ALTER TABLE items RENAME note TO c",), None),
    "new table": (
        (
            "DROP TABLE items",
            "CREATE TABLE items (id serial PRIMARY KEY, note text)",
            "TRUNCATE items",
        ),
        None,
    ),
}


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize(("statements", "expected"), REWRITES.values(), ids=REWRITES)
@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_a_rewrite_before_the_first_row(published, caplog, statements, expected, stopped):
    """If a table was rewritten before its first row since the start, a warning names the columns whose values are lost."""
    # The truncate gives the table another file, as a rewrite does.
    await published.execute("TRUNCATE items", "INSERT INTO items (id, note) VALUES (1, 'a')")
    await _create_slot_after(published, "items")
    if stopped:
        await published.execute(*statements)
    sink = MemorySink()
    pipeline = Pipeline(published.source(), [Delivery(sink, schema_changes=True)], batches=SOON)
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pipeline.run())
        await until(lambda: _streams(pipeline))
        if not stopped:
            await published.execute(*statements)
        await published.execute("INSERT INTO items (id) VALUES (2)")

        async def rows() -> int:
            return sum(change.kind == "insert" for change in sink.changes)

        await until(rows, (1).__eq__)
        pipeline.stop()
        await running
    found = [record.getMessage() for record in caplog.records if "was altered" in record.getMessage()]
    assert (0 if expected is None else 1) == len(found), found
    assert expected is None or f"not in the stream: {expected}. " in found[0]


async def _create_slot_after(published, table: str) -> None:
    """Create a slot whose ``catalog_xmin`` is later than the table's creation, whatever ran meanwhile, such as autovacuum.

    A rewrite is told only then: with an earlier ``catalog_xmin`` the table may have been created since.
    """

    async def created() -> bool:
        await published.create_slot()
        later = await published.connection.fetchval(
            "SELECT s.catalog_xmin::text::int8 > (SELECT max(a.xmin::text::int8) FROM pg_attribute a "
            "WHERE a.attrelid = $2::text::regclass AND a.attnum > 0) FROM pg_replication_slots s WHERE s.slot_name = $1",
            published.slot,
            table,
        )
        if not later:
            await published.execute(f"SELECT pg_drop_replication_slot('{published.slot}')")
        return later

    await until(created)


async def _streams(pipeline: Pipeline) -> bool:
    return pipeline.statistics().state is PipelineState.RUNNING


@pytest.mark.parametrize(("failures", "known"), [(3, True), (1000, False)], ids=["for a moment", "for good"])
async def test_look_ups_that_the_server_refuses(published, tmp_path, monkeypatch, caplog, failures, known):
    """A refused look-up of columns is repeated after a reconnect, because a journal keeps its result for good. If the server always
    refuses them, the stream goes on without.
    """
    await published.create_slot()
    sink = MemorySink()
    look_up, refused = Source.look_up_columns, iter(range(failures))

    async def look_up_columns(source, oids):
        if next(refused, None) is not None:
            raise ConnectionFailed("the server refuses the connection: sorry, too many clients already")
        return await look_up(source, oids)

    monkeypatch.setattr(Source, "look_up_columns", look_up_columns)
    await published.execute("INSERT INTO items (id) VALUES (1)")
    await published.execute("ALTER TABLE items RENAME note TO remark", "INSERT INTO items (id) VALUES (2)")
    pipeline = Pipeline(
        published.source(),
        [Delivery(sink, schema_changes=True)],
        journal=str(tmp_path),
        until="now",
        batches=SOON,
        reconnect=RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.1),
    )
    await asyncio.wait_for(pipeline.run(), DEADLINE)

    renamed = [change for change in reported(sink) if "renamed" in change]
    assert [1, 2] == [change.new["id"] for change in sink.changes if not isinstance(change, SchemaChange)]
    assert known == (renamed == [{"renamed": [("note", "remark")]}])
    assert known != ("columns cannot be looked up" in caplog.text)
