"""Values as a real server sends them: our text of the binary form is the server's, and both forms read the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from aiorepl.values import Format, Types, catalog
from aiorepl.values.types import ARRAY, BASE, BUILTIN, PSEUDO

pytestmark = pytest.mark.by_day

Compare = Callable[[str, str], Awaitable[None]]

# SQL expressions of each built-in type; a bare string stands for a literal.
SAMPLES = {
    "bool": ["true", "false"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "float4": ["1e6", "100000", "1234567", "0.0001", "0.00001", "3.14", "1e-45", "3.4028235e38", "-0", "NaN"],
    "float8": [
        "1e15",
        "123456789012345678",
        "-0",
        "9.22337205e18",
        "1e23",
        "5e-324",
        "1.7976931348623157e308",
    ],
    "numeric": ["0.00", "-12345678901234567890.000012", "NaN", "-Infinity", "1e131071", "1e-16383", "10000"],
    "money": ["0", "-1234567.89", "92233720368547758.07", "-0.05"],
    "text": ["", "a", "NULL", "null", 'a "b" \\ {c},(d)', "é\u00a0\u2028", " \t\n"],
    "varchar": ["a"],
    "bpchar": ["a  "],
    "name": ["a b"],
    "xml": [
        '<?xml version="1.0" encoding="UTF-8"?><a>é</a>',
        '<?xml version="1.1" standalone="yes"?><a/>',
        "a<b/>",
    ],
    "refcursor": ["c"],
    "char": ["a", "", "(200 - 256)::int"],
    "bytea": ["", "\\x00ff5c"],
    "bit": ["1", "B'101010101'"],
    "varbit": ["", "1", "000000001"],
    "date": [
        "infinity",
        "-infinity",
        "0044-03-15 BC",
        "0001-01-01",
        "9999-12-31",
        "5874897-12-31",
        "4714-11-24 BC",
    ],
    "time": ["24:00:00", "00:00", "23:59:59.999999", "01:02:03.1"],
    "timetz": ["24:00:00+00", "00:00-15:59:59", "23:59:59.999999+05:30"],
    "timestamp": [
        "infinity",
        "4714-11-24 00:00:00 BC",
        "294276-12-31 23:59:59.999999",
        "2024-02-29 01:02:03.4",
    ],
    "timestamptz": ["-infinity", "0001-12-31 23:59:59.5+00 BC", "2024-02-29 01:02:03.4+05"],
    "interval": ["0", "-1 year 2 mons -3 days 4 hours", "-0.5 sec", "-13 mons 5 days 00:00:01"],
    "uuid": ["550e8400-e29b-41d4-a716-446655440000"],
    "json": ['{"a":\n 1.0, "a": "\\u00e9"}', "null", "[]"],
    "jsonb": ['{"a": [1, 2.50, null]}', "null", '"x"'],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "inet": [
        "1.2.3.4",
        "1.2.3.4/24",
        "::",
        "::1",
        "::ffff:1.2.3.4",
        "::1.2.3.4",
        "1:0:0:2:0:0:0:3",
        "1::/16",
    ],
    "cidr": ["1.2.3.0/24", "1.2.3.4", "::/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": ["(1,2)", "(1e300,-0)", "(NaN,Infinity)"],
    "line": ["{1,-2,3.5}"],
    "lseg": ["[(1,2),(3,4)]"],
    "box": ["(1,2),(3,4)"],
    "path": ["((1,2),(3,4))", "[(1,2)]"],
    "polygon": ["((1,2),(3,4),(5,6e20))"],
    "circle": ["<(1,2),3>"],
    "tsvector": ["a:1A,2B fat:3C cat:4 'it''s':5 'b\\\\c'", ""],
    "tsquery": ["a & (b | !c)", "a <-> (b <-> c)", "(a & b) <2> c:*AB", "!!a", ""],
    "oid": ["0", "4294967295"],
    "xid": ["4294967295"],
    "cid": ["1"],
    "xid8": ["18446744073709551615"],
    "oid8": ["0", "18446744073709551615"],
    "tid": ["(4294967295,65535)"],
    "pg_lsn": ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15", "10:10:"],
    "txid_snapshot": ["10:20:10,14,15"],
    "int2vector": ["1 2 3", ""],
    "oidvector": ["1 4294967295"],
    "int4range": ["[1,5)", "empty", "(,)", "[1,)"],
    "int8range": ["[1,5)"],
    "numrange": ["(1.50,2]"],
    "tsrange": ["[2024-01-01,infinity]"],
    "tstzrange": ["[2024-01-01,)"],
    "daterange": ["[0044-03-15 BC,2024-01-01]"],
    "int4multirange": ["{}", "{[1,3),[5,)}"],
    "int8multirange": ["{[1,3)}"],
    "nummultirange": ["{[1,3.0]}"],
    "tsmultirange": ["{[2024-01-01,2024-01-02),[2025-01-01,]}"],
    "tstzmultirange": ["{[2024-01-01,2024-01-02)}"],
    "datemultirange": ["{[2024-01-01,2024-01-02)}"],
    "pg_node_tree": ["(SELECT ev_action FROM pg_rewrite LIMIT 1)"],
    "pg_ndistinct": ["(SELECT stxdndistinct FROM pg_statistic_ext_data)"],
    "pg_dependencies": ["(SELECT stxddependencies FROM pg_statistic_ext_data)"],
    "pg_mcv_list": ["(SELECT stxdmcv FROM pg_statistic_ext_data)"],
}

USER_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'so so');
CREATE TYPE "In ner" AS (n numeric, "t ""q" text);
CREATE TYPE pair AS (a int, b text, gone int, c "In ner", d int[]);
ALTER TYPE pair DROP ATTRIBUTE gone;
CREATE TYPE nothing AS ();
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN even_more AS positive;
CREATE DOMAIN positives AS positive[];
CREATE TYPE textrange AS RANGE (subtype = text, collation = "C");
CREATE TYPE pairrange AS RANGE (subtype = pair);
"""
USER_SAMPLES = {
    "mood": ["sad", "so so"],
    "pair": [
        "ROW(1, 'a\"b\\c', ROW(1.50, ''), ARRAY[1,NULL])",
        "ROW(NULL, '', NULL, '{}')",
        "ROW(1, 'x y', ROW(NULL, NULL), NULL)",
    ],
    "nothing": ["ROW()"],
    "positive": ["1"],
    "even_more": ["1"],
    "positives": ["{1,2}"],
    "textrange": ['[a,"b c")', "textrange('', '\"(\\')", '(,""]'],
    "textmultirange": ['{[a,b),["c,]",d)}'],
    "pairrange": ["pairrange(ROW(1, 'a', NULL, NULL), ROW(1, 'b,', NULL, NULL))"],
}
EXTENSION_SAMPLES = {
    "citext": {"citext": ["Ab"]},
    "hstore": {"hstore": ["", "hstore(ARRAY['a', '1', 'b', NULL, 'c \"', 'x,\"=>\\'])"]},
    "ltree": {"ltree": ["a.b"], "lquery": ["a.*"], "ltxtquery": ["a & b"]},
}
SINCE_19 = {"oid8", "regdatabase"}
# What no column holds, has no input function, or prints what only the server knows.
NOT_COMPARED = {"aclitem", "gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}


@pytest.fixture(scope="module", params=[15, 16, 18, 19], ids="pg{}".format)
def server(request: pytest.FixtureRequest, servers: Callable[[int], Any]) -> Any:
    """The servers whose values are compared; ``database`` is in one after the other."""
    return servers(request.param)


def expression(sample: str, type_name: str) -> str:
    """Return the sample in SQL: text with parentheses or keywords is an expression, all other text a literal."""
    if sample.startswith(("ROW", "(SELECT", "B'")) or sample.endswith((")::int", "])", "NULL))", "\\')")):
        return f"{sample}::{type_name}"
    return "'" + sample.replace("'", "''") + f"'::{type_name}"


def exists(type_name: str, connection: asyncpg.Connection) -> bool:
    """Whether a built-in type, or the element of an array, exists in this version."""
    return type_name.removeprefix("_") not in SINCE_19 or connection.get_server_version() >= (19,)


async def compare_samples(
    connection: asyncpg.Connection, compare: Compare, samples: dict[str, list[str]]
) -> None:
    """Compare the samples one by one, and as arrays with a NULL and with two dimensions."""
    has_xml = await connection.fetchval(
        "SELECT count(*) > 0 FROM pg_config WHERE name = 'CONFIGURE' AND setting LIKE '%--with-libxml%'"
    )
    for name, values in samples.items():
        if name == "xml" and not has_xml:
            continue
        # The bare names bit, bpchar and char mean other types.
        type_name = f'pg_catalog."{name}"' if name in SAMPLES else f'"{name}"'
        values_sql = [expression(value, type_name) for value in values]
        await compare(type_name, " UNION ALL ".join(f"SELECT {v} AS v" for v in values_sql))
        array = await connection.fetchval(
            "SELECT typarray <> 0 FROM pg_type WHERE oid = $1::text::regtype", type_name
        )
        if array:
            listed = ", ".join(values_sql)
            await compare(
                f"{type_name}[]",
                f"SELECT ARRAY[{listed}, NULL]::{type_name}[] AS v"
                f" UNION ALL SELECT ARRAY[ARRAY[{listed}], ARRAY[{listed}]]"
                f" UNION ALL SELECT array_fill({values_sql[0]}, ARRAY[2,1], ARRAY[-1,0])",
            )


async def test_built_in_types(connection: asyncpg.Connection, compare: Compare) -> None:
    """Every built-in type and array that a column can hold, at its extremes."""
    columns = {
        info.name
        for info in BUILTIN.values()
        if info.kind not in (ARRAY, PSEUDO) and not info.name.startswith("reg")
    }
    assert columns - NOT_COMPARED == set(SAMPLES)
    await connection.execute(
        "CREATE TABLE correlated (a int, b int, c int);"
        "INSERT INTO correlated SELECT i % 10, i % 100, i % 7 FROM generate_series(1, 1000) i;"
        "CREATE STATISTICS s ON a, b, c FROM correlated; ANALYZE correlated"
    )
    samples = {name: SAMPLES[name] for name in SAMPLES if exists(name, connection)}
    if connection.get_server_version() >= (19,):
        # It prints some values in a new form. Our text of the binary form is that of earlier versions; see ``identifiers`` and
        # ``statistics``.
        samples["pg_lsn"] = ["16/B374D848", "FFFFFFFF/FFFFFFFF"]
        del samples["pg_ndistinct"], samples["pg_dependencies"]
    await compare_samples(connection, compare, samples)


async def test_user_types(connection: asyncpg.Connection, compare: Compare) -> None:
    """Enums, composites, domains and ranges, known by one look-up in the catalog."""
    await connection.execute(USER_TYPES)
    await compare_samples(connection, compare, USER_SAMPLES)


@pytest.mark.parametrize("extension", EXTENSION_SAMPLES)
async def test_extension_types(connection: asyncpg.Connection, compare: Compare, extension: str) -> None:
    """The extensions that are known by name, where the server has them."""
    try:
        await connection.execute(f"CREATE EXTENSION {extension}")
    except (asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFileError):
        pytest.skip(f"this server has no extension {extension}")
    await compare_samples(connection, compare, EXTENSION_SAMPLES[extension])


async def test_names_of_objects(connection: asyncpg.Connection) -> None:
    """An oid without an object prints in text as it does in binary."""
    for info in BUILTIN.values():
        if info.kind == BASE and info.name.startswith("reg") and exists(info.name, connection):
            for oid in (0, 99999):
                text = await connection.fetchval(f"SELECT format('%s', {oid}::oid::{info.name})")
                assert text == Types().text(info.oid, Format.BINARY)(oid.to_bytes(4, "big"))


async def test_table_of_built_in_types(connection: asyncpg.Connection) -> None:
    """The catalog says of the built-in types what our table says, and has none that we lack."""
    infos = catalog.parse(await connection.fetch(catalog.QUERY, list(BUILTIN)))
    known = {oid: info for oid, info in BUILTIN.items() if exists(info.name, connection)}
    assert {info.oid: info for info in infos} == known
    fixed = await connection.fetch(
        "SELECT oid, typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace"
        " AND typtype IN ('b', 'r', 'm', 'd', 'e') AND typname !~ '^_pg_'"
    )
    assert {row["typname"] for row in fixed if row["oid"] not in BUILTIN} == set()


async def test_oids_without_a_type(connection: asyncpg.Connection) -> None:
    """A look-up of nothing brings nothing; composites of the catalog itself are found like a user's."""
    assert catalog.parse(await connection.fetch(catalog.QUERY, [4294967295])) == []
    types = Types(catalog.parse(await connection.fetch(catalog.QUERY, [83])))
    assert types.known(83)
