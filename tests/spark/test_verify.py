"""``verify`` on a real server: what differs is found and named, what was changed meanwhile is not taken for a difference."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

from aiorepl import LSN, AioreplError, ConfigurationError, Pipeline, Selection, SlotError, Source, history
from aiorepl.cli import main
from aiorepl.history.compaction import Compaction
from aiorepl.history.planning import Limits
from aiorepl.journal import Cursors, JournalReader
from aiorepl.spark import mirror, verify
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.lake.table import Commit
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.spark.verifying import lake as verifying_lake
from aiorepl.spark.verifying import source as verifying_source
from aiorepl.spark.verifying import verification
from aiorepl.spark.verifying.checksums import Row
from aiorepl.spark.verifying.ended import EndedRows
from aiorepl.spark.verifying.repair import conditions
from aiorepl.spark.verifying.results import TableResult
from aiorepl.spark.verifying.verification import Verification
from aiorepl.storage.local import LocalStore
from tests import servers

from .batches import Lake
from .test_types import SETUP, columns, create

pytestmark = pytest.mark.by_day

LATE = 2**62


class Mirrored:
    """Delta tables that are a mirror, and always where they should be."""

    def __init__(self, **paths: Any) -> None:
        self.paths = {f"public.{name}": str(path) for name, path in paths.items()}
        self.lsn = LSN(LATE)
        self.end = LSN(LATE + 1)
        self.looked: Any = lambda: None

    def as_of(self) -> dict[str, Any]:
        self.looked()
        return dict(self.paths)

    def require_selection(self, selection: object) -> None:
        pass

    def types(self, table: str) -> dict[str, str]:
        return {}

    def newest(self, table: str) -> Any:
        return DeltaTarget(self.paths[table]).newest()

    def target(self, table: str, mode: Any) -> DeltaTarget:
        return DeltaTarget(self.paths[table], mode=mode)


def execute(dsn: str, *statements: str) -> None:
    asyncio.run(servers.execute(dsn, *statements))


def verified(dsn: str, slot: str, mirrored: Mirrored, **options: Any) -> list[Any]:
    settings = {
        name: options.pop(name)
        for name in ("keys", "range_rows", "timeout", "session", "journal_selection")
        if name in options
    }
    made = Verification(Source(dsn, slot=slot, publication="p"), mirrored, "journal", **settings)
    made._end = lambda: mirrored.end  # type: ignore[method-assign] # there is no journal
    return asyncio.run(made.run(**options))


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_every_type(database, slot_name, tmp_path, binary) -> None:
    """Every documented type has the same text in the source and in the lake, whatever the wire format; NULL, too."""
    fixed, _, _ = columns()
    journal = str(tmp_path / "journal")
    source = Source(database, slot=slot_name, publication="p", create_slot=True, binary=binary)
    execute(database, SETUP, "CREATE PUBLICATION p FOR ALL TABLES")
    asyncio.run(Pipeline(source, journal=journal, until="now").run())
    execute(database, create("fixed", fixed), "INSERT INTO fixed (id) VALUES (2)")
    asyncio.run(Pipeline(source, journal=journal, until="now").run())
    store = LocalStore(Path(journal))
    Compaction(
        JournalReader(store), store.within("history"), Cursors(store), limits=Limits(publish_after=0)
    ).run()
    files = history.files(journal, "public", "fixed")
    table = ds.dataset([f"{files.url}/{file.path}" for file in files.files]).to_table()
    ours = ["_commit_lsn", "_ordinal"]
    table = table.select(["id", *(f"c{number}" for number in range(len(fixed))), *ours])
    write_deltalake(tmp_path / "fixed", table.cast(plain(table.schema)))

    (result,) = verified(database, slot_name, Mirrored(fixed=tmp_path / "fixed"), show_keys=True)
    assert (result.differences, result.not_compared, result.problem) == ((), (), None)
    assert (result.rows, result.ranges, result.changing) == (2, 1, 0)

    # Every column counts: rows that are NULL in one column of the source are different.
    copies = table.take([0] * len(fixed)).cast(plain(table.schema))
    copies = copies.set_column(0, "id", pa.array(range(100, 100 + len(fixed)), pa.int32()))
    write_deltalake(tmp_path / "fixed", copies, mode="append")
    names = [f"c{number}" for number in range(len(fixed))]
    execute(
        database,
        *(
            f"INSERT INTO fixed SELECT {100 + number}, "
            f"{', '.join('NULL' if each == name else each for each in names)} FROM fixed WHERE id = 1"
            for number, name in enumerate(names)
        ),
    )
    (result,) = verified(database, slot_name, Mirrored(fixed=tmp_path / "fixed"))
    assert [each.different for each in result.differences] == [len(fixed)]


def plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata().with_nullable(True) for field in schema])


def rows(ids: Any, lsn: int = 1, **changed: Any) -> pa.Table:
    ids = list(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "name": [f"n{each}" for each in ids],
            "_commit_lsn": pa.array([lsn] * len(ids), pa.int64()),
            "_ordinal": pa.array([0] * len(ids), pa.int64()),
        }
    )


def test_differences(database, slot_name, tmp_path) -> None:
    """Missing, different and extra rows are counted by range; rows that were changed since the snapshot are not compared."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, name varchar)",
        "INSERT INTO t SELECT i, 'n' || i FROM generate_series(-9, 300) i",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    ids = [each for each in range(-9, 301) if each not in (7, 150, 151, 200)]
    target = tmp_path / "t"
    write_deltalake(target, rows(ids))
    DeltaTable(target).update({"name": "'other'"}, predicate="id = 20 OR id = 22 OR id = 250")
    # Changed after the snapshot: an update, and a row that is new.
    DeltaTable(target).update({"_commit_lsn": f"{LATE}"}, predicate="id = 250")
    write_deltalake(target, rows([1000], LATE), mode="append")
    write_deltalake(target, rows([500, 501]), mode="append")
    mirrored = Mirrored(t=target)
    looks = []

    def looked() -> None:
        # Row 7 is deleted while it is verified.
        looks.append(None)
        if len(looks) == 2:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(execute, database, "DELETE FROM t WHERE id = 7").result()

    mirrored.looked = looked
    (result,) = verified(database, slot_name, mirrored, range_rows=50, show_keys=True, repair=True)
    assert {"1000"} == {
        str(each) for each in DeltaTable(target).to_pyarrow_table()["id"].to_pylist() if each > 300
    }
    found = {
        (each.lower, each.upper): (each.missing, each.different, each.extra) for each in result.differences
    }
    assert found == {
        (None, "40"): (0, 2, 0),
        ("140", "190"): (2, 0, 0),
        ("190", "240"): (1, 0, 0),
        ("290", None): (0, 0, 2),
    }
    assert (result.rows, result.ranges, result.changing, result.requested, result.deleted) == (
        310,
        7,
        2,
        3,
        2,
    )
    assert sorted(key for each in result.differences for key in each.keys) == [
        "150", "151", "20", "200", "22", "500", "501",
    ]  # fmt: skip
    assert "n20" not in repr(result)
    assert not result.same
    assert str(result).splitlines()[1] == "  range 1 (below 40): 0 missing, 2 different, 0 extra"

    async def requested() -> list[str]:
        connection = await asyncpg.connect(database)
        try:
            found = await connection.fetch(
                "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', "
                "'publication_names', 'p', 'messages', 'true')",
                slot_name,
            )
        finally:
            await connection.close()
        return [bytes(row["data"]) for row in found if b"aiorepl.signal" in row["data"]]

    signals = b" ".join(asyncio.run(requested()))
    for where in (b">= '20' AND", b"<= '22'", b">= '150' AND", b"<= '151'", b">= '200' AND"):
        assert where in signals


def test_a_zero_and_a_position_after_the_end(database, slot_name, tmp_path) -> None:
    """A key -0 is the lake's 0, other columns have their sign; a row from after the journal's end differs; names may have quotes."""
    execute(
        database,
        'CREATE TABLE "odd.t" (k float8 PRIMARY KEY, n float4)',
        """INSERT INTO "odd.t" VALUES ('-0', 1), (1, '-0'), (2, 2), (3, 3)""",
        'CREATE PUBLICATION p FOR TABLE "odd.t"',
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    mirrored = Mirrored(**{"odd.t": tmp_path / "t"})
    lake = {
        "k": pa.array([0.0, 1.0, 2.0, 3.0], pa.float64()),
        "n": pa.array([1.0, 0.0, 2.0, 3.0], pa.float32()),
        "_commit_lsn": pa.array([1, 1, LATE, LATE + 1], pa.int64()),
        "_ordinal": pa.array([0] * 4, pa.int64()),
    }
    write_deltalake(tmp_path / "t", pa.table(lake))
    (result,) = verified(database, slot_name, mirrored, tables=['public."odd.t"'])
    (found,) = result.differences
    assert (found.missing, found.different, found.extra, result.changing) == (0, 2, 0, 1)
    with pytest.raises(ConfigurationError, match=r"table public\.other is not mirrored"):
        verified(database, slot_name, mirrored, tables=["other"])


class Passed(MirroredTables):
    """The tables of a mirror that need not be waited for."""

    lsn = LSN(LATE)  # type: ignore[assignment]


@pytest.mark.parametrize("mode", ["history", "soft_delete"])
def test_rows_that_ended(database, slot_name, tmp_path, mode) -> None:
    """Ended versions and deleted rows are compared with the journal: damaged, missing and added ones are found."""
    journal = tmp_path / "journal"
    source = Source(database, slot=slot_name, publication="p", create_slot=True)
    execute(database, "CREATE TABLE t (id int PRIMARY KEY, note text)", "CREATE PUBLICATION p FOR TABLE t")
    asyncio.run(Pipeline(source, journal=journal, until="now").run())
    execute(
        database,
        "INSERT INTO t SELECT i, 'a' || i FROM generate_series(1, 5) i",
        "UPDATE t SET note = 'b' WHERE id IN (1, 2)",
        "DELETE FROM t WHERE id = 2",
        "ALTER TABLE t ADD more int DEFAULT 7",
        "UPDATE t SET id = 6 WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
        "INSERT INTO t VALUES (4, 'again'), (7, 'x')",
        "DELETE FROM t WHERE id IN (4, 7)",
    )
    asyncio.run(Pipeline(source, journal=journal, until="now").run())
    lake = Lake(tmp_path, SimpleNamespace(folder=journal), mode=mode)
    while lake.stage(1) is not None:
        lake.again()
    mirrored = Passed(lake.target)

    def ended(**options: Any) -> TableResult:
        made = Verification(Source(database, slot=slot_name, publication="p"), mirrored, str(journal))
        return asyncio.run(made.run(ended=True, **options))[0]

    result = ended()
    assert (result.same, result.problem, result.ended) == (True, None, EndedRows())
    table = DeltaTable(lake.target / "public" / "t")
    table.update({"note": "'damaged'"}, predicate="id = 7")
    there = table.to_pyarrow_table()
    table.delete("id = 2 AND note = 'b'")
    row = there.filter(pc.equal(there["id"], 7)).slice(0, 1)
    write_deltalake(table, row.set_column(0, "id", pa.array([70], pa.int32())), mode="append")
    result = ended(show_keys=True)
    assert not result.same
    assert not result.differences
    assert result.ended == EndedRows(1, 1, 1, ("2", "7", "70"))
    assert "rows that ended: 1 missing, 1 different, 1 extra" in str(result)


@pytest.mark.xdist_group("spark")
def test_composite_keys(spark, database, slot_name, tmp_path, monkeypatch) -> None:
    """Executors find the same differences as this process, also in a range that is compared in shares; a repair names all key columns."""
    execute(
        database,
        "CREATE TABLE t (shop int, line varchar, n int, PRIMARY KEY (shop, line))",
        "INSERT INTO t SELECT 1 + i / 90, 'l' || i, i FROM generate_series(1, 100) i",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    for some in (range(1, 50), range(50, 102)):
        there = [each for each in some if each not in (7, 95)]
        columns = {
            "shop": pa.array([1 + each // 90 for each in there], pa.int32()),
            "line": [f"l{each}" for each in there],
            "n": pa.array([each if each != 8 else 0 for each in there], pa.int32()),
            "_commit_lsn": pa.array([1] * len(there), pa.int64()),
            "_ordinal": pa.array([0] * len(there), pa.int64()),
        }
        write_deltalake(tmp_path / "t", pa.table(columns), mode="append", partition_by=["shop"])
    monkeypatch.setattr(verifying_lake, "LARGE", 0)
    monkeypatch.setattr(verifying_lake, "_TASK_BYTES", 1)
    wheres: list[Any] = []

    async def request(source: Any, table: str, conditions: Any) -> None:
        wheres.extend(conditions)

    monkeypatch.setattr(verification, "request", request)
    found = []
    for session in (None, lambda: spark):
        # With so few rows at once, this process compares each range in two shares.
        monkeypatch.setattr(verification, "_ROWS_AT_ONCE", 40 if session is None else 1000)
        # The second run repairs: that deletes the extra row.
        options = {"range_rows": 50, "show_keys": True, "repair": session is not None, "session": session}
        (result,) = verified(database, slot_name, Mirrored(t=tmp_path / "t"), **options)
        found.append([(each.missing, each.different, each.extra, each.keys) for each in result.differences])
    assert found[0] == found[1] == [(1, 1, 0, ("1, l7", "1, l8")), (1, 0, 1, ("2, l95", "2, l101"))]
    assert wheres[:2] == [
        "\"shop\" >= '1' AND \"shop\" <= '1' AND \"line\" IN ('l7', 'l8')",
        "\"shop\" >= '2' AND \"shop\" <= '2' AND \"line\" IN ('l95')",
    ]


@pytest.mark.xdist_group("spark")
def test_an_iceberg_table(spark, database, slot_name, tmp_path, monkeypatch) -> None:
    """Rows of an Iceberg table are compared like Delta's, in this process and by executors, which need no catalog."""
    from pyiceberg.catalog.sql import SqlCatalog

    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, small int2, price numeric(10, 2), at timestamptz, raw bytea, list int[], note text)",
        "INSERT INTO t SELECT i, i, i + 0.5, '2026-11-22', '\\x00ff', ARRAY[i, NULL], 'n' || i FROM generate_series(1, 90) i",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}")
    target = IcebergLake(catalog).table(("public", "t"))
    source = pa.schema(
        [
            ("id", pa.int32()),
            ("small", pa.int16()),
            ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            ("raw", pa.binary()),
            ("list", pa.list_(pa.int32())),
            ("note", pa.string()),
        ]
    )
    target.apply(Commit("query", 0, LSN(1)), (), source)
    at = datetime(2026, 11, 22, tzinfo=UTC)
    for some in (range(1, 50), range(50, 92)):
        there = [each for each in some if each not in (7, 60)]
        columns = {
            "id": there,
            "small": there,
            "price": [Decimal(each) + Decimal("0.5") for each in there],
            "at": [at] * len(there),
            "raw": [b"\x00\xff"] * len(there),
            "list": [[each, None] for each in there],
            "note": [f"n{each}" if each != 8 else "other" for each in there],
            "_commit_lsn": [1] * len(there),
            "_ordinal": [0] * len(there),
        }
        table = target._open()
        table.append(pa.table(columns, table.schema().as_arrow()))
    mirrored = Mirrored(t="")
    monkeypatch.setattr(mirrored, "newest", lambda table: target.newest())
    monkeypatch.setattr(verifying_lake, "LARGE", 0)
    monkeypatch.setattr(verifying_lake, "_TASK_BYTES", 1)
    for session in (None, lambda: spark):
        (result,) = verified(
            database, slot_name, mirrored, range_rows=50, show_keys=True, session=session, repair=False
        )
        found = [(each.missing, each.different, each.extra, each.keys) for each in result.differences]
        assert found == [(1, 1, 0, ("7", "8")), (1, 0, 1, ("60", "91"))]
        assert (result.rows, result.not_compared) == (90, ())


def test_rows_that_no_mirror_writes(database, slot_name, tmp_path) -> None:
    """Rows that are twice in the lake, or have no position, are differences; columns of the source may have the names of a mode's."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, name varchar); INSERT INTO t SELECT i, 'n' || i FROM generate_series(1, 10) i",
        "CREATE TABLE odd (id int PRIMARY KEY, _deleted bool, _is_current bool); INSERT INTO odd VALUES (1, true, false)",
        "CREATE PUBLICATION p FOR TABLE t, odd",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    target = tmp_path / "t"
    nowhere = pa.array([None], pa.int64())
    planted = [
        rows(each for each in range(1, 11) if each != 7),
        rows([3, 4]),
        rows([5]).set_column(1, "name", pa.array(["wrong"])),
        rows([99]).set_column(2, "_commit_lsn", nowhere),
        rows([7]).set_column(1, "name", pa.array(["wrong"])).set_column(2, "_commit_lsn", nowhere),
    ]
    write_deltalake(target, pa.concat_tables(planted))
    there = {"_commit_lsn": [1], "_ordinal": [0]}
    odd = pa.table({"id": pa.array([1], pa.int32()), "_deleted": [True], "_is_current": [False], **there})
    write_deltalake(tmp_path / "odd", odd)
    equal, result = verified(database, slot_name, Mirrored(t=target, odd=tmp_path / "odd"), show_keys=True)
    assert (equal.same, equal.not_compared, equal.rows) == (True, (), 1)
    (each,) = result.differences
    assert (each.missing, each.different, each.extra) == (0, 1, 4)
    assert sorted(each.keys) == ["3", "4", "5", "7", "99"]


@pytest.mark.parametrize("publish", ["insert, update", "insert, update, delete", "insert, update, truncate"])
def test_rows_that_the_lake_keeps_on_purpose(database, slot_name, tmp_path, publish) -> None:
    """Rows that the source has deleted stay if the publication leaves out deletes or truncates, also in a repair."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, name varchar); INSERT INTO t SELECT i, 'n' || i FROM generate_series(1, 5) i",
        f"CREATE PUBLICATION p FOR TABLE t WITH (publish = '{publish}')",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    write_deltalake(tmp_path / "t", rows(range(1, 11)))
    (result,) = verified(database, slot_name, Mirrored(t=tmp_path / "t"), repair=True)
    assert (result.deleted, result.kept) == (0, 5)
    assert "rows with 5 keys stay in the lake" in str(result)
    assert 10 == len(DeltaTable(tmp_path / "t").to_pyarrow_table())


def test_what_cannot_be_compared(database, slot_name, tmp_path) -> None:
    """Tables without a key, logs of changes and columns of other types are named; a mirror that stands still is an error."""
    execute(
        database,
        "CREATE TABLE t (id text COLLATE \"C\", n int); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES ('a', 1), ('b', 2)",
        "CREATE TABLE log (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t, log",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    there = {"_commit_lsn": [1, 1], "_ordinal": [0, 0]}
    write_deltalake(tmp_path / "t", pa.table({"id": ["a", "b"], "n": [True, False], "more": [1, 2], **there}))
    write_deltalake(tmp_path / "log", pa.table({"id": [1, 2], "_op": ["insert", "insert"], **there}))
    mirrored = Mirrored(t=tmp_path / "t", log=tmp_path / "log", gone=tmp_path / "t")

    assert (
        str(TableResult("public.t", LSN(1), 1000, 1))
        == "public.t: 1,000 rows in 1 key range are the same at 0/1"
    )
    gone, log, keyless = verified(database, slot_name, mirrored)
    assert [each.problem.partition(":")[0] for each in (gone, log, keyless)] == [
        "it is not published",
        "it is a log of changes, which has no rows to compare",
        "no columns identify its rows",
    ]
    (keyed,) = verified(
        database,
        slot_name,
        mirrored,
        tables=["public.t"],
        keys=lambda *table: {("public", "t"): ["id"]}[table],
        range_rows=1,
    )
    assert (keyed.same, keyed.not_compared, keyed.ranges) == (True, ("more", "n"), 3)
    with pytest.raises(ConfigurationError, match=r"table public\.x is not mirrored"):
        verified(database, slot_name, mirrored, tables=["public.x"])
    mirrored.lsn = LSN(1)
    with pytest.raises(
        AioreplError, match=r"the pipeline did not pass .* within 0 s, and the mirror is at 0/1"
    ):
        verified(database, slot_name, mirrored, timeout=0)


def test_another_session_waits_for_the_locks(database, slot_name, tmp_path, monkeypatch) -> None:
    """If a table is altered while the comparison waits for the mirror, the comparison ends with an error that names the table."""
    monkeypatch.setattr(verifying_source, "LOCK_TIMEOUT", 0.5)
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    write_deltalake(tmp_path / "t", plain_rows(id=1))
    mirrored = Mirrored(t=tmp_path / "t")
    mirrored.lsn = LSN(0)
    with ThreadPoolExecutor(1) as pool:
        comparing = pool.submit(verified, database, slot_name, mirrored, timeout=60)
        while not asyncio.run(locked(database, "t")):
            assert not comparing.done()
        execute(database, "SET statement_timeout = '30s'", "ALTER TABLE t ADD c int")
        with pytest.raises(
            SlotError,
            match=r"waited for 0\.5 s to alter or truncate table public\.t, .*: verify again once that process",
        ):
            comparing.result()


async def locked(dsn: str, table: str) -> bool:
    """Whether a session holds a lock of a table."""
    connection = await asyncpg.connect(dsn)
    try:
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::text::regclass AND granted)"
        return bool(await connection.fetchval(query, table))
    finally:
        connection.terminate()


def plain_rows(**row: int) -> pa.Table:
    """A table of one row, as a mirror writes it."""
    return pa.Table.from_pylist([{**row, "_commit_lsn": 1, "_ordinal": 0}])


def test_conditions() -> None:
    """Rows are selected by the range of their keys, or by the keys; a key that no condition may name means the whole table."""
    numbers = [Row(str(each), 0, each, str(each)) for each in (-3, 20, 7)]
    assert conditions(["i d"], numbers, ordered=True) == ["\"i d\" >= '-3' AND \"i d\" <= '20'"]
    texts = [Row(each, 0, each, each) for each in ("it's", "b", "b")]
    assert conditions(["k"], texts, ordered=False) == ["\"k\" IN ('b', 'it''s')"]
    assert conditions(["k"], [Row("", 0, "\\", "\\")], ordered=False) == [None]
    assert len(conditions(["k"], [Row("", 0, str(n), str(n)) for n in range(1001)], ordered=False)) == 3


@pytest.mark.xdist_group("spark")
def test_a_running_mirror_is_repaired(spark, database, slot_name, tmp_path, capsys) -> None:
    """While a pipeline and a mirror run, the command finds rows that the lake has lost, requests them again, and reports this."""
    journal, lake = str(tmp_path / "journal"), tmp_path / "lake"
    execute(
        database,
        "CREATE TYPE pair AS (n int, note text)",
        "CREATE TABLE t (id int PRIMARY KEY, p pair, at timestamptz)",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
        "INSERT INTO t SELECT i, ROW(i, 'x'::text)::pair, '2026-11-22' FROM generate_series(1, 100) i",
    )
    file = tmp_path / "mirror.toml"
    file.write_text(f"[journal]\nurl = '{journal}'\n[mirror]\ntables = ['public.*']\ntarget = '{lake}'\n")

    def command(*given: str) -> Any:
        source = ["--dsn", database, "--slot", slot_name, "--publication", "p"]
        with pytest.raises(SystemExit) as ended:
            main(["spark", "verify", str(file), *source, *given])
        return ended.value.code

    loop = asyncio.new_event_loop()
    pipeline = Pipeline(Source(database, slot=slot_name, publication="p"), journal=journal)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop.run_until_complete, pipeline.run())
        try:
            written = JournalReader(journal)
            while not (tmp_path / "journal" / "position.json").exists() or not written.segments():
                running.done() and running.result()
                time.sleep(0.05)
            mirror(spark, journal, ["public.*"], lake, trigger={"availableNow": True}).awaitTermination(240)
            DeltaTable(lake / "public" / "t").delete("id BETWEEN 10 AND 12 OR id = 90")
            # Rows that the source does not have, and second rows of keys that it has.
            there = DeltaTable(lake / "public" / "t").to_pyarrow_table()
            found = there.filter(pc.less(there["id"], 4))
            gone = found.set_column(0, "id", pc.add(found["id"], pa.scalar(-100, pa.int32())))
            write_deltalake(lake / "public" / "t", pa.concat_tables([found, gone]), mode="append")
            query = mirror(spark, journal, ["public.*"], lake)

            asked = ["--range-rows", "50", "--timeout", "60", "--repair"]
            assert command(*asked) == 1
            said = capsys.readouterr().out
            assert "public.t: 2 of 3 key ranges differ" in said
            assert "range 1 (below 50): 3 missing, 0 different, 6 extra" in said
            assert "2 snapshots requested" in said
            assert "rows with 3 keys deleted from the lake" in said
            for _ in range(50):
                (result,) = verify(database, journal, lake, slot=slot_name, publication="p", timeout=60)
                if result.same:
                    break
            assert command("--timeout", "60") == 0
            assert "public.t: 100 rows in 1 key range are the same" in capsys.readouterr().out
            query.stop()
        finally:
            loop.call_soon_threadsafe(pipeline.stop)
    loop.close()
    assert command("--timeout", "0") == 1
    assert "the pipeline did not pass" in capsys.readouterr().err


def test_columns_that_the_journal_hides(database, slot_name, tmp_path):
    """Columns that the journal's selection may hide are not compared; a table whose key is hidden cannot be compared."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, email text, password text, note text)",
        "INSERT INTO t VALUES (1, 'a@b.example', 'x', 'same')",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    there = {"_commit_lsn": [1], "_ordinal": [0]}
    masked = pa.table({"id": pa.array([1], pa.int32()), "email": ["5f2a"], "note": ["same"], **there})
    write_deltalake(tmp_path / "t", masked)

    def result(*mask: str) -> Any:
        selection = Selection(mask=mask, secret="s")
        (found,) = verified(database, slot_name, Mirrored(t=tmp_path / "t"), journal_selection=selection)
        return found

    compared = result("public.t.email", "*.*.pass*")
    assert (compared.same, compared.not_compared, compared.rows) == (True, ("email", "password"), 1)
    assert not result("public.t.other").same
    assert result("*.*.id").problem == "the key column 'id' cannot be compared: a selection hides it"
