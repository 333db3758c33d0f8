"""The option ``types`` of a mirror: columns have the types of the option, exactly, or an error names the column."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from math import isnan
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl import LSN, Pipeline, Selection, Source
from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.columns import Unrepresentable
from aiorepl.history.opening import open_compaction
from aiorepl.journal import Cursors, JournalReader
from aiorepl.journal.retention import prune
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark import mirror
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.mirroring import reducing
from aiorepl.spark.mirroring.applying import TableFailed
from aiorepl.spark.mirroring.column_types import choices_of, converted
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.spark.mirroring.state import StateFile
from aiorepl.spark.verifying.verification import Verification
from aiorepl.testing.messages import column
from tests import servers

from .batches import Killed, Lake

NUMERIC, NUMERICS, DATE, TIMESTAMPTZ, INT4, JSONB = 1700, 1231, 1082, 1184, 23, 3802
ID = column("id", INT4, key=True)
AMOUNT = column("amount", NUMERIC)
DECIMAL = {"public.t.amount": "decimal(20,4)"}


@pytest.fixture(params=["delta", "iceberg"])
def lake(tmp_path, journal, request) -> Callable[..., Lake]:
    opened = None
    if request.param == "iceberg":
        catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/files"
        )
        opened = partial(IcebergLake, lambda: catalog)
    return partial(Lake, tmp_path, journal, lake=opened)


def rows(mirror: Lake, table: str = "t") -> pa.Table:
    found = mirror.lake.table(("public", table)).newest()
    names = [name for name in found.schema().names if not name.startswith("_")]
    return pa.Table.from_batches(found.batches(names)).sort_by("id")


def again(mirror: Lake, **settings: Any) -> None:
    """Restart with other settings."""
    mirror.settings = mirror.staging.settings.of(
        **{
            "tables": ["public.*"],
            "mode": "current",
            "keys": {},
            "layout": {},
            "unrepresentable": "error",
            "on_error": "halt",
            **settings,
        }
    )
    mirror.restart()


@pytest.mark.parametrize("mode", ["current", "soft_delete", "history", "changelog"])
def test_types(lake, journal, mode) -> None:
    """Numbers, times and arrays have the chosen types; the first pattern that matches applies."""
    types = {
        "public.t.amount": "decimal(20,4)",
        "*.*.amount": "string",
        "public.*.ratio": "double",
        "*.*.at": "string",
        "*.*.amounts": "decimal(6,2)",
        "*.*.n": "decimal(10,0)",
    }
    mirror = lake(types=types, mode=mode)
    columns = [
        AMOUNT,
        column("ratio", NUMERIC),
        column("at", TIMESTAMPTZ),
        column("amounts", NUMERICS),
        column("n", INT4),
    ]
    t, u = journal.stream.table("t", ID, *columns), journal.stream.table("u", ID, AMOUNT)
    journal.stream.transaction(
        t.insert("1", "1.5000", "0.1", "infinity", "{1.5,NULL}", "7"),
        t.insert("2", None, "NaN", "2026-11-27 20:00:00.5+00", "{}", None),
        u.insert("1", "1.50"),
    )
    mirror.step()
    found = rows(mirror)
    assert found.schema.field("amount").type == pa.decimal128(20, 4)
    assert found["amount"].to_pylist() == [Decimal("1.5"), None]
    assert found["ratio"][0].as_py() == 0.1
    assert isnan(found["ratio"][1].as_py())
    assert found["at"].to_pylist() == ["infinity", "2026-11-27 20:00:00.5+00"]
    assert found["amounts"].to_pylist() == [[Decimal("1.5"), None], []]
    assert found["n"].to_pylist() == [Decimal(7), None]
    assert rows(mirror, "u")["amount"].to_pylist() == ["1.50"]
    journal.stream.transaction(t.update("1", "2.25", "1", "-infinity", None, "8"), t.delete("2", *[None] * 5))
    mirror.step()
    assert Decimal("2.25") in rows(mirror)["amount"].to_pylist()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal(20,4)", "1.00001"),
        ("decimal(20,4)", "NaN"),
        ("decimal(20,4)", "Infinity"),
        ("decimal(20,4)", "1" + "0" * 16),
        ("double", "1" + "0" * 400),
        ("double", "0." + "0" * 400 + "1"),
    ],
)
def test_unfit_values(lake, journal, kind, value) -> None:
    """A value that the type cannot hold sets the table aside by name; it is never rounded, and is null only if the option says so."""
    types = {"public.t.amount": kind}
    mirror = lake(types=types, on_error="set_aside")
    t, u = journal.stream.table("t", ID, AMOUNT), journal.stream.table("u", ID)
    journal.stream.transaction(t.insert("1", "1"))
    mirror.step()
    journal.stream.transaction(t.insert("2", value), u.insert("1"))
    mirror.step()
    (problem,) = MirroredTables(mirror.target, mirror.lake).set_aside.values()
    assert "public.t has a value that the type of column 'amount' cannot represent" in problem
    assert value not in problem
    assert rows(mirror)["id"].to_pylist() == [1]
    assert rows(mirror, "u")["id"].to_pylist() == [1]
    again(mirror, types=types, unrepresentable="null")
    journal.stream.transaction(u.insert("2"))
    mirror.step()
    assert rows(mirror)["amount"].to_pylist() == [1, None]


@pytest.mark.parametrize(
    ("types", "former"),
    [
        ({}, DECIMAL),
        (DECIMAL, {}),
        ({"*.*.amount": "decimal(10,2)"}, DECIMAL),
        ({"*.*.amount": "double"}, DECIMAL),
        ({"*.*.amount": "string"}, {"*.*.amount": "double"}),
        ({}, {"*.*.amount": "string"}),
    ],
)
def test_changed_types(lake, journal, types, former) -> None:
    """A changed type is refused at the start, before anything is staged, and the former type continues."""
    mirror = lake(types=former)
    t = journal.stream.table("t", ID, AMOUNT)
    journal.stream.transaction(t.insert("1", "1"))
    mirror.step()
    with pytest.raises(
        ConfigurationError, match=r"types: the column 'amount' of public\.t .*--restart-table"
    ):
        again(mirror, types=types)
    again(mirror, types=former)
    journal.stream.transaction(t.insert("2", "2"))
    mirror.step()
    assert rows(mirror)["id"].to_pylist() == [1, 2]


def test_patterns_with_the_same_type(lake, journal) -> None:
    """Another pattern with the same type changes nothing."""
    mirror = lake(types=DECIMAL)
    t = journal.stream.table("t", ID, AMOUNT)
    journal.stream.transaction(t.insert("1", "1"))
    mirror.step()
    again(mirror, types={"public.*.amount": "decimal(20, 4)"})
    journal.stream.transaction(t.insert("2", "2"))
    mirror.step()
    assert rows(mirror).num_rows == 2


def test_renamed(lake, journal) -> None:
    """A column that is renamed out of its pattern does not become text; with a pattern for its new name, it is renamed."""
    mirror = lake(types={"public.t.amount?": "decimal(20,4)"})
    numbers = {"id": Attribute(1), "amount": Attribute(2), "total": Attribute(2)}
    t = journal.stream.table("t", ID, AMOUNT)
    journal.stream.transaction(t.insert("1", "1"))
    journal.write(numbers)
    mirror.stage()
    mirror.again()
    renamed = journal.stream.table("t", ID, column("total", NUMERIC), replaces=t)
    journal.stream.transaction(renamed.insert("2", "2.5"))
    journal.write(numbers)
    mirror.stage()
    with pytest.raises(TableFailed, match=r"types: the column 'total' of public\.t"):
        mirror.again()
    again(mirror, types={"public.t.amount?": "decimal(20,4)", "public.t.total": "decimal(20,4)"})
    mirror.again()
    assert rows(mirror)["total"].to_pylist() == [Decimal(1), Decimal("2.5")]


def test_added_column(lake, journal) -> None:
    """The rows from before a column was added have its default in the type of the option."""
    mirror = lake(types={"public.t.price?": "decimal(20,4)", "public.t.at?": "string"})
    t = journal.stream.table("t", ID)
    journal.stream.transaction(t.insert("1"))
    mirror.step()
    wide = journal.stream.table("t", ID, column("price", NUMERIC), column("at", TIMESTAMPTZ), replaces=t)
    journal.stream.transaction(wide.insert("2", "2", "infinity"))
    journal.write(
        {
            "id": Attribute(1),
            "price": Attribute(2, "9.75", True),
            "at": Attribute(3, "2026-01-01 00:00:00+00", True),
        }
    )
    mirror.stage()
    mirror.again()
    found = rows(mirror)
    assert found["price"].to_pylist() == [Decimal("9.75"), Decimal(2)]
    assert found["at"].to_pylist() == ["2026-01-01 00:00:00+00", "infinity"]


def test_restart_within_a_batch(lake, journal, monkeypatch) -> None:
    """A mirror that ended between a table's commit and its state refuses another type, and then continues."""
    mirror = lake(types=DECIMAL)
    t = journal.stream.table("t", ID, AMOUNT)
    journal.stream.transaction(t.insert("1", "1"))
    save = StateFile.save

    def killed(self: Any, state: Any) -> Any:
        if state.tables:
            raise Killed
        return save(self, state)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StateFile, "save", killed)
        mirror.step()
    again(mirror, types={"*.*.amount": "double"})
    mirror.again()
    journal.stream.transaction(t.insert("2", "2"))
    with pytest.raises(TableFailed, match="types: the column 'amount'"):
        mirror.step()
    again(mirror, types=DECIMAL)
    mirror.again()
    assert rows(mirror)["amount"].to_pylist() == [1, 2]


def test_key(lake, journal) -> None:
    """A decimal key finds its rows whatever its zeros; a double is refused, because two keys could become one."""
    mirror = lake(types={"*.*.k": "double"})
    t = journal.stream.table("t", column("k", NUMERIC, key=True), column("id", INT4))
    journal.stream.transaction(t.insert("1.0", "1"))
    with pytest.raises(TableFailed, match="cannot be double"):
        mirror.step()
    again(mirror, types={"*.*.k": "decimal(10,3)"})
    mirror.again()
    journal.stream.transaction(t.update("1.00", "2"))
    mirror.step()
    assert rows(mirror)["id"].to_pylist() == [2]


@pytest.mark.parametrize("mode", ["current", "soft_delete", "history"])
def test_key_with_other_zeros(lake, journal, mode) -> None:
    """PostgreSQL sends 1.00 instead of 1.0 as another key; the decimal key is the same, and the row keeps the value that was not sent."""
    mirror = lake(types={"*.*.k": "decimal(10,3)"}, mode=mode)
    t = journal.stream.table("t", column("k", NUMERIC, key=True), column("id", INT4), column("note"))
    journal.stream.transaction(t.insert("1.0", "1", "kept"))
    mirror.step()
    journal.stream.transaction(t.update("1.00", "2", UNCHANGED, key=["1.0", None, None]))
    mirror.step()
    journal.stream.transaction(
        t.truncate(), t.insert("1", "3", "x"), t.update("1.000", "4", UNCHANGED, key=["1", None, None])
    )
    mirror.step()
    found = rows(mirror).to_pylist()
    assert {"k": Decimal(1), "id": 4, "note": "x"} in found
    if mode == "history":
        assert {"k": Decimal(1), "id": 2, "note": "kept"} in found
    else:
        assert len(found) == 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("text", "decimal(5,2)"),
        (16, "double"),
        (INT4, "double"),
        (DATE, "timestamp"),
        (JSONB, "decimal(5,2)"),
    ],
)
def test_impossible_types(lake, journal, kind, text) -> None:
    """A type that no value of the column could have is refused by the column's name."""
    mirror = lake(types={"*.*.x": text})
    t = journal.stream.table("t", ID, column("x") if kind == "text" else column("x", kind))
    journal.stream.transaction(t.insert("1", None))
    with pytest.raises(TableFailed, match=rf"types: public\.t\.x is .* and cannot be {text[:6]}"):
        mirror.step()


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"public.t.x": "variant"}, "cannot be variant"),
        ({"public.t.x": "decimal(39,2)"}, "at most 38"),
        ({"public.t.x": "decimal(3,4)"}, "expected"),
        ({"public.t.x": "int"}, "expected"),
        ({"public.t": "string"}, "types"),
    ],
)
def test_wrong_options(types, message) -> None:
    """Unknown types and malformed patterns are refused before anything starts."""
    with pytest.raises(ConfigurationError, match=message):
        choices_of(types)


def test_patterns_that_match_nothing(lake, journal) -> None:
    """A pattern that matches no column is refused, unless it ends with a question mark."""
    journal.stream.transaction(journal.stream.table("t", ID, AMOUNT).insert("1", "1"))
    mirror = lake(types={"public.t.amuont": "double"})
    with pytest.raises(ConfigurationError, match=r"'public\.t\.amuont' matches no column"):
        mirror.step()


def test_from_history(lake, journal) -> None:
    """Rows from the journal's history have the chosen types, too, beside masked columns."""
    types = {"*.*.amount": "decimal(20,4)", "*.*.at": "string", "*.*.email": "string"}
    t = journal.stream.table("t", ID, AMOUNT, column("at", TIMESTAMPTZ), column("email"))
    journal.stream.transaction(t.insert("1", "1.5", "infinity", "a@b"), t.insert("2", None, None, None))
    journal.write()
    open_compaction(str(journal.folder)).run()
    journal.stream.transaction(t.insert("3", "2.5", "2026-11-27 20:00:00+00", "c@d"))
    journal.write()
    Cursors(journal.folder).advance("other", JournalReader(journal.folder).end().at(journal.stream.ends[0]))
    assert len(prune(journal.folder)) == 1
    mirror = lake(types=types, selection=Selection(mask=("*.*.email",), secret="s"))
    compacted = []
    while (batch := mirror.stage()) is not None:
        compacted += [file.compacted for file in batch.files]
        mirror.again()
    assert compacted == [True, False]
    found = rows(mirror)
    assert found["amount"].to_pylist() == [Decimal("1.5"), None, Decimal("2.5")]
    assert found["at"].to_pylist() == ["infinity", None, "2026-11-27 20:00:00+00"]
    assert {len(each or "") for each in found["email"].to_pylist()} == {0, 64}


def test_special_values_of_bounded_numbers(lake, journal) -> None:
    """A value that only the type of the option can represent is no error: NaN of a numeric(5,2), as a double and as text."""
    bounded = (5 << 16 | 2) + 4
    mirror = lake(
        types={"*.*.ratio": "double", "*.*.text": "string", "*.*.amount": "decimal(4,1)"},
        on_error="set_aside",
    )
    columns = [column(name, NUMERIC, type_modifier=bounded) for name in ("ratio", "text", "amount")]
    t = journal.stream.table("t", ID, *columns)
    journal.stream.transaction(t.insert("1", "NaN", "NaN", "1.50"), t.insert("2", "0.25", "0.25", None))
    mirror.step()
    found = rows(mirror)
    assert isnan(found["ratio"][0].as_py())
    assert found["ratio"][1].as_py() == 0.25
    assert found["text"].to_pylist() == ["NaN", "0.25"]
    assert found["amount"].to_pylist() == [Decimal("1.5"), None]
    for number, amount in ((3, "1.55"), (4, "NaN")):
        journal.stream.transaction(t.insert(str(number), "1", "1", amount))
    mirror.step()
    (problem,) = MirroredTables(mirror.target, mirror.lake).set_aside.values()
    assert "'amount'" in problem


def test_nearest_numbers() -> None:
    """A double is the nearest number of a numeric; zeros and infinities stay."""
    texts = pa.array(["0.1", "0.000", "-Infinity", "1" + "0" * 300, None])
    assert converted(texts, pa.float64(), null=False).to_pylist() == [0.1, 0.0, float("-inf"), 1e300, None]
    with pytest.raises(Unrepresentable):
        converted(pa.array(["9" * 400]), pa.float64(), null=False)
    assert converted(pa.array(["9" * 400, "1"]), pa.float64(), null=True).to_pylist() == [None, 1.0]


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("mode", ["history", "current"])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_from_a_server(spark, database, slot_name, tmp_path, monkeypatch, kind, mode) -> None:
    """A snapshot and the stream have the chosen types, also when executors reduce them, and the comparison finds no difference."""
    monkeypatch.setattr(reducing, "DRIVER_BYTES", 0)
    journal, target = str(tmp_path / "journal"), tmp_path / "lake"
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/files")
    tables = IcebergLake(lambda: catalog) if kind == "iceberg" else None
    types = {
        "public.t.amount": "decimal(20,4)",
        "public.t.ratio": "double",
        "public.t.at": "string",
        "public.t.parts": "decimal(8,3)",
        "public.t.day": "string",
        "public.t.cents": "decimal(12,2)",
        "public.t.f4": "double",
        **dict.fromkeys(("public.t.f8", "public.t.raw", "public.t.flag", "public.t.local"), "string"),
    }
    columns = (
        "amount numeric, ratio numeric, at timestamptz, parts numeric[], day date, cents cents, raw bytea, payload jsonb,"
        "f4 float4, f8 float8, flag bool, local timestamp"
    )
    values = (
        "i / 8.0, i / 7.0, '2026-11-27 20:00+02'::timestamptz + i * '1 hour'::interval, ARRAY[i / 8.0, NULL], 'infinity', i / 4.0,"
        "'\\x00ff', jsonb_build_object('i', i), i / 10.0, i / 7.0, i % 2 = 0, '2026-11-27 20:00:00.123'"
    )
    source = Source(database, slot=slot_name, publication="p", create_slot=True)

    def step(*statements: str) -> None:
        asyncio.run(servers.execute(database, *statements))
        asyncio.run(Pipeline(source, journal=journal, snapshot=True, until="now").run())
        query = mirror(
            spark,
            journal,
            ["public.*"],
            target,
            lake=tables,
            types=types,
            mode=mode,
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(240)

    step(
        "CREATE DOMAIN cents AS numeric",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t SELECT i, {values} FROM generate_series(1, 50) i",
    )
    step(
        "UPDATE t SET amount = -amount, ratio = 'NaN', at = '-infinity', parts = '{}' WHERE id < 9",
        "UPDATE t SET ratio = 'Infinity', day = '20000-01-01' WHERE id > 45",
        "DELETE FROM t WHERE id = 10",
        f"INSERT INTO t SELECT i, {values} FROM generate_series(100, 103) i",
    )
    schema = MirroredTables(target, tables).newest("public.t").schema()
    found = [schema.field(name).type for name in ("amount", "ratio", "at", "day", "cents")]
    text = pa.string()
    assert found == [pa.decimal128(20, 4), pa.float64(), text, text, pa.decimal128(12, 2)]
    assert schema.field("parts").type.value_type == pa.decimal128(8, 3)
    assert MirroredTables(target, tables).types("public.t")["public.t.amount?"] == "decimal(20,4)"

    class Passed(MirroredTables):
        lsn = LSN(2**62)  # type: ignore[assignment]

    monkeypatch.undo()
    made = Verification(Source(database, slot=slot_name, publication="p"), Passed(target, tables), journal)
    (result,) = asyncio.run(made.run(ended=True))
    assert (result.problem, result.differences, result.not_compared) == (None, (), ())
    assert result.rows == 53
    assert result.same
