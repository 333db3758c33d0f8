"""A role that may create objects in a schema of the target's search_path cannot run SQL as the sink's role."""

from __future__ import annotations

import pytest

# Each fits the sink's statements better than what is built in, because its parameters are varchar.
EVIL = (
    "CREATE TABLE called (by text)",
    "CREATE FUNCTION evil(text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.called VALUES ($1); RETURN true; END $$",
    "CREATE FUNCTION same(varchar, varchar) RETURNS bool LANGUAGE sql AS $$ SELECT public.evil('=') $$",
    "CREATE OPERATOR = (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = same)",
    "CREATE FUNCTION concat(varchar) RETURNS text LANGUAGE sql AS $$ SELECT public.evil('concat')::text $$",
    "CREATE FUNCTION starts_with(text, varchar) RETURNS bool LANGUAGE sql AS $$ SELECT public.evil('starts_with') $$",
    "CREATE FUNCTION hashtextextended(text, int) RETURNS bigint LANGUAGE sql AS $$ SELECT public.evil('hash')::int::bigint $$",
)


@pytest.mark.parametrize("version", [13, 18])
@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_no_function_of_others_is_called(pairs, version, mode):
    """Keys and whole rows are compared by built-in operators, whatever public has."""
    pair = await pairs(18, version)
    await pair.both(
        "CREATE TABLE keyed (k varchar PRIMARY KEY, v varchar)",
        "CREATE TABLE whole (k varchar, v varchar)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
    )
    for statement in EVIL:
        await pair.target.execute(statement)
    await pair.slotted()
    for table in ("keyed", "whole"):
        await pair.commit(f"INSERT INTO {table} SELECT i, 'x' FROM generate_series(1, 5) i")
        await pair.commit(
            f"UPDATE {table} SET v = 'y' WHERE k = '1'", f"UPDATE {table} SET k = '9' WHERE k = '2'"
        )
        await pair.commit(f"DELETE FROM {table} WHERE k = '3'")
    await pair.deliver(mode=mode)

    await pair.require_equal("keyed", "whole")
    assert [] == await pair.target.fetch("SELECT DISTINCT by FROM called")


# A type like citext, whose equality ignores case.
CASELESS = [
    "CREATE SCHEMA apart",
    "CREATE TYPE apart.caseless",
    "CREATE FUNCTION apart.taken(cstring) RETURNS apart.caseless LANGUAGE internal IMMUTABLE STRICT AS 'textin'",
    "CREATE FUNCTION apart.given(apart.caseless) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'",
    "CREATE TYPE apart.caseless (INPUT = apart.taken, OUTPUT = apart.given, LIKE = text)",
    "CREATE CAST (apart.caseless AS text) WITHOUT FUNCTION AS IMPLICIT",
    "CREATE FUNCTION apart.compare(apart.caseless, apart.caseless) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT pg_catalog.bttextcmp(lower($1::text), lower($2::text))'",
]
for _name, _operator in {"lt": "<", "le": "<=", "eq": "=", "ge": ">=", "gt": ">"}.items():
    CASELESS += [
        f"CREATE FUNCTION apart.{_name}(apart.caseless, apart.caseless) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1::text) {_operator} lower($2::text)'",
        f"CREATE OPERATOR apart.{_operator} (LEFTARG = apart.caseless, RIGHTARG = apart.caseless, FUNCTION = apart.{_name})",
    ]
CASELESS += [
    """CREATE OPERATOR CLASS apart.caseless_ops DEFAULT FOR TYPE apart.caseless USING btree AS OPERATOR 1 apart.<,
    OPERATOR 2 apart.<=, OPERATOR 3 apart.=, OPERATOR 4 apart.>=, OPERATOR 5 apart.>,
    FUNCTION 1 apart.compare(apart.caseless, apart.caseless)"""
]


@pytest.mark.parametrize("version", [13, 18])
async def test_a_key_of_another_type(pairs, version):
    """A key is compared by the operator of its type, wherever that is, so that rows are found as its index finds them."""
    pair = await pairs(18, version)
    await pair.both(
        *CASELESS,
        "CREATE DOMAIN named AS apart.caseless",
        "CREATE TABLE items (k apart.caseless, l named, v int, PRIMARY KEY (k, l))",
    )
    await pair.slotted()
    await pair.commit("INSERT INTO items VALUES ('a', 'b', 1), ('c', 'd', 1)")
    await pair.deliver()
    await pair.target.execute("UPDATE items SET k = 'C' WHERE v = 1 AND k::text = 'c'")
    await pair.commit("UPDATE items SET v = 2", "UPDATE items SET k = 'e' WHERE k::text = 'a'")
    await pair.deliver()

    assert ["(C,d,2)", "(e,b,2)"] == await pair.rows(pair.target, "items")
    await pair.commit("DELETE FROM items")
    await pair.deliver()
    await pair.require_equal("items")
