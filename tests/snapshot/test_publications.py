"""The initial snapshot leaves out what the publication leaves out."""

from __future__ import annotations

import pytest

from aiorepl.snapshot.tables import published_tables

pytestmark = pytest.mark.by_day

VERSIONS = [15, 16, 18]


def rows(events):
    """Tables and rows."""
    return sorted(((event["table"], event["new"]) for event in events), key=repr)


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_column_lists(published):
    """Columns that are not published are not there."""
    await published.execute(
        "CREATE TABLE t (id int PRIMARY KEY, public text, secret text)",
        "CREATE PUBLICATION p FOR TABLE t (public, id)",
        "INSERT INTO t VALUES (1, 'a', 'b')",
    )
    loaded, streamed = await published.load_and_stream("TRUNCATE t", "INSERT INTO t VALUES (1, 'a', 'b')")
    assert {"id": 1, "public": "a"} == loaded[0]["new"]
    assert streamed[1:] == loaded


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_row_filters(published):
    """Rows that are not published are not there; with quotes and all kinds of operators in the filter."""
    await published.execute(
        'CREATE TABLE t (id int PRIMARY KEY, "o\'Name" text)',
        "CREATE PUBLICATION p FOR TABLE t WHERE (id % 2 = 1 AND \"o'Name\" <> 'it''s %s {0}' OR id = 4)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i, 'n' FROM generate_series(1, 4) i",
        "INSERT INTO t VALUES (5, 'it''s %s {0}')",
    )
    assert [1, 3, 4] == [event["new"]["id"] for event in await published.deliver()]


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
@pytest.mark.parametrize("root", [False, True])
async def test_partitioned_tables(published, root):
    """Rows of partitioned tables are read once, under their partitions or their root."""
    await published.execute(
        "CREATE TABLE parent (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parent FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high (v text, id int NOT NULL PRIMARY KEY)",
        "ALTER TABLE parent ATTACH PARTITION high FOR VALUES FROM (10) TO (20)",
        f"CREATE PUBLICATION p FOR TABLE parent WITH (publish_via_partition_root = {root})",
        "INSERT INTO parent VALUES (1, 'a'), (11, 'b')",
    )
    loaded, streamed = await published.load_and_stream(
        "DELETE FROM parent", "INSERT INTO parent VALUES (1, 'a'), (11, 'b')"
    )
    expected = ["parent", "parent"] if root else ["high", "low"]
    assert expected == sorted(event["table"] for event in loaded)
    assert rows(event for event in streamed if event["kind"] == "insert") == rows(loaded)


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_a_root_beside_its_partitions(loaded):
    """If publications have both a root and its partitions, rows are read once, as the stream names them: as the root's."""
    await loaded.connection.execute(
        "CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE middle PARTITION OF parent FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF middle FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF parent FOR VALUES FROM (10) TO (20);"
        "CREATE PUBLICATION roots FOR TABLE parent, low WITH (publish_via_partition_root);"
        "CREATE PUBLICATION middles FOR TABLE middle WITH (publish_via_partition_root);"
        "INSERT INTO parent VALUES (1), (11)"
    )
    whole = {"public.parent": [{"id": 1}, {"id": 11}]}
    assert whole == await loaded.tables("p", "roots")
    assert whole == await loaded.tables("middles", "roots")
    assert {"public.middle": [{"id": 1}], "public.high": [{"id": 11}]} == await loaded.tables("middles", "p")


async def test_inheritance(published):
    """A plain parent's rows are its own; a child's come as the child's, once."""
    await published.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "CREATE PUBLICATION p FOR TABLE parent",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2)",
    )
    assert [("child", {"id": 2}), ("parent", {"id": 1})] == rows(await published.deliver())


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_generated_columns(published):
    """Generated columns are left out, as in the stream."""
    await published.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t (id, v) VALUES (1, 'x')",
    )
    loaded, streamed = await published.load_and_stream("TRUNCATE t", "INSERT INTO t (id, v) VALUES (1, 'x')")
    assert {"id": 1, "v": "x"} == loaded[0]["new"]
    assert streamed[1:] == loaded


async def test_published_generated_columns(published):
    """PostgreSQL 18 publishes stored ones when it is asked to."""
    await published.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, "
        "thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL)",
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_generated_columns = stored)",
        "INSERT INTO t (id) VALUES (1)",
    )
    loaded, streamed = await published.load_and_stream("TRUNCATE t", "INSERT INTO t (id) VALUES (1)")
    assert {"id": 1, "twice": 2} == loaded[0]["new"]
    assert streamed[1:] == loaded


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
async def test_whole_databases_and_schemas(published, publication):
    """All their tables, and nothing that is not one; none that is unlogged or temporary."""
    await published.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)",
        "CREATE VIEW v AS SELECT * FROM a",
        f"CREATE PUBLICATION p {publication}",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO u VALUES (2)",
    )
    assert [("a", {"id": 1})] == rows(await published.deliver())


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_keys_with_operators_elsewhere(loaded):
    """A key whose operators are not in pg_catalog, like those of extensions, is not compared by them, because anyone may create
    operators in other schemas.
    """
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int NOT NULL, v int PRIMARY KEY);"
        "CREATE OPERATOR CLASS public.other FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, "
        "OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);"
        "CREATE UNIQUE INDEX b_id ON b (id other); ALTER TABLE b REPLICA IDENTITY USING INDEX b_id;"
        "CREATE TABLE c (id int)"
    )
    tables = await published_tables(loaded.connection, ("p",))
    assert {"a": True, "b": False, "c": True} == {table.name: table.comparable for table in tables}
