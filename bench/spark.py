"""Measures the Spark lane: reading a journal, mirroring it into Delta tables, and how long a small batch takes.

    .venv/bin/python bench/spark.py [read latency tables tpch] [--rows 1000000] [--scale 1] [--no-debezium]

``read``     typed rows of a journal to Spark's noop sink, in local[1] and local[2]; each in a process of its own
``latency``  batches of 1,000 changes of a real server, from their commit until a Delta table has them, once the query is warm
``tables``   a hundred tables in one query: processes, and seconds a batch, beside one table with as many rows
``tpch``     TPC-H's tables mirrored by a snapshot, then a refresh stream: inserts to orders and lineitem, updates of 1 % and deletes;
             beside Debezium Engine, which writes the same changes as JSON

Every number has its goal beside it, if there is one. CPU is that of this process, Java and all workers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tpch
from history import write_journal
from measuring import ENVIRONMENT, SETTINGS, Bench, tree_cpu

import aiorepl
from aiorepl import compiled
from aiorepl.testing import EmbeddedServer

_READ_GOAL, _CORES_GOAL, _LATENCY_GOAL = 400_000, 1.7, 1.0
_WARM, _BATCHES, _CHANGES = 10, 40, 1000
# A part of orders, with its line items.
_INSERTED, _UPDATED, _DELETED = 0.01, 0.01, 0.005
_REFRESH: Final = """
INSERT INTO orders SELECT o_orderkey + 10000000, o_custkey, o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk,
  o_shippriority, o_comment FROM orders WHERE o_orderkey % 1000 < {inserted} AND o_orderkey <= 10000000;
INSERT INTO lineitem SELECT l_orderkey + 10000000, l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount,
  l_tax, l_returnflag, l_linestatus, l_shipdate, l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode, l_comment
  FROM lineitem WHERE l_orderkey % 1000 < {inserted} AND l_orderkey <= 10000000;
UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE o_orderkey % 1000 BETWEEN 500 AND 500 + {updated} - 1;
UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey % 1000 BETWEEN 500 AND 500 + {updated} - 1;
DELETE FROM lineitem WHERE l_orderkey % 1000 BETWEEN 800 AND 800 + {deleted} - 1;
DELETE FROM orders WHERE o_orderkey % 1000 BETWEEN 800 AND 800 + {deleted} - 1;
"""


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["read", "latency", "tables", "tpch"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--no-debezium", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "aiorepl-tpch")
    parser.add_argument("--read", nargs=2, metavar=("JOURNAL", "CORES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        _read_in(arguments.read[0], int(arguments.read[1]))
        return
    print("compiled" if compiled.ACTIVE else "plain Python")
    with tempfile.TemporaryDirectory(prefix="aiorepl-bench-") as folder:
        for part in arguments.parts:
            {"read": _read, "latency": _latency, "tables": _tables, "tpch": _tpch}[part](
                Path(folder), arguments
            )


def _read(folder: Path, arguments: argparse.Namespace) -> None:
    journal = folder / "read"
    asyncio.run(write_journal(journal, arguments.rows, 1))
    rates = {}
    for cores in (1, 2):
        command = [sys.executable, __file__, "--read", str(journal), str(cores)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        rates[cores] = arguments.rows / found["wall"]
        _print(
            f"typed rows to noop, local[{cores}]",
            f"{rates[cores]:,.0f} rows/s, {arguments.rows / found['cpu']:,.0f} rows per CPU second",
            f"{_READ_GOAL:,} rows/s" if cores == 2 else None,
        )
    _print("two cores beside one", f"{rates[2] / rates[1]:.2f} times", f"{_CORES_GOAL} times")


def _read_in(journal: str, cores: int) -> None:
    """Read a journal several times, and print the best."""
    from aiorepl.spark import local_session

    spark = local_session(cores=cores, memory="1g")
    runs = []
    for _ in range(5):  # the first ones compile
        began, used = time.monotonic(), tree_cpu(os.getpid())
        rows = spark.read.format("aiorepl").option("journal", journal).option("table", "public.t0").load()
        rows.write.format("noop").mode("overwrite").save()
        runs.append((time.monotonic() - began, tree_cpu(os.getpid()) - used))
    walls, cpus = zip(*runs[-3:], strict=True)
    print(json.dumps({"wall": min(walls), "cpu": min(cpus)}))
    spark.stop()


def _latency(folder: Path, arguments: argparse.Namespace) -> None:
    from deltalake import DeltaTable

    from aiorepl.spark import local_session, mirror

    with EmbeddedServer(settings=SETTINGS) as server:
        bench = Bench(server, "latency")
        bench.psql(
            "CREATE TABLE items (id int PRIMARY KEY, batch int, note text); CREATE PUBLICATION bench FOR ALL TABLES"
        )
        spark = local_session(cores=2, memory="1g")
        with _captured(bench, folder / "latency-journal"):
            _change(bench, 0)
            query = mirror(spark, folder / "latency-journal", ["public.*"], folder / "latency-lake")
            target = str(folder / "latency-lake" / "public" / "items")
            seconds = []
            for number in range(1, _WARM + _BATCHES + 1):
                _change(bench, number)
                committed = time.monotonic()
                while _newest(DeltaTable, target) < number:
                    if query.exception() is not None:
                        raise SystemExit(str(query.exception()))
                    time.sleep(0.005)
                seconds.append(time.monotonic() - committed)
            query.stop()
        spark.stop()
    warm = seconds[_WARM:]
    _print(
        f"{_CHANGES:,} changes, from their commit to a Delta table",
        f"median {statistics.median(warm):.2f} s, p95 {statistics.quantiles(warm, n=20)[-1]:.2f} s",
        f"p95 at most {_LATENCY_GOAL:.0f} s",
    )


def _change(bench: Bench, number: int) -> None:
    bench.psql(
        f"INSERT INTO items SELECT i, {number}, 'note ' || i FROM generate_series(1, {_CHANGES}) i "
        "ON CONFLICT (id) DO UPDATE SET batch = excluded.batch"
    )


def _newest(table: Any, target: str) -> int:
    if not table.is_deltatable(target):
        return -1
    rows = table(target).to_pyarrow_dataset().to_table(["batch"])
    return min(rows["batch"].to_pylist(), default=-1)


def _tables(folder: Path, arguments: argparse.Namespace) -> None:
    from aiorepl.spark import local_session, mirror

    rows = min(arguments.rows, 200_000)
    spark = local_session(cores=2, memory="1g")
    seconds = {}
    for count in (1, 100):
        journal = folder / f"tables-{count}"
        asyncio.run(write_journal(journal, rows, count))
        processes: set[int] = set()
        done = threading.Event()
        watching = threading.Thread(target=_watch, args=(processes, done))
        watching.start()
        began, used = time.monotonic(), tree_cpu(os.getpid())
        query = mirror(
            spark, journal, ["public.*"], folder / f"tables-lake-{count}", trigger={"availableNow": True}
        )
        query.awaitTermination()
        seconds[count] = time.monotonic() - began
        cpu = tree_cpu(os.getpid()) - used
        done.set()
        watching.join()
        _print(
            f"{rows:,} rows of {count} tables into Delta",
            f"{seconds[count]:.1f} s, {cpu:.1f} s of CPU, at most {len(processes)} processes at a time",
            None if count == 1 else "no more processes than for one",
        )
    spark.stop()


def _watch(most: set[int], done: threading.Event) -> None:
    """Keep the largest set of descendants of this process."""
    while not done.wait(0.05):
        found = _descendants(os.getpid())
        if len(found) > len(most):
            most.clear()
            most.update(found)


def _descendants(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def _tpch(folder: Path, arguments: argparse.Namespace) -> None:
    from aiorepl.spark import Snapshot, local_session, mirror

    lake, journal = folder / "tpch-lake", folder / "tpch-journal"
    with EmbeddedServer(settings=SETTINGS) as server:
        bench = Bench(server, "tpch")
        loaded = tpch.load(bench, arguments.scale, arguments.folder)
        bench.psql("VACUUM (FREEZE, ANALYZE)")
        bench.psql("CREATE PUBLICATION bench FOR ALL TABLES; CHECKPOINT")
        spark = local_session(cores=2, memory="2g")
        began, used = time.monotonic(), tree_cpu(os.getpid())
        with Snapshot(spark, bench.dsn, slot="bench", publication="bench") as snapshot:
            targets = {table: str(lake / table.replace(".", "/", 1)) for table in snapshot.tables}
            snapshot.mirror(targets)
        _report("TPC-H, snapshot to Delta", loaded, began, used, lake)
        sizes = {
            name: round(part * 1000)
            for name, part in (("inserted", _INSERTED), ("updated", _UPDATED), ("deleted", _DELETED))
        }
        changes = _refresh(bench, sizes, journal)
        began, used = time.monotonic(), tree_cpu(os.getpid())
        mirror(spark, journal, ["public.*"], lake, trigger={"availableNow": True}).awaitTermination()
        _report("TPC-H, refresh stream to Delta", changes, began, used, lake)
        _compare(bench, targets)
        spark.stop()
        if not arguments.no_debezium:
            _beside_debezium(bench, changes)


def _refresh(bench: Bench, sizes: dict[str, int], journal: Path) -> int:
    """Change the tables, and capture that into a journal; return the number of changes."""
    bench.psql("SELECT pg_create_logical_replication_slot('bench_debezium', 'pgoutput')")
    for statement in filter(str.strip, _REFRESH.format(**sizes).split(";")):
        bench.psql(statement)
    sink = _Count()
    source = aiorepl.Source(bench.dsn, slot="bench", publication="bench", binary=True)

    async def capture() -> None:
        await aiorepl.Pipeline(source, {"count": sink}, journal=journal, until="now").run()

    asyncio.run(capture())
    return sink.changes


class _Count(aiorepl.Sink):
    """Counts changes."""

    changes = 0

    async def write(self, batch: aiorepl.Batch) -> None:
        self.changes += len(batch)


def _compare(bench: Bench, targets: dict[str, str]) -> None:
    """Compare the number of rows of each table and the sum of its first column with the source's."""
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    for table, target in targets.items():
        found = DeltaTable(target).to_pyarrow_dataset().to_table()
        first = found.column_names[0]
        expected = bench.psql(f"SELECT count(*) || ' ' || sum({first}) FROM {table}")
        if expected != f"{found.num_rows} {pc.sum(found[first]).as_py()}":
            raise SystemExit(f"{table} differs: {expected} in the source, {found.num_rows} rows in {target}")
    print("all tables are equal to the source", flush=True)


def _beside_debezium(bench: Bench, changes: int) -> None:
    """Let Debezium Engine write the same changes as JSON."""
    import debezium

    if not debezium.ready():
        return
    command = debezium.command("bench_debezium", changes)
    began, used = time.monotonic(), tree_cpu(os.getpid())
    subprocess.run(
        command,
        env=ENVIRONMENT | bench.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wall, cpu = time.monotonic() - began, tree_cpu(os.getpid()) - used
    _print(
        "Debezium Engine, the same changes as JSON",
        f"{changes / wall:,.0f} rows/s, {cpu / changes * 1e6:.1f} CPU seconds per million, with the start of Java",
        None,
    )


def _report(name: str, rows: int, began: float, used: float, lake: Path) -> None:
    wall, cpu = time.monotonic() - began, tree_cpu(os.getpid()) - used
    files = [path for path in lake.rglob("*.parquet") if "_" not in path.relative_to(lake).parts[0][:1]]
    size = sum(path.stat().st_size for path in files)
    _print(
        name,
        f"{rows:,} rows, {rows / wall:,.0f} rows/s, {cpu / rows * 1e6:.1f} CPU seconds per million, {len(files)} files with "
        f"{size >> 20} MiB in the lake, peak of this process and Java {_peak() >> 20} MiB",
        None,
    )


def _peak() -> int:
    """Return the largest resident memory of this process and its descendants, each at its own time."""
    total = 0
    for pid in {os.getpid(), *_descendants(os.getpid())}:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += next(
            (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0
        )
    return total


@contextmanager
def _captured(bench: Bench, journal: Path) -> Iterator[None]:
    """Run a pipeline into a journal, in a process of its own."""
    program = (
        "import asyncio, sys, aiorepl\n"
        "source = aiorepl.Source(sys.argv[1], slot='bench', publication='bench', create_slot=True, binary=True)\n"
        "batches = aiorepl.BatchPolicy(flush_seconds=0.05)\n"
        "async def main():\n"
        "    async with aiorepl.Pipeline(source, journal=sys.argv[2], batches=batches):\n"
        "        print('started', flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, bench.dsn, str(journal)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def _print(name: str, found: str, goal: str | None) -> None:
    print(f"{name}: {found}{'' if goal is None else f'; goal {goal}'}", flush=True)


if __name__ == "__main__":
    main()
