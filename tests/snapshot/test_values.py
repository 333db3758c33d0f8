"""Values of every type: as binary from COPY they are what the stream delivers as text."""

from __future__ import annotations

import pytest

from aiorepl import Source, connect
from aiorepl.formats.arrow.table import ArrowTable
from aiorepl.formats.native import NativeFormat
from aiorepl.snapshot.merging.window import Window

# Each is a table of one row, or of several.
TABLES = {
    "numbers": (
        "a int2, b int4, c int8, d float4, e float8, f numeric, g numeric(12,3), h oid, i money, j bool",
        (
            "(-32768, -2147483648, -9223372036854775808, 'NaN', '-Infinity', 'NaN', -123456.789, 4294967295, '-12.34', true), "
            "(1, 2, 3, 1.5, 1e-300, 12345678901234567890.00012, 0.001, 0, '0', false), "
            "(NULL, NULL, NULL, NULL, NULL, '1e-30', NULL, NULL, NULL, NULL)"
        ),
    ),
    "texts": (
        'a text, b varchar(5), c char(5), d name, e "char", f json, g jsonb, i bytea, j bit(3), k varbit',
        (
            "('é \\ \" ,', 'x', 'y', 'n', 'c', '{\"a\":  1.10}', '{\"b\": [null, 1.10]}', '\\x00ff', B'101', B''), "
            "('', '', '', '', '', 'null', '\"x\"', '', B'000', B'1')"
        ),
    ),
    "times": (
        "a date, b time, c timetz, d timestamp, e timestamptz, f interval",
        (
            "('infinity', '24:00', '23:59:59.999999-15:59', '-infinity', '294276-12-31 23:59:59.999999+00', '-1 mon 2 days -03:04'), "
            "('0044-03-15 BC', '00:00', '01:02:03+05:30', '4713-01-01 00:00:00 BC', '2026-01-02 03:04:05.6+01', '178000000 years')"
        ),
    ),
    "others": (
        (
            "a uuid, b inet, c cidr, d macaddr, e macaddr8, f point, g box, h path, i polygon, j circle, k line, l lseg, m tsvector, "
            "n tsquery, o int4range, p numrange, q tstzrange, r pg_lsn, s regclass, t regtype, u tid, v xid, w jsonpath, x aclitem"
        ),
        (
            "('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.1/8', '::/0', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', "
            "'(1.5,-2)', '(1,2),(3,4)', '[(1,2),(3,4)]', '((1,2),(3,4),(5,0))', '<(1,2),3>', '{1,2,3}', '[(1,2),(3,4)]', 'a:1A b', "
            "'a & !b', '[1,5]', '(,1.50]', '[2026-01-01,infinity)', '1/A', 'pg_class', 'int4', '(1,2)', '7', '$.a[*]', "
            "'postgres=r/postgres')"
        ),
    ),
    "arrays": (
        "a int[], b text[], c numeric[], d box[], e timestamptz[], f jsonb[], g money[], h aclitem[]",
        (
            "('[2:3]={7,8}', '{{a,NULL},{\"b,\\\"\",\"NULL\"}}', '{NaN,1.10}', '{(1,2),(3,4);(0,0),(1,1)}', '{infinity,NULL}', "
            "'{\"{\\\"a\\\": 1}\"}', '{\"$1.00\"}', '{postgres=r/postgres}'), ('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')"
        ),
    ),
    "own": (
        "a mood, b mood[], c positive, d some_texts, e pair, f nested, g pair[], h span, i secret, j odd, k odd[]",
        (
            "('happy', '{sad,NULL}', 5, '{a,\"b c\"}', ROW(1, 'x, \"y\"'), ROW(ROW(NULL, NULL), 'sad', '{1,NULL}'), "
            "ARRAY[ROW(1, 'a')::pair, NULL, ROW(NULL, NULL)::pair], '(0.5,)', ROW('postgres=r/postgres', 1), ROW(NULL, NULL), "
            "ARRAY[ROW(NULL, NULL)::odd, NULL])"
        ),
    ),
}
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE DOMAIN some_texts AS text[]; "
    "CREATE TYPE pair AS (n int, t text); CREATE TYPE nested AS (p pair, m mood, l int[]); "
    "CREATE TYPE span AS RANGE (subtype = float8); CREATE TYPE secret AS (a aclitem, n int); "
    "CREATE TYPE odd AS (a aclitem, b aclitem)"
)


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_values_are_those_of_the_stream(loaded):
    """Python values and JSON of a row that was read are those of the same row as the stream sends it, in text; and so are Arrow's,
    filled from the bytes or by way of the text.
    """
    await loaded.connection.execute(TYPES)
    for name, (columns, rows) in TABLES.items():
        await loaded.connection.execute(f"CREATE TABLE {name} ({columns}); INSERT INTO {name} VALUES {rows}")
    slices = await loaded.load()
    read = [change for part in slices for change in part.changes]
    kinds = {change.table: change.new_kinds for change in reversed(read)}
    assert b"b" * 8 + b"tb" == kinds["numbers"][:10]
    assert b"tt" == kinds["others"][18:20]
    assert ord("t") == kinds["others"][-1] == kinds["own"][9] == kinds["own"][10]

    for part in slices:
        if part.changes:
            table = ArrowTable(part.changes.layout)
            by_text, by_bytes = table.batch(list(part.changes)), table.batch(part.changes)
            by_bytes.validate(full=True)
            assert by_text.schema == by_bytes.schema
            assert [str(column) for column in by_text] == [str(column) for column in by_bytes]

    sent = []
    source = Source(loaded.dsn, slot=loaded.slot, publication="p", create_slot=True, temporary=True)
    async with connect(source, reconnect=None) as stream:
        for name, (_, rows) in TABLES.items():
            await loaded.connection.execute(f"INSERT INTO {name} VALUES {rows}")
        async for transaction in stream:
            sent += [change async for change in transaction]
            if len(sent) == len(read):
                break
    native = NativeFormat()
    for one, other in zip(sorted(read, key=place), sorted(sent, key=place), strict=True):
        assert repr(dict(other.new)) == repr(dict(one.new))
        assert row_of(native.event(other)) == row_of(native.event(one))


async def test_numbers_of_objects(loaded):
    """A binary stream has the numbers of the reg* types and not their names, and so has a chunk: they may be keys."""
    insert = "INSERT INTO t VALUES ('pg_class', '{int4,text}')"
    await loaded.connection.execute(f"CREATE TABLE t (a regclass PRIMARY KEY, b regtype[]); {insert}")
    (chunk, _) = await loaded.load(binary=True)
    source = Source(
        loaded.dsn, slot=f"{loaded.slot}_s", publication="p", create_slot=True, temporary=True, binary=True
    )
    async with connect(source, reconnect=None) as stream:
        await loaded.connection.execute(f"DELETE FROM t; {insert}")
        async for transaction in stream:
            _, sent = [change async for change in transaction]
            break
    (read,) = chunk.changes
    window = Window(sent.layout.relation.oid, ("a",), 100)
    assert dict(sent.new) == dict(read.new) == {"a": 1259, "b": [23, 25]}
    assert window.keys.of(sent.layout, sent.raw_new, sent.new_kinds) == window.keys.of(
        read.layout, read.raw_new, read.new_kinds
    )


def place(change) -> tuple[str, tuple[int, int]]:
    """The order of rows: by table, then as they were inserted."""
    return change.table, (change.transaction.commit_lsn, change.ordinal)


def row_of(line: bytes) -> bytes:
    """The JSON of the row of an event."""
    return line[line.index(b'"new":') :]
