"""``format("aiorepl")`` on a real Spark: what was committed is what is in the DataFrame, typed and generic."""

from __future__ import annotations

import datetime as dt
import shutil
from decimal import Decimal
from typing import Any

import pytest

from aiorepl import ConfigurationError
from aiorepl.journal import Cursors, prune
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark.reading.options import with_options, without_options
from aiorepl.spark.reading.schema import GENERIC
from aiorepl.testing.messages import Binary, column
from aiorepl.values.types import ARRAY, DOMAIN, ENUM, TypeInfo

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = 700, 701, 1082, 1114, 1184, 1700
JSONB, UUID, TIME, INT4_ARRAY, TEXT_ARRAY, NUMERIC_ARRAY = 3802, 2950, 1083, 1007, 1009, 1231
MOOD, MOOD_ARRAY, CENTS = 90001, 90002, 90003
ID, NOTE = column("id", INT4, key=True), column("note")
META = ["_op", "_commit_lsn", "_ordinal", "_xid", "_commit_ts", "_unchanged"]


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def own(row: dict[str, Any]) -> dict[str, Any]:
    """The table's columns."""
    return {name: value for name, value in row.items() if not name.startswith("_")}


def test_every_type(spark, make_journal) -> None:
    """Each type of PostgreSQL arrives as the Spark type that the schema promises."""
    journal = make_journal(
        types=[
            TypeInfo(MOOD, "public", "mood", ENUM),
            TypeInfo(MOOD_ARRAY, "public", "_mood", ARRAY, MOOD),
            TypeInfo(CENTS, "public", "cents", DOMAIN, INT8),
        ]
    )
    day, moment = dt.date(2026, 11, 21), dt.datetime(2026, 11, 21, 8, 0, 0, 123456)
    wide = "12345678901234567890123456789012345.678"
    values: list[tuple[str, int, int, str, str, Any]] = [
        ("i2", INT2, -1, "smallint", "-32768", -32768),
        ("i4", INT4, -1, "int", "2147483647", 2147483647),
        ("i8", INT8, -1, "bigint", "-9223372036854775808", -9223372036854775808),
        ("oid", OID, -1, "bigint", "4294967295", 4294967295),
        ("f4", FLOAT4, -1, "float", "1.5", 1.5),
        ("f8", FLOAT8, -1, "double", "-Infinity", float("-inf")),
        ("b", BOOL, -1, "boolean", "t", True),
        ("n", NUMERIC, numeric(12, 2), "decimal(12,2)", "-1234567890.10", Decimal("-1234567890.10")),
        ("n38", NUMERIC, numeric(38, 3), "decimal(38,3)", wide, Decimal(wide)),
        ("n39", NUMERIC, numeric(39, 3), "string", wide, wide),
        ("thousands", NUMERIC, numeric(3, -3), "decimal(6,0)", "123000", Decimal(123000)),
        ("tiny", NUMERIC, numeric(3, 5), "decimal(5,5)", "0.00123", Decimal("0.00123")),
        ("any", NUMERIC, -1, "string", "1e1000000".replace("e", "00"), "1001000000"),
        ("bytes", BYTEA, -1, "binary", "\\x00ff", bytearray(b"\0\xff")),
        ("day", DATE, -1, "date", "2026-11-21", day),
        ("ts", TIMESTAMP, -1, "timestamp_ntz", "2026-11-21 08:00:00.123456", moment),
        ("tstz", TIMESTAMPTZ, -1, "timestamp", "2026-11-21 08:00:00.123456+00", moment),
        ("time", TIME, -1, "string", "24:00:00", "24:00:00"),
        ("json", JSONB, -1, "string", '{"a": [1, "ü"]}', '{"a": [1, "ü"]}'),
        ("uuid", UUID, -1, "string", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("mood", MOOD, -1, "string", "happy", "happy"),
        ("cents", CENTS, -1, "bigint", "250", 250),
        ("unknown", 99999, -1, "string", "(1,2)", "(1,2)"),
        ("ints", INT4_ARRAY, -1, "array<int>", "{1,NULL,3}", [1, None, 3]),
        ("texts", TEXT_ARRAY, -1, "array<string>", r'{a,"b,\"c\"",NULL,"NULL"}', ["a", 'b,"c"', None, "NULL"]),
        ("none", TEXT_ARRAY, -1, "array<string>", "{}", []),
        ("prices", NUMERIC_ARRAY, numeric(6, 2), "array<decimal(6,2)>", "{1.50}", [Decimal("1.50")]),
        ("moods", MOOD_ARRAY, -1, "array<string>", "{happy,sad}", ["happy", "sad"]),
    ]  # fmt: skip
    table = journal.stream.table(
        "t", *[column(name, oid, type_modifier=modifier) for name, oid, modifier, *_ in values]
    )
    journal.stream.transaction(
        table.insert(*[text for *_, text, _ in values]), table.insert(*[None] * len(values))
    )
    journal.write()
    df = journal.read(spark)
    assert df.columns == [name for name, *_ in values] + META
    assert {field.name: field.dataType.simpleString() for field in df.schema if field.name not in META} == {
        name: kind for name, _, _, kind, _, _ in values
    }
    first, second = journal.rows(spark)
    assert own(first) == {name: value for name, *_, value in values}
    assert set(own(second).values()) == {None}


def test_operations(spark, journal) -> None:
    """Each kind of change, with its identity, its transaction and what was not sent."""
    stream = journal.stream
    table, other = stream.table("t", ID, NOTE), stream.table("other", ID)
    ends = [
        stream.transaction(other.insert("7"), table.insert("1", "one"), table.update("1", "two")),
        stream.transaction(table.update("1", UNCHANGED), table.update("2", UNCHANGED, key=["1", None])),
        stream.transaction(table.update("2", "same key", key=["2", None]), table.delete("2", None)),
        stream.transaction(other.truncate(), table.truncate()),
    ]
    journal.write()
    rows = journal.rows(spark)
    assert [(row["_op"], row["id"], row["note"], row["_ordinal"], row["_unchanged"]) for row in rows] == [
        ("insert", 1, "one", 1, []),
        ("update", 1, "two", 2, []),
        ("update", 1, None, 0, ["note"]),
        ("delete", 1, None, 1, []),
        ("insert", 2, None, 1, ["note"]),
        ("update", 2, "same key", 0, []),
        ("delete", 2, None, 1, []),
        ("truncate", None, None, 1, []),
    ]
    assert [row["_xid"] for row in rows] == [701, 701, 702, 702, 702, 703, 703, 704]
    commits = sorted({row["_commit_lsn"] for row in rows})
    assert all(commit < end for commit, end in zip(commits, ends, strict=True))
    # The stream's clock: 800,000,000 s after 2000-01-01, a second a transaction.
    assert rows[0]["_commit_ts"] == dt.datetime(2025, 5, 8, 6, 13, 21)
    assert rows[-1]["_commit_ts"] == dt.datetime(2025, 5, 8, 6, 13, 24)


def test_replica_identity_full(spark, journal) -> None:
    """A whole old row fills in what was not sent, makes deletes whole, and shows key changes to who names the key."""
    table = journal.stream.table("t", ID, NOTE, replica_identity="f")
    journal.stream.transaction(
        table.update("1", UNCHANGED, old=["1", "kept"]),
        table.update("2", UNCHANGED, old=["1", "kept"]),
        table.delete("2", "kept", full=True),
    )
    journal.write()

    def read(**options: str) -> list[tuple[Any, ...]]:
        return [
            (row["_op"], row["id"], row["note"], row["_unchanged"]) for row in journal.rows(spark, **options)
        ]

    deleted = ("delete", 2, "kept", [])
    assert read() == [("update", 1, "kept", []), ("update", 2, "kept", []), deleted]
    moved = [("delete", 1, "kept", []), ("insert", 2, "kept", [])]
    assert read(keys="id") == [("update", 1, "kept", []), *moved, deleted]


def test_generic(spark, journal) -> None:
    """Without a table: all of them, as text, with what identifies and what was before."""
    stream = journal.stream
    table, full = (
        stream.table("t", ID, NOTE),
        stream.table("f", ID, NOTE, namespace="Shop", replica_identity="f"),
    )
    stream.transaction(table.insert("1", None), full.update("1", UNCHANGED, old=["1", "x"]))
    lone = stream.message("between", b"\0\1")
    stream.transaction(
        table.update("2", UNCHANGED, key=["1", None]),
        table.delete("2", None),
        full.truncate(),
        origin="north",
    )
    journal.write()
    rows = [
        tuple(
            row[name] for name in ("op", "schema", "table", "ordinal", "key", "before", "after", "unchanged")
        )
        for row in journal.rows(spark, None)
    ]
    assert rows == [
        ("insert", "public", "t", 0, {"id": "1"}, None, {"id": "1", "note": None}, []),
        ("update", "Shop", "f", 1, None, {"id": "1", "note": "x"}, {"id": "1", "note": "x"}, ["note"]),
        ("message", None, None, 0, None, None, None, []),
        ("update", "public", "t", 0, {"id": "1"}, {"id": "1"}, {"id": "2"}, ["note"]),
        ("delete", "public", "t", 1, {"id": "2"}, {"id": "2"}, None, []),
        ("truncate", "Shop", "f", 2, None, None, None, []),
    ]
    (message,) = [row for row in journal.rows(spark, None) if row["op"] == "message"]
    assert (message["prefix"], message["content"], message["commit_lsn"]) == ("between", b"\0\1", lone)
    assert (message["xid"], message["commit_ts"]) == (None, None)


def test_binary_columns(spark, make_journal) -> None:
    """Columns that came in binary form read as the same values."""
    journal = make_journal(binary=True)
    table = journal.stream.table("t", ID, column("day", DATE), column("b", BYTEA), NOTE)
    day = (9821).to_bytes(4, "big")
    journal.stream.transaction(
        table.insert(Binary(b"\0\0\0\7"), Binary(day), Binary(b"\xff"), Binary(b"text"))
    )
    journal.write()
    ((row),) = journal.rows(spark)
    assert own(row) == {"id": 7, "day": dt.date(2026, 11, 21), "b": bytearray(b"\xff"), "note": "text"}
    ((row),) = journal.rows(spark, None)
    assert row["after"] == {"id": "7", "day": "2026-11-21", "b": "\\xff", "note": "text"}


def test_altered_table(spark, journal) -> None:
    """Columns go by name: one that came later is null before, one that went is null after, types are cast."""
    stream = journal.stream
    first = stream.table("t", ID, NOTE, column("amount", INT4))
    stream.transaction(first.insert("1", "one", "10"))
    second = stream.table("t", column("amount", INT8), ID, column("extra"), replaces=first)
    stream.transaction(second.insert("9999999999", "2", "two"))
    journal.write()
    assert [own(row) for row in journal.rows(spark)] == [
        {"amount": 10, "id": 1, "extra": None},
        {"amount": 9999999999, "id": 2, "extra": "two"},
    ]
    schema = "note string, id bigint, amount string, _op string, _unchanged array<string>"
    rows = journal.read(spark, schema=schema).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [
        ("one", 1, "10", "insert", []),
        (None, 2, "9999999999", "insert", []),
    ]


def test_renamed_and_added_columns(spark, journal) -> None:
    """Rows from before have the values of renamed columns under the new names, and the defaults of added ones."""
    table = journal.stream.table("t", ID, column("a"), column("b"))
    journal.stream.transaction(table.insert("1", "x", "y"), table.update("2", UNCHANGED, "y"))
    journal.write({"id": Attribute(1), "a": Attribute(2), "b": Attribute(3)})
    table = journal.stream.table("t", ID, column("z"), column("b"), column("n", INT4), replaces=table)
    journal.stream.transaction(table.insert("3", "x", "new", "5"), table.delete("1", None, None, None))
    journal.write(
        {
            "id": Attribute(1),
            "z": Attribute(2),
            # Dropped and added again under the same name.
            "b": Attribute(4, "old", missing_known=True),
            "n": Attribute(5, "7", missing_known=True),
        }
    )
    assert [
        {"_op": "insert", "id": 1, "z": "x", "b": "old", "n": 7},
        {"_op": "update", "id": 2, "z": None, "b": "old", "n": 7},
        {"_op": "insert", "id": 3, "z": "x", "b": "new", "n": 5},
        {"_op": "delete", "id": 1, "z": None, "b": None, "n": None},
    ] == [{name: row[name] for name in ("_op", "id", "z", "b", "n")} for row in journal.rows(spark)]
    assert [[], ["z"], [], []] == [row["_unchanged"] for row in journal.rows(spark)]
    assert {"aiorepl.number": "5", "aiorepl.missing": "7"} == journal.read(spark).schema["n"].metadata


def test_unrepresentable(spark, journal) -> None:
    """What a type cannot hold is an error that names the column and not the value, or null, or text if asked for."""
    table = journal.stream.table("t", ID, column("day", DATE), column("matrix", INT4_ARRAY))
    journal.stream.transaction(table.insert("1", "infinity", "{{1,2},{3,4}}"))
    journal.write()
    with pytest.raises(
        Exception, match=r"public\.t\.day: a value of type date does not fit into date32"
    ) as caught:
        journal.read(spark).collect()
    assert "unrepresentable to null" in str(caught.value)
    assert "infinity" not in str(caught.value)
    row = journal.read(spark, unrepresentable="null").first()
    assert (row["day"], row["matrix"]) == (None, None)
    row = journal.read(spark, schema="day string, matrix string").first()
    assert (row["day"], row["matrix"]) == ("infinity", "{{1,2},{3,4}}")


def test_large_transaction(spark, journal) -> None:
    """50,000 rows of one transaction, in many blocks and several tasks: each once, in order, whole."""
    count = 50_000
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(*[table.insert(str(key), f"note {key}") for key in range(count)])
    journal.write(block_bytes=65_536)
    df = journal.read(spark, partitionBytes="256KiB")
    assert df.rdd.getNumPartitions() > 4
    row = df.selectExpr(
        "count(*) n",
        "count(distinct id) ids",
        "sum(id - _ordinal) shift",
        "count(distinct _commit_lsn) transactions",
    ).first()
    assert row.asDict() == {"n": count, "ids": count, "shift": 0, "transactions": 1}


def test_growing_journal(spark, journal, tmp_path) -> None:
    """A running query takes what comes, and after a restart goes on where it was."""
    table = journal.stream.table("t", ID)
    journal.stream.transaction(table.insert("1"), table.insert("2"))
    journal.write()
    seen: list[int] = []

    def start() -> Any:
        df = journal.read(spark, stream=True, consumer="query")
        writer = df.writeStream.foreachBatch(
            lambda batch, number: seen.extend(row["id"] for row in batch.select("id").collect())
        )
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    query.processAllAvailable()
    assert sorted(seen) == [1, 2]
    journal.stream.transaction(table.insert("3"))
    journal.write()
    query.processAllAvailable()
    query.stop()
    journal.stream.transaction(table.insert("4"))
    journal.write()
    query = start()
    query.processAllAvailable()
    query.stop()
    assert sorted(seen) == [1, 2, 3, 4]
    # Spark tells of a batch when it begins the next: the cursor is behind, and holds what it may need again.
    cursor = Cursors(journal.folder).get("query")
    assert journal.stream.ends[0] <= cursor.lsn <= journal.stream.ends[2]
    assert 1 <= len(prune(journal.folder)) <= 2


def test_bytes_per_trigger(spark, journal) -> None:
    """A limit of bytes makes a micro-batch of each segment, and available-now ends where the journal ended."""
    table = journal.stream.table("t", ID)
    for key in range(3):
        journal.stream.transaction(table.insert(str(key)))
        journal.write()
    df = journal.read(spark, stream=True, maxBytesPerTrigger="1")
    seen: list[int] = []
    query = df.writeStream.foreachBatch(lambda batch, number: seen.append(batch.count())).trigger(
        availableNow=True
    )
    assert query.start().awaitTermination(240)
    assert seen == [1, 1, 1]


def test_clear_errors(spark, journal, tmp_path) -> None:
    """What is wrong is said in words, before anything runs."""
    with pytest.raises(Exception, match="there is no journal in"):
        journal.read(spark)
    table = journal.stream.table("t", ID)
    journal.stream.transaction(table.insert("1"))
    journal.write()
    cases = [
        ({"table": "public.missing"}, "public.missing is not in the journal"),
        ({"table": "a.b.c"}, "is not a name"),
        ({"unrepresentable": "maybe"}, "error or null"),
        ({"maxBytesPerTrigger": "lots"}, "is a size like 1048576 or 64MiB"),
        ({"startingPosition": "first"}, "earliest, latest or an LSN"),
        ({"tabel": "public.t"}, "'tabel' does not exist"),
    ]
    for options, said in cases:
        with pytest.raises(Exception, match=said):
            journal.read(spark, options.pop("table", None), **options)
    with pytest.raises(Exception, match="option journal is missing"):
        spark.read.format("aiorepl").load()
    # As a table that was created with a list of columns is read.
    with pytest.raises(Exception, match="Create it without the list"):
        spark.read.schema("id int").format("aiorepl").load().collect()
    given = f"OPTIONS (journal '{journal.folder}', `table` 'public.t')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW chosen (id int) USING aiorepl {given}")
    assert spark.table("chosen").count() == 1
    with pytest.raises(Exception, match="cannot be read as map"):
        journal.read(spark, schema="id map<string,string>").collect()
    with pytest.raises(Exception, match="option table"):
        journal.read(spark, None, schema="id int").collect()


def test_schema_of_a_truncated_table(spark, make_journal) -> None:
    """A table that was only truncated of late still has its types."""
    journal = make_journal(types=[TypeInfo(CENTS, "public", "cents", DOMAIN, INT8)])
    table = journal.stream.table("t", column("price", CENTS))
    journal.stream.transaction(table.insert("1"))
    journal.write()
    journal.stream.transaction(table.truncate())
    journal.write()
    assert journal.segments == 2
    assert journal.read(spark).schema["price"].dataType.simpleString() == "bigint"


def test_table_to_come(spark, journal) -> None:
    """With a schema of his own one can begin before the table has had a change."""
    other = journal.stream.table("other", ID)
    journal.stream.transaction(other.insert("1"))
    journal.write()
    assert journal.read(spark, schema="id int, _op string").collect() == []


def test_foreign_checkpoint(spark, make_journal, tmp_path) -> None:
    """A query's checkpoint of one slot does not go on with the journal of another."""

    def written(**stream: str) -> Any:
        journal = make_journal(**stream)
        journal.stream.transaction(journal.stream.table("t", ID).insert("1"))
        journal.write()
        return journal

    journal = written()
    checkpoint = str(tmp_path / "checkpoint")

    def run() -> None:
        df = journal.read(spark, stream=True, schema="id int, _op string")
        writer = (
            df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        )
        writer.start().awaitTermination(240)

    run()
    shutil.rmtree(journal.folder)
    written(slot="another")
    with pytest.raises(Exception, match="the query's checkpoint holds a position of slot 'test'"):
        run()
    assert journal.segments == 1


def test_options_of_a_table() -> None:
    """A table in the catalog has its options in its schema, because Spark does not pass them on; and no credentials."""
    texts = {
        "journal": "/j",
        "table": "public.t",
        "provider": "aiorepl",
        "option.journal": "/j",
        "option.table": "public.t",
    }
    created = with_options(GENERIC, texts)
    schema, options = without_options(created, {"consumer": "q"})
    assert schema == GENERIC
    assert dict(options) == {"journal": "/j", "table": "public.t", "consumer": "q"}
    assert (GENERIC, {"journal": "/j"}) == without_options(
        with_options(GENERIC, {"journal": "/j"}), {"journal": "/j"}
    )
    with pytest.raises(ConfigurationError, match="keeps its options in the catalog"):
        with_options(GENERIC, texts | {"option.config.secret_access_key": "s"})
