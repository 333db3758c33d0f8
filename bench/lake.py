"""Measures batches of scattered changes in Delta and Iceberg tables of several sizes, without Spark: CPU seconds and bytes written.

    .venv/bin/python bench/lake.py [--format delta] [--rows 1000000 10000000] [--changes 1000] [--mode current] [--vectors auto]
                                   [--batches 4] [--grow]

Each batch updates rows at random. deltalake's MERGE of the same rows into a copy of a Delta table is beside it, and pyiceberg's upsert
beside Iceberg. With ``--grow``, the batches follow each other with upkeep; then the last tenth of them is compared with the first, and a
full scan with that of the same table after compaction, for Delta. CPU is that of this process; the best batch counts, because other
programs may run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergLake, IcebergTarget
from aiorepl.spark.lake.table import Commit, Mode, Run
from aiorepl.spark.mirroring.reduction import reduce_changes

SOURCE = pa.schema(
    [("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.decimal128(12, 2)), ("note", pa.string())]
)
META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_xid", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]
_SLICE = 1_000_000


def main() -> None:
    """Measure tables of each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=["delta", "iceberg"], default="delta")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--mode", choices=["current", "history", "soft_delete"], default="current")
    parser.add_argument("--vectors", choices=["auto", "true", "false"], default="auto")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--grow", action="store_true")
    given = parser.parse_args()
    vectors: Any = {"auto": "auto", "true": True, "false": False}[given.vectors]
    for rows in given.rows:
        folder = Path(tempfile.mkdtemp(prefix="aiorepl-bench-"))
        try:
            target = _opened(folder / "ours", given.format, given.mode, vectors)
            function = grow if given.grow and given.format == "delta" else measure
            function(target, folder, rows, given.changes, given.batches)
        finally:
            shutil.rmtree(folder)


def _opened(folder: Path, kind: str, mode: Mode, vectors: Any) -> Any:
    if kind == "delta":
        return DeltaTarget(str(folder), mode, deletion_vectors=vectors)
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir()
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}")
    return IcebergLake(catalog).table(("public", "t"), mode)


def measure(target: Any, folder: Path, rows: int, changes: int, batches: int) -> None:
    """Print a line for the mirror's engine, and one for deltalake's or pyiceberg's."""
    for first in range(0, rows, _SLICE):
        _apply(target, range(first, min(first + _SLICE, rows)), first // _SLICE + 1, "insert")
    ours = folder / "ours"
    engines: dict[str, tuple[Path, Callable[[list[int], int], None]]] = {
        "one commit": (ours, lambda keys, lsn: _apply(target, keys, lsn, "update"))
    }
    if isinstance(target, IcebergTarget):
        theirs = _copied(target, rows)
        engines["pyiceberg's upsert"] = ours, lambda keys, lsn: _upsert(theirs, keys, lsn)
    else:
        shutil.copytree(ours, folder / "theirs")
        engines["deltalake's MERGE"] = (
            folder / "theirs",
            lambda keys, lsn: _theirs(folder / "theirs", keys, lsn),
        )
    chosen = [sorted(random.Random(number).sample(range(rows), changes)) for number in range(batches)]
    for name, (path, function) in engines.items():
        if name != "one commit" and target.mode != "current":
            continue
        costs, written = [], 0
        for number, keys in enumerate(chosen):
            size, before = _bytes(path), time.process_time()
            function(keys, 1000 + number)
            costs.append(time.process_time() - before)
            written = max(written, _bytes(path) - size)
        best = min(costs)
        print(
            f"{rows:,} rows, {changes:,} updated, {target.mode}, {name}: {best:.3f} CPU s a batch ({costs[0]:.3f} the first), "
            f"{changes / best:,.0f} changes per CPU second, {written:,} bytes written",
            flush=True,
        )
    if target.mode != "history":
        assert _count(target) == rows


def _count(target: Any) -> int:
    """Count the rows as another program does."""
    if isinstance(target, IcebergTarget):
        return target._open().scan().count()
    found = QueryBuilder().register("t", DeltaTable(target.target)).execute("SELECT count(*) AS n FROM t")
    return pa.table(found.read_all())["n"][0].as_py()


def grow(target: DeltaTarget, folder: Path, rows: int, changes: int, batches: int) -> None:
    """Print the cost of the first and the last batches, and that of a scan before and after compaction."""
    for first in range(0, rows, _SLICE):
        _apply(target, range(first, min(first + _SLICE, rows)), first // _SLICE + 1, "insert")
    costs = []
    for number in range(batches):
        keys = sorted(random.Random(number).sample(range(rows), changes))
        before = time.process_time()
        _apply(target, keys, 1000 + number, "update")
        target.maintain()
        costs.append(time.process_time() - before)
    tenth = max(1, batches // 10)
    first, last = (statistics.median(some) for some in (costs[:tenth], costs[-tenth:]))
    print(
        f"{rows:,} rows, {batches:,} batches of {changes:,}, {target.mode}: {first:.2f} CPU s a batch at first, {last:.2f} at last; with upkeep "
        f"{sum(costs) / batches:.2f} on average",
        flush=True,
    )
    found = _scan(target.target)
    shutil.copytree(folder / "ours", folder / "compacted")
    table = DeltaTable(str(folder / "compacted"))
    files = len(table.file_uris())
    table.optimize.compact()
    compacted = _scan(str(folder / "compacted"))
    print(
        f"a full scan of {files} files takes {found / compacted:.2f} times the CPU of a compacted table",
        flush=True,
    )


def _scan(path: str) -> float:
    """Return the CPU seconds of a full scan, the best of three."""
    best = float("inf")
    for _ in range(3):
        before = time.process_time()
        query = "SELECT sum(id), sum(customer), sum(amount), max(note) FROM t"
        QueryBuilder().register("t", DeltaTable(path)).execute(query).read_all()
        best = min(best, time.process_time() - before)
    return best


def _apply(target: Any, keys: Any, lsn: int, op: str) -> None:
    run = Run(("id",), reduce_changes(_changes(keys, lsn, op), ("id",), target.mode).parts(2**25))
    target.apply(Commit("bench", lsn, LSN(lsn)), [run], SOURCE)


def _changes(keys: Any, lsn: int, op: str) -> pa.Table:
    numbers = np.asarray(keys, np.int64)
    count = len(numbers)
    hashed = numbers * 2654435761 % 2**32
    columns = [
        pa.array(numbers),
        pa.array(hashed % 100_000),
        pa.array(hashed % 10**8).cast(pa.decimal128(20, 0)).cast(pa.decimal128(12, 2)),
        pa.array([f"note {number:x} of change {lsn}" for number in hashed]),
        pa.array([op] * count),
        pa.array(np.full(count, lsn)),
        pa.array(np.arange(count)),
        pa.array(np.full(count, 1)),
        pa.array(np.full(count, lsn)).cast(pa.timestamp("us", tz="UTC")),
        pa.nulls(count, pa.list_(pa.string())),
    ]
    return pa.table(columns, schema=pa.schema([*SOURCE, *META]))


def _theirs(path: Path, keys: list[int], lsn: int) -> None:
    table = DeltaTable(str(path))
    merger = table.merge(
        _rows(keys, lsn), "s.id = t.id", source_alias="s", target_alias="t", streamed_exec=False
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _copied(target: IcebergTarget, rows: int) -> Any:
    """Return a table of pyiceberg's own with the same rows."""
    found = target._catalog.create_table("public.theirs", _rows([], 0).schema)
    for first in range(0, rows, _SLICE):
        found.append(_rows(range(first, min(first + _SLICE, rows)), 1))
    return found


def _upsert(table: Any, keys: list[int], lsn: int) -> None:
    table.upsert(_rows(keys, lsn), join_cols=["id"])


def _rows(keys: Any, lsn: int) -> pa.Table:
    return _changes(keys, lsn, "update").select([*SOURCE.names, "_commit_lsn", "_ordinal"])


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
