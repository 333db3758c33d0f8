"""Every built-in type, and users' own, from text and from binary, between versions."""

from __future__ import annotations

import asyncpg
import pytest

VALUES = {
    "bool": "true",
    "int2": "-32768",
    "int4": "2147483647",
    "int8": "-9223372036854775808",
    "oid": "4294967295",
    "float4": "1.1754944e-38",
    "float8": "0.1::float8 + 0.2::float8",
    "numeric": "12345678901234567890.123456789012345678900",
    "money": "-1234.56",
    "text": "E'a\\tb\\\\n\\nž'",
    "varchar(5)": "'abc  '",
    "char(5)": "'ab'",
    "bpchar": "'ab  '",
    '"char"': "'x'",
    "name": "'a name'",
    "bytea": "'\\x00ff5c'",
    "date": "'4713-01-01 BC'",
    "time(3)": "'23:59:59.999'",
    "timetz": "'12:00:00.5+05:30'",
    "timestamp": "'294276-12-31 23:59:59.999999'",
    "timestamptz": "'2026-11-21 12:00:00.123456+02'",
    "interval": "'-1 year 2 mons -3 days 04:05:06.789'",
    "uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "json": '\'{"b": 1,  "a": [1.0, null], "b": 2}\'',
    "jsonb": '\'{"b": 1.00, "a": "\\u00e9"}\'',
    "jsonpath": "'$.a[*] ? (@ > 1)'",
    "xml": "'<a b=\"1\">&amp;</a>'",
    "inet": "'10.1.2.3/8'",
    "cidr": "'2001:db8::/32'",
    "macaddr": "'08:00:2b:01:02:03'",
    "macaddr8": "'08:00:2b:01:02:03:04:05'",
    "bit(3)": "B'101'",
    "varbit": "B'10101'",
    "tsvector": "'a:1A fat:2,4 ''it''''s'''",
    "tsquery": "'fat & (rat | !cat:*)'",
    "point": "'(1.5,-2)'",
    "line": "'{1,2,3}'",
    "lseg": "'[(0,0),(1,1.1)]'",
    "box": "'(1,1),(0,0)'",
    "path": "'[(0,0),(1,1)]'",
    "polygon": "'((0,0),(1,1),(2,0))'",
    "circle": "'<(1,2),3.3>'",
    "pg_lsn": "'16/B374D848'",
    "pg_snapshot": "'10:20:10,14,15'",
    "txid_snapshot": "'10:20:10,14,15'",
    "xid": "'42'",
    "xid8": "'18446744073709551615'",
    "cid": "'7'",
    "tid": "'(1,2)'",
    "regclass": "'pg_class'",
    "regtype": "'integer'",
    "regproc": "'now'",
    "regnamespace": "'pg_catalog'",
    "int4range": "'[1,10)'",
    "numrange": "'(1.5,)'",
    "tstzrange": "'[2020-01-01,2021-01-01)'",
    "datemultirange": "'{[2020-01-01,2021-01-01),[2022-01-01,)}'",
    "int4[]": "'[0:2]={1,NULL,3}'",
    "text[][]": "ARRAY[['a,\"b', ''], ['NULL', NULL]]",
    "box[]": "'{(1,1),(0,0);(2,2),(1,1)}'",
    "timestamptz[]": "ARRAY['2026-11-21 12:00:00+02'::timestamptz]",
    "int2vector": "'1 2 3'",
    "oidvector": "'1 2 3'",
    "mood": "'so so'",
    "mood[]": "'{sad,\"so so\"}'",
    "pair": "ROW(1, 'a \"b\"', NULL)::pair",
    "posint": "7",
    "short": "'abc'",
    "floats": "'[1.5,2.5]'",
}
OWN = (
    "CREATE TYPE mood AS ENUM ('sad', 'so so')",
    "CREATE TYPE pair AS (a int, b text, c mood)",
    "CREATE DOMAIN posint AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN short AS varchar(3)",
    "CREATE TYPE floats AS RANGE (subtype = float8)",
)


async def has_xml(pair) -> bool:
    """Return whether both servers were built with xml."""
    try:
        for connection in (pair.source, pair.target):
            await connection.execute("SELECT '<a/>'::xml")
    except asyncpg.FeatureNotSupportedError:
        return False
    return True


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize(("here", "there"), [(None, None), (15, 18), (18, 16)])
async def test_every_type(pairs, here, there, binary):
    """Values arrive unchanged by COPY, by arrays and by update, and whole rows are found."""
    pair = await pairs(here, there)
    kinds = {kind: value for kind, value in VALUES.items() if kind != "xml" or await has_xml(pair)}
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    # A type of the target's own number: it is its name that counts.
    await pair.target.execute("CREATE TYPE other AS ENUM ('x')")
    await pair.both(*OWN, f"CREATE TABLE types (id int PRIMARY KEY, {columns})")
    await pair.both(f"CREATE TABLE whole ({columns})", "ALTER TABLE whole REPLICA IDENTITY FULL")
    await pair.slotted()
    values = ", ".join(kinds.values())
    await pair.source.execute(f"INSERT INTO types SELECT i, {values} FROM generate_series(1, 30) i")
    await pair.source.execute(f"INSERT INTO types VALUES (100, {values})")
    await pair.source.execute("INSERT INTO types VALUES (101)")
    await pair.source.execute(f"INSERT INTO whole VALUES ({values})")
    await pair.deliver(source={"binary": binary})
    await pair.require_equal("types", "whole")
    sets = ", ".join(f"c{number} = {value}" for number, value in enumerate(kinds.values()))
    await pair.source.execute(f"UPDATE types SET {sets} WHERE id > 50")
    await pair.source.execute("INSERT INTO types SELECT id + 1000, c0 FROM types WHERE id = 1")
    await pair.source.execute("UPDATE types SET c0 = NULL, c8 = NULL WHERE id < 5")
    await pair.source.execute("UPDATE whole SET c0 = false")
    await pair.source.execute(f"INSERT INTO whole VALUES ({values})")
    await pair.source.execute("DELETE FROM whole WHERE c0")
    await pair.deliver(source={"binary": binary}, mode="strict")
    await pair.require_equal("types", "whole")


async def test_floats_numbers_and_times_at_their_edges(pair):
    """No digit is lost, infinities and NaN arrive, whatever the target's database prefers to print."""
    await pair.both(
        "CREATE TABLE edges (id int PRIMARY KEY, f8 float8, f4 float4, n numeric, t timestamptz, i interval)"
    )
    name = await pair.target.fetchval("SELECT current_database()")
    await pair.target.execute(f"""ALTER DATABASE "{name}" SET extra_float_digits = -5""")
    await pair.target.execute(f"""ALTER DATABASE "{name}" SET DateStyle = 'SQL, DMY'""")
    await pair.target.execute(f"""ALTER DATABASE "{name}" SET TimeZone = 'Asia/Tokyo'""")
    await pair.target.execute(f"""ALTER DATABASE "{name}" SET IntervalStyle = 'sql_standard'""")
    await pair.slotted()
    await pair.source.execute(
        "INSERT INTO edges VALUES (1, 'NaN', 'Infinity', 'NaN', 'infinity', '-1 day'), "
        "(2, '-Infinity', '-0', '-Infinity', '-infinity', '1 mon -1 day'), "
        "(3, 5e-324, 3.4028235e38, 1e-100, '0001-01-01 BC', '178000000 years'), "
        "(4, 1.7976931348623157e308, 1e-45, 1e1000, '2026-02-03 04:05:06+00', '00:00:00.000001')"
    )
    await pair.deliver()
    await pair.require_equal("edges")
