"""Tables of two servers: equal ones are found equal, and each difference is counted, whatever the types, keys and versions."""

from __future__ import annotations

from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import Pipeline, Source
from aiorepl.errors import ConfigurationError
from aiorepl.pipeline.arrival import Arrival
from aiorepl.storage.opening import open_store
from aiorepl_sinks.postgres import PostgresSink

VERSIONS = [(13, 18), (18, 13), (16, 19)]
TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE point3 AS (x int, y float8, note text);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TABLE kinds (id uuid PRIMARY KEY, f float8, r float4, n numeric, t timestamptz, d date, i interval, b bytea, j jsonb,
  a text[], m mood, p point3, q positive, c char(5), v tsvector, g int8range, h inet, w bool)
"""
ROW = """
INSERT INTO kinds SELECT md5(i::text)::uuid, i / 7.0, i / 3.0, i::numeric / 11, 'epoch'::timestamptz + i * interval '1 s', 'infinity',
  '1 mon 2 days', 'a', '{"b": 1, "a": [null]}', ARRAY['a,', NULL, ''], 'sad', ROW(i, 0.1::float8, NULL::text)::point3, i, 'ab', 'a b'::tsvector,
  int8range(1, i + 1), '10.0.0.1/8', true FROM generate_series(1, 300) i
"""


@pytest.mark.parametrize("versions", VERSIONS)
async def test_types_and_differences(two, versions):
    """Values of all kinds are equal on two versions; a changed, a missing and an additional row are counted, and named by key."""
    pair = await two(*versions)
    await pair.both(
        *TYPES.split(";\n"),
        ROW,
        'CREATE TABLE "Odd, ""name" (k text, "K 2" int, v text, PRIMARY KEY (k, "K 2"))',
        "INSERT INTO \"Odd, \"\"name\" SELECT 'ü' || i, i, 'x' FROM generate_series(1, 300) i",
        "CREATE TABLE apart (a text)",
        "INSERT INTO apart SELECT i % 7 FROM generate_series(1, 70) i",
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "INSERT INTO parts SELECT i, i FROM generate_series(1, 99) i",
    )
    found = await pair.compare()
    names = ['public.Odd, "name', "public.apart", "public.empty", "public.kinds", "public.parts_1"]
    assert names == list(found)
    assert [True] * 5 == [result.same for result in found.values()]
    assert [300, 70, 0, 300, 99] == [result.rows for result in found.values()]

    for statement in (
        "UPDATE kinds SET p.note = '' WHERE q = 7",
        'UPDATE "Odd, ""name" SET v = NULL WHERE k = \'ü1\'',
        'DELETE FROM "Odd, ""name" WHERE k = \'ü2\'',
        "INSERT INTO \"Odd, \"\"name\" VALUES ('new', 0, '')",
        "UPDATE apart SET a = 'y' WHERE ctid = (SELECT min(ctid::text)::tid FROM apart)",
        "INSERT INTO empty VALUES (1)",
        "UPDATE parts SET v = 0 WHERE id = 50",
    ):
        await pair.target.execute(statement)
    found = await pair.compare()
    counts = [(each.missing, each.additional, each.different) for each in found.values()]
    assert [(1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1)] == counts
    assert {"ü1, 1", "ü2, 2", "new, 0"} == set(found['public.Odd, "name'].keys)
    assert not any("ü1" in str(each) + repr(each) for each in found.values())
    assert ["public.kinds"] == list(await pair.compare("public.kinds"))
    with pytest.raises(ConfigurationError, match=r"no publication has the table public\.none"):
        await pair.compare("public.none")


@pytest.mark.parametrize("source", ["SQL_ASCII", "LATIN9"])
async def test_another_encoding(two, source):
    """Text that is not ASCII is equal although the servers have it in other bytes, or one of them counts bytes."""
    pair = await two(18, 18)
    name = await pair.source.fetchval("SELECT current_database()") + "_encoded"
    await pair.source.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING {source} LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    created = pair.source
    try:
        pair.dsns = (urlsplit(pair.dsns[0])._replace(path=f"/{name}").geturl(), pair.dsns[1])
        pair.source = await asyncpg.connect(pair.dsns[0])
        await pair.source.execute("CREATE PUBLICATION p FOR ALL TABLES")
        await pair.both("CREATE TABLE texts (k text PRIMARY KEY, v text[])", "CREATE TABLE apart (v text)")
        await pair.both(
            "INSERT INTO texts VALUES ('ä€', '{ö,NULL}'), ('a', '{}')", "INSERT INTO apart VALUES ('é')"
        )
        assert [True, True] == [each.same for each in (await pair.compare()).values()]
        await pair.target.execute("UPDATE texts SET v = '{o,NULL}' WHERE k = 'ä€'")
        assert ["ä€"] == (await pair.compare())["public.texts"].keys
    finally:
        await pair.source.close()
        pair.source = created
        await created.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("kind", ["int", "timestamptz", "text"])
async def test_many_ranges(two, kind):
    """A table of many ranges is compared as a small one: rows before the first bound and after the last one, too."""
    pair = await two(18, 13)
    value = {"int": "i", "timestamptz": "'epoch'::timestamptz + i * interval '1 h'", "text": "i::text"}[kind]
    await pair.both(
        f"CREATE TABLE big (k {kind} PRIMARY KEY, v text)",
        f"INSERT INTO big SELECT {value}, repeat('x', 100) FROM generate_series(1, 5000) i",
    )
    found = (await pair.compare(range_blocks=4))["public.big"]
    assert (True, 5000) == (found.same, found.rows)
    keep = (
        f"SELECT {value.replace('i', 'n')} FROM (VALUES (1), (2500), (5000)) AS t (n)"
        if kind != "timestamptz"
        else ("SELECT 'epoch'::timestamptz + n * interval '1 h' FROM (VALUES (1), (2500), (5000)) AS t (n)")
    )
    await pair.target.execute(f"DELETE FROM big WHERE k IN ({keep})")
    found = (await pair.compare(range_blocks=4))["public.big"]
    assert (3, 0, 0, 3) == (found.missing, found.additional, found.different, len(found.keys))


async def test_what_cannot_be_compared(two):
    """A missing table or column, and rows that row-level security hides, are named; the other tables are compared."""
    pair = await two(18, 18)
    await pair.source.execute("CREATE TABLE absent (id int PRIMARY KEY)")
    await pair.source.execute("CREATE TABLE narrow (id int PRIMARY KEY, v int)")
    await pair.target.execute("CREATE TABLE narrow (id int PRIMARY KEY)")
    await pair.both("CREATE TABLE fine (id int PRIMARY KEY)")
    await pair.target.execute("CREATE VIEW v AS SELECT 1 AS id")
    await pair.source.execute("CREATE TABLE v (id int PRIMARY KEY)")
    found = await pair.compare()
    assert "the target has no table public.absent" == found["public.absent"].problem
    assert "the target's table has no column v" == found["public.narrow"].problem
    assert "the target has no table public.v" == found["public.v"].problem
    assert [False, True, False, False] == [each.same for each in found.values()]


EVIL = (
    "CREATE TABLE called (by text)",
    "CREATE FUNCTION evil(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.called VALUES ($1); RETURN $1; END $$",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE FUNCTION shown(pair) RETURNS text LANGUAGE sql AS $$ SELECT public.evil('cast') $$",
    "CREATE CAST (pair AS text) WITH FUNCTION shown(pair) AS IMPLICIT",
    "CREATE FUNCTION same(pair, pair) RETURNS bool LANGUAGE sql AS $$ SELECT public.evil('=') IS NULL $$",
    "CREATE OPERATOR = (LEFTARG = pair, RIGHTARG = pair, FUNCTION = same)",
    "CREATE FUNCTION checked(text) RETURNS bool LANGUAGE sql AS $$ SELECT public.evil('check') IS NOT NULL $$",
    "CREATE FUNCTION length(varchar) RETURNS int LANGUAGE sql AS $$ SELECT pg_catalog.length(public.evil('length')) $$",
    "CREATE FUNCTION joined(varchar, varchar) RETURNS text LANGUAGE sql AS $$ SELECT public.evil('||') $$",
    "CREATE OPERATOR || (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = joined)",
    "CREATE DOMAIN wary AS varchar CHECK (checked(value))",
    "CREATE TABLE trap (k varchar PRIMARY KEY, p pair, w wary)",
    "INSERT INTO trap SELECT i, ROW(i, 'x'::text)::pair, NULL FROM generate_series(1, 50) i",
    "ALTER DOMAIN wary DROP CONSTRAINT wary_check",
    "UPDATE trap SET w = 'w'",
    "ALTER DOMAIN wary ADD CHECK (checked(value)) NOT VALID",
)


@pytest.mark.parametrize("versions", [(13, 18), (18, 13)])
async def test_no_function_of_others_is_called(two, versions):
    """Functions, operators, casts and checks of a role with CREATE in the schema are not called, on either side."""
    pair = await two(*versions)
    await pair.both(*EVIL, "TRUNCATE called")
    await pair.target.execute("DELETE FROM trap WHERE k = '7'")
    found = (await pair.compare("public.trap"))["public.trap"]
    assert (None, 1, 0, 0) == (found.problem, found.missing, found.additional, found.different)
    for connection in (pair.source, pair.target):
        assert [] == await connection.fetch("SELECT DISTINCT by FROM called")


@pytest.mark.parametrize("versions", [(13, 18), (18, 18)])
async def test_a_running_stream(two, slot_name, tmp_path, versions):
    """Rows that change all the time are no differences; a row that somebody has changed on the target is."""
    pair = await two(*versions)
    await pair.both("CREATE TABLE busy (id int PRIMARY KEY, v int)")
    await pair.source.execute("INSERT INTO busy SELECT i, 0 FROM generate_series(1, 200) i")
    source = Source(pair.dsns[0], slot=slot_name, publication="p", create_slot=True)
    journal = open_store(tmp_path / "journal")
    sinks = {"mirror": PostgresSink(pair.dsns[1])}
    arrival = Arrival(source, journal, journal, ["mirror"])
    rounds = 0

    async def settle() -> None:
        nonlocal rounds
        rounds += 1
        await pair.source.execute("UPDATE busy SET v = v + 1 WHERE id % 10 = $1", rounds % 10)
        await arrival.wait(None, 60)
        await pair.source.execute("UPDATE busy SET v = v + 1 WHERE id % 10 = $1", (rounds + 5) % 10)

    async with Pipeline(source, sinks, journal=journal, snapshot=True):
        await arrival.wait(None, 60)
        await pair.source.execute("UPDATE busy SET v = v + 1")
        found = (await pair.compare(settle=settle))["public.busy"]
        assert found.same, found
        await pair.target.execute("INSERT INTO busy VALUES (1000, 0)")
        await pair.source.execute("UPDATE busy SET v = v + 1")
        found = (await pair.compare(settle=settle))["public.busy"]
        assert (0, 1, 0, ["1000"]) == (found.missing, found.additional, found.different, found.keys)
    assert rounds > 1
