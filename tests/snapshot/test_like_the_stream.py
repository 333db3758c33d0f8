"""A row that was loaded, and the same row as the stream brings it: the same event."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.by_day

VERSIONS = [15, 16, 18]
# What COPY escapes, what looks like its own signs, and what is easily taken for something else.
TEXTS = [
    "",
    "\\",
    "\\\\",
    "\\N",
    "\\.",
    "NULL",
    "a\tb",
    "a\nb",
    "a\r\nb",
    "\b\f\v",
    "\\t\\n",
    "\\x41",
    "\\101",
    "é\u2028\U0001f600",
    "'\"",
    "x" * 3000,
]


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_rows_are_those_of_the_stream(published):
    """A row that was loaded and the same row inserted later are the same event."""
    await published.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(10, 2), b bool, m mood, a text[], j jsonb, x bytea, "
        "ts timestamptz, missing text)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    row = "1.50, true, 'glad', '{a,NULL,\"b,\\t\\\\\"}', '{\"k\": [1, null]}', '\\x00ff', '2026-01-02 03:04:05.678+01', NULL"
    await published.execute(f"INSERT INTO t VALUES (1, {row})")

    loaded, streamed = await published.load_and_stream(f"INSERT INTO t VALUES (2, {row})")
    assert 1 == len(loaded) == len(streamed)
    assert streamed[0] | {"key": {"id": 1}, "new": streamed[0]["new"] | {"id": 1}} == loaded[0]


async def test_texts(published):
    """Every text comes as it is, also where it is a line by itself."""
    await published.execute("CREATE TABLE t (v text)", "CREATE PUBLICATION p FOR TABLE t")
    rows = [(text,) for text in [*TEXTS, None]]
    await published.connection.executemany("INSERT INTO t VALUES ($1)", rows)
    assert rows == [(event["new"]["v"],) for event in await published.deliver()]


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_empty_tables_and_tables_without_columns(published):
    """An empty table has no rows, and a table without columns has empty rows."""
    await published.execute(
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE TABLE bare ()",
        "CREATE PUBLICATION p FOR TABLE empty, bare",
        "INSERT INTO bare DEFAULT VALUES",
        "INSERT INTO bare DEFAULT VALUES",
    )
    loaded, streamed = await published.load_and_stream(
        "INSERT INTO empty VALUES (1)", "INSERT INTO bare DEFAULT VALUES"
    )
    assert [("bare", {}), ("bare", {})] == [(event["table"], event["new"]) for event in loaded]
    assert [("empty", {"id": 1}), ("bare", {})] == [(event["table"], event["new"]) for event in streamed]


async def test_odd_names(published):
    """Schemas, tables and columns with quotes, dots, capitals and spaces."""
    await published.execute(
        'CREATE SCHEMA "S.1 ""x"""',
        'CREATE TABLE "S.1 ""x"""."select; Drop" ("a b" int PRIMARY KEY, "C""d" int, "é" int, "\\" int, "{0}" int)',
        'CREATE PUBLICATION p FOR TABLE "S.1 ""x"""."select; Drop"',
        'INSERT INTO "S.1 ""x"""."select; Drop" VALUES (1, 2, 3, 4, 5)',
    )
    loaded, streamed = await published.load_and_stream(
        'UPDATE "S.1 ""x"""."select; Drop" SET "a b" = 9',
    )
    new = {"a b": 1, 'C"d': 2, "é": 3, "\\": 4, "{0}": 5}
    assert ('S.1 "x"', "select; Drop", {"a b": 1}, new) == tuple(
        loaded[0][name] for name in ("schema", "table", "key", "new")
    )
    assert new | {"a b": 9} == streamed[0]["new"]


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        ("DEFAULT", {"id": 1}),
        ("FULL", None),
        ("NOTHING", None),
        ("USING INDEX t_v", {"v": 2}),
    ],
)
async def test_replica_identities(published, identity, key):
    """The key is that of the identity, as it is in the stream."""
    await published.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)",
        "CREATE UNIQUE INDEX t_v ON t (v)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t VALUES (1, 2)",
    )
    loaded, streamed = await published.load_and_stream("TRUNCATE t", "INSERT INTO t VALUES (1, 2)")
    assert key == loaded[0]["key"]
    assert streamed[1:] == loaded


async def test_a_key_with_included_columns(published):
    """INCLUDE columns of an index are no part of the key."""
    await published.execute(
        "CREATE TABLE t (id int, v int, PRIMARY KEY (id) INCLUDE (v))",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t VALUES (1, 2)",
    )
    loaded, streamed = await published.load_and_stream("TRUNCATE t", "INSERT INTO t VALUES (1, 2)")
    assert {"id": 1} == loaded[0]["key"]
    assert streamed[1:] == loaded


async def test_dropped_columns(published):
    """Dropped columns are not read, and the others keep their values."""
    await published.execute(
        "CREATE TABLE t (gone int, id int PRIMARY KEY, also_gone text, v text)",
        "INSERT INTO t VALUES (0, 1, 'x', 'y')",
        "ALTER TABLE t DROP COLUMN gone, DROP COLUMN also_gone",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    (event,) = await published.deliver()
    assert ({"id": 1}, {"id": 1, "v": "y"}) == (event["key"], event["new"])
