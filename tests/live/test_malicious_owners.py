"""A role that may create objects in a published schema cannot run SQL as the pipeline's role."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import Pipeline
from aiorepl.errors import ConfigurationError
from aiorepl.testing.faults import MemorySink
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.opening import connect_sql
from aiorepl.wire.sql import SqlConnection

# A session's lock is not rolled back, and everyone may read pg_locks.
EVIL = """
CREATE FUNCTION {0}.evil(who text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> '{0}' THEN PERFORM pg_advisory_lock(4711), pg_sleep(0.2); END IF;
  RETURN true;
END $$;
CREATE DOMAIN {0}.checked AS text CHECK ({0}.evil(value));
CREATE DOMAIN {0}.checked_number AS int CHECK ({0}.evil(value::text));
CREATE TYPE {0}.label AS ENUM ('a', 'b');
CREATE FUNCTION {0}.cast_evil({0}.label) RETURNS text LANGUAGE sql AS $$ SELECT {0}.evil('')::text $$;
CREATE CAST ({0}.label AS text) WITH FUNCTION {0}.cast_evil({0}.label) AS IMPLICIT;
CREATE TYPE {0}.pair AS (a {0}.checked, b int);
CREATE TYPE {0}.span AS RANGE (SUBTYPE = {0}.checked);
CREATE FUNCTION {0}.equal(varchar, varchar) RETURNS bool LANGUAGE sql AS $$ SELECT {0}.evil('') $$;
CREATE OPERATOR {0}.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = {0}.equal);
"""


@dataclass
class Mallory:
    """A role that owns a schema and nothing else. ``watch`` is a superuser's connection."""

    name: str
    connection: asyncpg.Connection
    watch: asyncpg.Connection

    async def has_run(self) -> bool:
        """Whether a connection of another role has called the function; its lock lasts as long as that connection."""
        return bool(
            await self.watch.fetchval(
                "SELECT true FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 LIMIT 1"
            )
        )


@pytest.fixture
async def mallory(published) -> AsyncIterator[Mallory]:
    """The attacker, with types, casts and operators in the schema."""
    name = f"mallory_{secrets.token_hex(4)}"
    await published.execute(
        f"CREATE ROLE {name} LOGIN PASSWORD 'm'", f"CREATE SCHEMA {name} AUTHORIZATION {name}"
    )
    parts = urlsplit(published.dsn)
    dsn = parts._replace(netloc=f"{name}:m@{parts.netloc.rpartition('@')[2]}").geturl()
    connection, watch = await asyncpg.connect(dsn), await asyncpg.connect(published.dsn)
    await connection.execute(EVIL.format(name))
    yield Mallory(name, connection, watch)
    await connection.close()
    await watch.close()
    await published.execute(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


async def watched(mallory: Mallory, task: asyncio.Future[None]) -> bool:
    """Whether the function was called before the task ended."""
    while not task.done():
        if await mallory.has_run():
            return True
        await asyncio.sleep(0.005)
    return False


@pytest.mark.parametrize(
    "where",
    [
        "texts = '{x}'",
        "texts IN ('{x}', '{y}')",
        "label = 'a'",
        "label IN ('a', 'b') AND NOT label <> 'a'",
        "pair = '(x,1)'",
        "span = '[a,b)'",
        "domain = 'x'",
        "domain IN ('x', 'y')",
        "domain LIKE 'x'",
        "number BETWEEN 1 AND 5",
        "number = '1'",
        "name = 'x'",
    ],
)
async def test_a_condition_calls_no_function_of_its_types(published, mallory, small, where):
    """A signal's condition reads the rows, and calls neither a CHECK nor a cast nor an operator of the table's owner."""
    await mallory.connection.execute(
        f"CREATE TABLE {mallory.name}.t (id int PRIMARY KEY, texts {mallory.name}.checked[], label {mallory.name}.label, "
        f"pair {mallory.name}.pair, span {mallory.name}.span, domain {mallory.name}.checked, number "
        f"{mallory.name}.checked_number, name varchar(5));"
        f"INSERT INTO {mallory.name}.t VALUES (1, '{{x}}', 'a', ROW('x', 1), '[a,b)', 'x', 1, 'x')"
    )
    await published.create_slot()
    sink = MemorySink()
    async with Pipeline(published.source(), {"m": sink}, snapshot=small, reconnect=None) as pipeline:
        await pipeline.started()
        task = asyncio.ensure_future(pipeline.resnapshot(f"{mallory.name}.t", where))
        assert not await watched(mallory, task)
        await task
        await sink.wait_for_changes(1)
    assert [("read", 1)] == [(change.kind, change.new["id"]) for change in sink.changes]


@pytest.mark.parametrize(
    "where", ["label < 'b'", "label LIKE 'a'", "texts BETWEEN '{a}' AND '{b}'", "t = '(1)'"]
)
async def test_a_condition_that_would_call_one_is_refused(published, mallory, small, where):
    """The error names the column and its type; a whole row is no column."""
    await mallory.connection.execute(
        f"CREATE TABLE {mallory.name}.t (id int PRIMARY KEY, texts {mallory.name}.checked[], label {mallory.name}.label)"
    )
    await published.create_slot()
    async with Pipeline(published.source(), {"m": MemorySink()}, snapshot=small, reconnect=None) as pipeline:
        await pipeline.started()
        with pytest.raises(
            ConfigurationError, match=r'only by =, <> and IN, because its type is mallory|"t", which is no'
        ):
            await pipeline.resnapshot(f"{mallory.name}.t", where)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("{0}.checked[]", "ARRAY[g::text]::{0}.checked[]"),
        ("{0}.pair", "ROW(g::text, 1)::{0}.pair"),
        ("{0}.span", "{0}.span(lpad(g::text, 9, '0'), NULL)"),
        ("{0}.label", "'a'::{0}.label"),
        ("{0}.checked", "g::text::{0}.checked"),
        ("{0}.checked_number", "g::{0}.checked_number"),
    ],
    ids=["array", "composite", "range", "enum", "domain", "domain of number"],
)
async def test_bounds_of_keys_call_no_function(published, mallory, small, key, value):
    """A snapshot of a partitioned table is cut into ranges of its key, and calls no CHECK and no cast of the key's types."""
    name = mallory.name
    await published.execute(
        "DROP PUBLICATION p", "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)"
    )
    await mallory.connection.execute(
        f"CREATE TABLE {name}.t (k {key.format(name)}, id int, PRIMARY KEY (k, id)) PARTITION BY HASH (id);"
        f"CREATE TABLE {name}.t0 PARTITION OF {name}.t FOR VALUES WITH (MODULUS 1, REMAINDER 0);"
        f"INSERT INTO {name}.t SELECT {value.format(name)}, g FROM generate_series(1, 3000) g"
    )
    sink = MemorySink()
    async with Pipeline(published.source(), {"m": sink}, snapshot=small, reconnect=None) as pipeline:
        loading = asyncio.ensure_future(sink.wait_for_changes(3000))
        assert not await watched(mallory, loading)
        again = asyncio.ensure_future(pipeline.resnapshot(f"{name}.t"))
        assert not await watched(mallory, again)
        await again


@pytest.mark.parametrize("open_one", [connect_sql, ReplicationConnection.open, SqlConnection.open])
async def test_queries_find_no_operators_of_others(published, mallory, open_one):
    """Every connection has an empty search_path, whatever the role's is."""
    await published.execute(
        f"CREATE FUNCTION {mallory.name}.joined(oid, oid) RETURNS text LANGUAGE sql AS $$ SELECT {mallory.name}.evil('')::text $$",
        f"CREATE OPERATOR {mallory.name}.|| (LEFTARG = oid, RIGHTARG = oid, FUNCTION = {mallory.name}.joined)",
        f"ALTER ROLE CURRENT_USER IN DATABASE {urlsplit(published.dsn).path[1:]} SET search_path = {mallory.name}, public",
    )
    connection = await open_one(published.dsn)
    read = connection.fetch if open_one is connect_sql else connection.query
    (row,) = await read("SELECT current_setting('search_path') AS path, 1::oid || '2' AS joined")
    assert {"path": "", "joined": "12"} == dict(row)
    connection.terminate() if open_one is connect_sql else connection.abort()


async def test_a_view_in_the_place_of_a_table(published, mallory):
    """A view that replaces a table after its look-up is refused, because its functions would run as the pipeline's role."""
    await mallory.connection.execute(f"CREATE VIEW {mallory.name}.v AS SELECT {mallory.name}.evil('') AS id")
    connection = await connect_sql(published.dsn)
    try:
        with pytest.raises(asyncpg.PostgresError, match="access to non-system view"):
            await connection.fetch(f"SELECT id FROM ONLY {mallory.name}.v")
    finally:
        connection.terminate()
