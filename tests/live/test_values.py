"""Values in native events, typed and as the server's text."""

from __future__ import annotations

import json

import pytest

from aiorepl import DataError, Pipeline
from aiorepl.testing.faults import MemorySink


async def test_typed_values(published):
    """Values use JSON's own types where there is one, all on one line."""
    await published.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE DOMAIN percent AS int CHECK (VALUE <= 100)",
        "CREATE TABLE kinds (id int8 PRIMARY KEY, ok bool, n numeric, f float8, m mood, d percent, a text[], "
        "g int[], j json, b jsonb, t timestamptz, r int4range, raw bytea)",
    )
    await published.create_slot()
    await published.execute(
        "INSERT INTO kinds VALUES (9007199254740993, true, 1.50, 'NaN', 'glad', 7, '{a,NULL,\"b,c\"}', "
        "'[2:3]={1,2}', E'{\"a\": 1.0,\\n \"a\": 2}', '{\"k\": [null, 1e2]}', '2026-01-02 03:04:05+00', "
        "'[1,5)', '\\x0102')"
    )
    expected = {
        "id": 9007199254740993,
        "ok": True,
        "n": "1.50",
        "f": "NaN",
        "m": "glad",
        "d": 7,
        "a": ["a", None, "b,c"],
        "g": [1, 2],
        "j": {"a": 2},
        "b": {"k": [None, 100]},
        "t": "2026-01-02 03:04:05+00",
        "r": "[1,5)",
        "raw": "\\x0102",
    }
    (line,) = await published.lines()
    assert expected == json.loads(line)["new"]
    assert b'"j":{"a": 1.0,  "a": 2}' in line


async def test_text_values(published):
    """With ``values="text"`` every column is the server's text, whatever the database's settings are."""
    await published.execute(
        "CREATE TABLE kinds (id int8 PRIMARY KEY, ok bool, f float8, a int[], j json, t timestamptz, i interval)",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET DateStyle = ''SQL, DMY''', current_database()); "
        "EXECUTE format('ALTER DATABASE %I SET IntervalStyle = ''iso_8601''', current_database()); "
        "EXECUTE format('ALTER DATABASE %I SET TimeZone = ''Asia/Tokyo''', current_database()); END $$",
    )
    await published.create_slot()
    await published.execute(
        "INSERT INTO kinds VALUES (1, false, 0.1, '[2:3]={1,2}', '{\"a\": 1.0}', '2026-01-02 03:04:05+00', '1 day')"
    )
    expected = {
        "id": "1",
        "ok": "f",
        "f": "0.1",
        "a": "[2:3]={1,2}",
        "j": '{"a": 1.0}',
        "t": "2026-01-02 03:04:05+00",
        "i": "1 day",
    }
    (event,) = await published.deliver(values="text")
    assert expected == event["new"]


@pytest.mark.parametrize("binary", [False, True])
async def test_types_nested_too_deep(published, binary):
    """A column whose type is nested too deep raises when it is read, and no other column or table is affected."""
    await published.execute(
        "CREATE TYPE c0 AS (f int)",
        *(f"CREATE TYPE c{level} AS (f c{level - 1})" for level in range(1, 100)),
        "CREATE DOMAIN d0 AS int",
        *(f"CREATE DOMAIN d{level} AS d{level - 1}" for level in range(1, 300)),
        "CREATE TABLE deep (id int PRIMARY KEY, c c99, d d299)",
    )
    await published.create_slot()
    await published.execute(
        "INSERT INTO deep VALUES (1, NULL, 7)", "INSERT INTO deep VALUES (2, ROW(NULL), 8)"
    )
    await published.execute("INSERT INTO items VALUES (3)")

    sink = MemorySink()
    await Pipeline(published.source(binary=binary), [sink], until="now").run()

    first, second, third = sink.changes
    assert [{"id": 1, "c": None, "d": 7}, 2, 8, 3] == [
        dict(first.new),
        second.new["id"],
        second.new["d"],
        third.new["id"],
    ]
    with pytest.raises(
        DataError, match=r"public\.deep\.c: type public\.c99 .*: it is nested 101 levels deep"
    ):
        second.new["c"]
