"""TPC-H's tables mirrored into Delta tables, then a refresh stream, beside Debezium Engine with the same changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import debezium
import tpch
from measuring import SETTINGS, Bench
from processes import run, step

from aiorepl.testing import EmbeddedServer

# A part of orders, with its line items.
_INSERTED, _UPDATED, _DELETED = 0.01, 0.01, 0.005
# Keys of TPC-H at scale 1 are below 6 million.
_REFRESH: Final = """
INSERT INTO orders SELECT o_orderkey + {moved}, o_custkey, o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk,
  o_shippriority, o_comment FROM orders WHERE o_orderkey % 1000 {inserted} AND o_orderkey <= 10000000;
INSERT INTO lineitem SELECT l_orderkey + {moved}, l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount,
  l_tax, l_returnflag, l_linestatus, l_shipdate, l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode, l_comment
  FROM lineitem WHERE l_orderkey % 1000 {inserted} AND l_orderkey <= 10000000;
UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE o_orderkey % 1000 {updated};
UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey % 1000 {updated};
DELETE FROM lineitem WHERE l_orderkey % 1000 {deleted};
DELETE FROM orders WHERE o_orderkey % 1000 {deleted};
"""


def mirror_and_refresh(folder: Path, scale: float, files: Path, vectors: str, *, beside: bool) -> None:
    """Measure the snapshot, the capture of two refresh streams into a journal, their mirror, and Debezium.

    :param scale: TPC-H's scale factor.
    :param files: where its generator and its files are kept.
    :param vectors: the mirror's option ``deletion_vectors``.
    :param beside: whether Debezium is measured.
    """
    lake, journal = folder / "tpch-lake", folder / "tpch-journal"
    with EmbeddedServer(settings=SETTINGS) as server:
        bench = Bench(server, "tpch")
        loaded = tpch.load(bench, scale, files)
        bench.psql("VACUUM (FREEZE, ANALYZE)")
        bench.psql("CREATE PUBLICATION bench FOR ALL TABLES; CHECKPOINT")
        taken = run(step("snapshot", bench.dsn, lake))
        print(f"TPC-H, snapshot to Delta: {taken.rates(loaded)}; {_files(_written(lake))}", flush=True)
        bench.psql("SELECT pg_create_logical_replication_slot('bench_debezium', 'pgoutput')")
        changes = [_refresh(bench, journal, 0)]
        written = [_written(lake)]

        def again() -> None:
            written.append(_written(lake))
            changes.append(_refresh(bench, journal, 1))

        mirrored = run(step("mirror", journal, lake, "2g", vectors), pause=again)
        written.append(_written(lake))
        print(f"two refresh streams, to Delta: {mirrored.rates(sum(changes))}", flush=True)
        used = json.loads(mirrored.output.splitlines()[-1])["cpu"]
        for number, name in enumerate(("first", "second")):
            print(
                f"{name} refresh stream, {changes[number]:,} changes, without the session's start: "
                f"{used[number] / changes[number] * 1e6:.1f} CPU seconds per million (goal 40); "
                f"{_files(written[number + 1], written[number])}",
                flush=True,
            )
        _compare(bench, lake)
        if beside:
            _beside_debezium(bench, sum(changes), folder / "debezium.jsonl")


def _refresh(bench: Bench, journal: Path, number: int) -> int:
    """Change the tables, and capture the changes into the journal. Return the number of changes.

    :param number: the number of the refresh stream, from 0. Each stream changes other rows.
    """
    parts = (("inserted", 0, _INSERTED), ("updated", 500, _UPDATED), ("deleted", 800, _DELETED))
    chosen = {}
    for name, start, part in parts:
        size = round(part * 1000)
        first = start + number * size
        chosen[name] = f"BETWEEN {first} AND {first + size - 1}"
    for statement in filter(str.strip, _REFRESH.format(**chosen, moved=(number + 1) * 10_000_000).split(";")):
        bench.psql(statement)
    captured = run(step("capture", bench.dsn, journal))
    changes: int = json.loads(captured.output.splitlines()[-1])["changes"]
    print(
        f"refresh stream, to the journal: {captured.rates(changes)}; {_files(_written(journal))}", flush=True
    )
    return changes


def _written(folder: Path) -> dict[Path, int]:
    """Return the files of a folder that have data, with their sizes."""
    kinds = {".parquet", ".jsonl", ".segment"}
    found = folder.rglob("*") if folder.is_dir() else [folder]
    return {path: path.stat().st_size for path in found if path.is_file() and path.suffix in kinds}


def _files(found: dict[Path, int], before: dict[Path, int] | None = None) -> str:
    new = {path: size for path, size in found.items() if path not in (before or {})}
    return f"{len(new):,} files with {sum(new.values()) >> 20:,} MiB written"


def _compare(bench: Bench, lake: Path) -> None:
    """Compare the number of rows of each table and the sum of its first column with the source's."""
    from deltalake import DeltaTable, QueryBuilder

    for path in sorted((lake / "public").iterdir()):
        table = DeltaTable(path)
        first = table.schema().fields[0].name
        query = f"SELECT count(*) AS rows, sum({first}) AS total FROM {path.name}"
        found = QueryBuilder().register(path.name, table).execute(query).read_all()
        rows, total = found["rows"][0].as_py(), found["total"][0].as_py()
        expected = bench.psql(f"SELECT count(*) || ' ' || sum({first}) FROM {path.name}")
        if expected != f"{rows} {total}":
            raise SystemExit(f"{path.name} differs: {expected} in the source, {rows} {total} in the lake")
    print("all tables are equal to the source", flush=True)


def _beside_debezium(bench: Bench, changes: int, file: Path) -> None:
    """Let Debezium Engine write the same changes as lines of JSON."""
    if not debezium.ready():
        return
    found = run(debezium.command("bench_debezium", changes, file), os.environ | bench.environment())
    print(
        f"refresh stream, to JSON by Debezium Engine, with the start of Java: {found.rates(changes)}; {_files(_written(file))}",
        flush=True,
    )
