"""Parquet files from a real server: types, values that they cannot represent, altered tables, hidden files."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from decimal import Decimal

import asyncpg
import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from aiorepl import Batch, BatchPolicy, ConfigurationError, Delivery, Pipeline, Source
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.messages import column
from aiorepl_sinks.parquet import ParquetSink

INT4, TEXT, TIMESTAMP = 23, 25, 1114
UTC = dt.UTC

# A column's type, what it becomes, a literal, and how that reads.
COLUMNS = [
    ("int2", pa.int16(), "-7", -7),
    ("int8", pa.int64(), "9223372036854775807", 2**63 - 1),
    ("oid", pa.int64(), "4294967295", 2**32 - 1),
    ("float4", pa.float32(), "1.5", 1.5),
    ("float8", pa.float64(), "'-Infinity'", float("-inf")),
    ("bool", pa.bool_(), "true", True),
    ("numeric(12,2)", pa.decimal128(12, 2), "-12.50", Decimal("-12.50")),
    ("numeric(50,10)", pa.string(), "1e39", f"1{0:039}.{0:010}"),
    ("numeric(4,-2)", pa.decimal128(6, 0), "123456", Decimal(123500)),
    ("numeric", pa.string(), "1e-20", "0.00000000000000000001"),
    ("numeric(100,2)", pa.string(), "1", "1.00"),
    ("text", pa.string(), "'ü'", "ü"),
    ("bytea", pa.binary(), r"'\x00ff'", b"\x00\xff"),
    ("date", pa.date32(), "'2026-11-21'", dt.date(2026, 11, 21)),
    ("time", pa.string(), "'23:59:59.000001'", "23:59:59.000001"),
    ("timestamp", pa.timestamp("us"), "'2026-11-21 01:02:03.4'", dt.datetime(2026, 11, 21, 1, 2, 3, 400_000)),
    (
        "timestamptz",
        pa.timestamp("us", tz="UTC"),
        "'2026-11-21 01:02:03+02'",
        dt.datetime(2026, 11, 20, 23, 2, 3, tzinfo=UTC),
    ),
    ("uuid", pa.string(), "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    ("jsonb", pa.string(), """'{"a": 1}'""", '{"a": 1}'),
    ("interval", pa.string(), "'1 day 2 hours'", "1 day 02:00:00"),
    ("inet", pa.string(), "'10.0.0.1'", "10.0.0.1"),
    ("mood", pa.string(), "'glad'", "glad"),
    ("positive", pa.int32(), "3", 3),
    ("int4[]", pa.list_(pa.field("element", pa.int32())), "'{1,NULL,3}'", [1, None, 3]),
    (
        "numeric(6,1)[]",
        pa.list_(pa.field("element", pa.decimal128(6, 1))),
        "'{1.5}'",
        [Decimal("1.5")],
    ),
    ("text[]", pa.list_(pa.field("element", pa.string())), """'{"a,b",""}'""", ["a,b", ""]),
]
DDL = f"""
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TABLE rows (id int PRIMARY KEY, {", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(COLUMNS))});
CREATE PUBLICATION p FOR ALL TABLES;
"""


@pytest.fixture
async def sql(database):
    """A connection to a database with a table of all these types."""
    connection = await asyncpg.connect(database)
    await connection.execute(DDL)
    yield connection
    await connection.close()


def listed(folder):
    """The files in the manifest, in order."""
    entries = sorted(folder.glob("_aiorepl/manifest/*.json"))
    return [
        folder / found["path"] for entry in entries for found in orjson.loads(entry.read_bytes())["objects"]
    ]


async def deliver(database, slot_name, folder, sql, *statements, **source):
    """Run a pipeline from a real server until the slot is confirmed past the statements."""
    sink = Delivery(ParquetSink(folder), batches=BatchPolicy(flush_seconds=0.1))
    pipeline = Pipeline(
        Source(database, slot=slot_name, publication="p", create_slot=True, **source), {"files": sink}
    )
    async with pipeline:
        for statement in statements:
            await sql.execute(statement)
        end = await sql.fetchval("SELECT pg_current_wal_lsn()")
        async with asyncio.timeout(90):
            while not await sql.fetchval(
                "SELECT confirmed_flush_lsn >= $1 FROM pg_replication_slots WHERE slot_name = $2",
                end,
                slot_name,
            ):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
async def test_types(database, slot_name, sql, tmp_path, binary):
    """Each type is as documented, and its values equal the server's; so does NULL."""
    begin = dt.datetime.now(UTC)
    names = ", ".join(f"c{number}" for number in range(len(COLUMNS)))
    values = ", ".join(literal for _, _, literal, _ in COLUMNS)
    await deliver(
        database, slot_name, tmp_path, sql,
        f"INSERT INTO rows (id, {names}) VALUES (1, {values})",
        "INSERT INTO rows (id) VALUES (2)",
        binary=binary,
    )  # fmt: skip

    table = pa.concat_tables([pq.read_table(path, partitioning=None) for path in listed(tmp_path)])
    assert {f"c{number}": kind for number, (_, kind, _, _) in enumerate(COLUMNS)} == {
        field.name: field.type for field in table.schema if field.name.startswith("c")
    }
    full, empty = table.to_pylist()
    assert {f"c{number}": value for number, (_, _, _, value) in enumerate(COLUMNS)} == {
        name: value for name, value in full.items() if name.startswith("c")
    }
    assert {None} == {value for name, value in empty.items() if name.startswith("c")}
    assert ["insert", "insert"] == [full["_op"], empty["_op"]]
    assert full["_unrepresentable"] is None
    assert full["_commit_lsn"] < empty["_commit_lsn"]
    assert full["_xid"] < empty["_xid"]
    assert begin <= full["_commit_ts"] <= dt.datetime.now(UTC)
    assert 0 == full["_ordinal"]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
async def test_what_a_type_cannot_hold(database, slot_name, sql, tmp_path, binary):
    """A value that the type cannot hold is null in its column, and text in another; other rows are unaffected."""
    await sql.execute(
        "CREATE TABLE odd (id int PRIMARY KEY, d date, t timestamptz, n numeric(6,2), o time, a int[])"
    )
    await deliver(
        database, slot_name, tmp_path, sql,
        """INSERT INTO odd VALUES (1, '2026-11-21', '2026-11-21 00:00+00', 1.5, '12:00', '{1}'),
        (2, 'infinity', '-infinity', 'NaN', '24:00', '{{1,2},{3,4}}'), (3, '0044-03-15 BC', null, 2, null, null)""",
        binary=binary,
    )  # fmt: skip

    (path,) = listed(tmp_path)
    table = pq.read_table(path, partitioning=None)
    plain, odd, old = table.drop(["d"]).to_pylist()
    assert (Decimal("1.50"), "12:00:00", [1]) == (plain["n"], plain["o"], plain["a"])
    assert (None, None, "24:00:00", None) == (odd["t"], odd["n"], odd["o"], odd["a"])
    assert {
        "d": "infinity", "t": "-infinity", "n": "NaN", "a": "{{1,2},{3,4}}"
    } == dict(odd["_unrepresentable"])  # fmt: skip
    assert not plain["_unrepresentable"]
    assert not old["_unrepresentable"]
    # 44 BC is a day that Arrow counts to, though Python does not.
    assert [20778, None, -735160] == table["d"].cast(pa.int32()).to_pylist()


async def test_a_table_that_changes(database, slot_name, sql, tmp_path):
    """A changed table begins a file with the new columns; a dataset reads all files together."""
    await sql.execute("CREATE TABLE shop (id int PRIMARY KEY, note text)")
    await deliver(
        database, slot_name, tmp_path, sql,
        "INSERT INTO shop VALUES (1, 'a')",
        "ALTER TABLE shop ADD price numeric(8,2)",
        "INSERT INTO shop VALUES (2, 'b', 3.50)",
        "UPDATE shop SET id = 5 WHERE id = 1",
        "DELETE FROM shop WHERE id = 2",
        "TRUNCATE shop",
    )  # fmt: skip

    schemas = [pq.read_schema(path).names[:3] for path in listed(tmp_path)]
    assert ["id", "note", "_op"] in schemas
    assert ["id", "note", "price"] in schemas
    found = ds.dataset(
        [str(path) for path in listed(tmp_path)], schema=pq.read_schema(listed(tmp_path)[-1])
    ).to_table(columns=["_op", "id", "note", "price"])
    assert [
        ("insert", 1, "a", None),
        ("insert", 2, "b", Decimal("3.50")),
        ("delete", 1, None, None),
        ("insert", 5, "a", None),
        ("delete", 2, None, None),
        ("truncate", None, None, None),
    ] == [tuple(row.values()) for row in found.to_pylist()]


def test_a_file_is_hidden_until_it_is_whole(tmp_path, source, monkeypatch):
    """A file has its name only once it is fsynced; what a crash leaves is hidden, and deleted at the next start."""
    seen, real = [], os.fsync

    def looking(descriptor):
        if list(tmp_path.rglob(".*.parquet-*.partial")):
            seen.append(list(tmp_path.rglob("[!.]*.parquet")))
            raise KeyboardInterrupt  # the process ends here
        real(descriptor)

    sink = ParquetSink(tmp_path)
    sink.open(source.context)
    batch = source.batch([1, 2])
    sink.write(batch)
    monkeypatch.setattr(os, "fsync", looking)
    monkeypatch.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: None)
    with pytest.raises(KeyboardInterrupt):
        sink.flush()
    monkeypatch.undo()

    assert [[]] == seen
    assert [True] == [path.name.startswith(".") for path in tmp_path.rglob("*.partial")]

    again = ParquetSink(tmp_path)
    again.open(source.context)
    again.write(batch)
    again.flush()
    again.close()
    assert [] == list(tmp_path.rglob("*.partial"))
    assert listed(tmp_path) == list(tmp_path.rglob("*.parquet"))


def test_unchanged_values_are_named(tmp_path, source):
    """A value that was not sent is null, and ``_unchanged`` names it."""
    table = source.stream.table("big", column("id", INT4, key=True), column("large", TEXT))
    source.stream.transaction(table.update("1", UNCHANGED))
    sink = ParquetSink(tmp_path)
    sink.open(source.context)
    sink.write(Batch(tuple(source.stream.slices())))
    sink.flush()

    (row,) = pq.read_table(listed(tmp_path)[0], partitioning=None).to_pylist()
    assert ("update", 1, None, ["large"]) == (row["_op"], row["id"], row["large"], row["_unchanged"])


def test_a_table_with_a_column_of_ours(tmp_path, source):
    """The error names the column and says what to do."""
    table = source.stream.table("t", column("id", INT4, key=True), column("_op", TEXT))
    source.stream.transaction(table.insert("1", "x"))
    sink = ParquetSink(tmp_path)
    sink.open(source.context)
    with pytest.raises(
        ConfigurationError, match=r"public\.t has a column '_op'.*drop it in the sink's selection"
    ):
        sink.write(Batch(tuple(source.stream.slices())))
