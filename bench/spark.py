"""Measures the Spark lane: reading a journal, mirroring it into Delta tables, and how long a small batch takes.

    .venv/bin/python bench/spark.py [read latency scattered once small tables tpch transaction] [--rows 1000000]
                                  [--table-rows 1000000 10000000] [--format delta iceberg] [--scale 1] [--vectors auto] [--no-debezium]

``read``         typed rows of a journal to Spark's noop sink: in local[1] with Java and its workers on one core, and in local[2] on
                 two, in turns; the best of two rounds
``latency``      batches of 1,000 changes of a real server, from their commit until a Delta table has them, once the query is warm
``scattered``    batches of 1,000 scattered updates of a table with 1 and 10 million rows, Delta and Iceberg; not by default
``once``         ``aiorepl spark mirror --once`` with a thousand changes, and then with nothing to do
``small``        a snapshot of a hundred small tables to Delta, without the start of Spark
``tables``       a hundred tables in one query: processes, and seconds a batch, beside one table with as many rows
``tpch``         TPC-H's tables mirrored by a snapshot, then a refresh stream: inserts to orders and lineitem, updates of 1 % and
                 deletes; beside Debezium Engine, which writes the same changes as JSON
``transaction``  ten times ``--rows`` in one transaction, through a journal into a Delta table; not by default

Every number has its goal beside it, if there is one. CPU is that of the measured process, Java and all workers.
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
from functools import partial
from pathlib import Path
from typing import Any

from history import write_journal
from measuring import ENVIRONMENT, SETTINGS, Bench, tree_cpu
from processes import descendants, run, step
from spark_scattered import describe, scattered
from spark_tpch import mirror_and_refresh
from spark_transaction import transaction

from aiorepl import compiled
from aiorepl.testing import EmbeddedServer

_READ_GOAL, _CORES_GOAL, _LATENCY_GOAL = 400_000, 1.7, 1.0
_WARM, _BATCHES, _CHANGES = 10, 40, 1000
_ROUNDS = 2
_SMALL = 100


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["read", "latency", "once", "small", "tables", "tpch"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--table-rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--format", nargs="+", choices=["delta", "iceberg"], default=["delta", "iceberg"])
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--vectors", choices=["auto", "true", "false"], default="auto")
    parser.add_argument("--no-debezium", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "aiorepl-tpch")
    arguments = parser.parse_args()
    print("compiled" if compiled.ACTIVE else "plain Python")
    with tempfile.TemporaryDirectory(prefix="aiorepl-bench-") as folder:
        for part in arguments.parts:
            {
                "read": _read,
                "latency": _latency,
                "scattered": _scattered,
                "once": _once,
                "small": _small,
                "tables": _tables,
                "tpch": _tpch,
                "transaction": _transaction,
            }[part](Path(folder), arguments)


def _read(folder: Path, arguments: argparse.Namespace) -> None:
    journal = folder / "read"
    asyncio.run(write_journal(journal, arguments.rows, 1))
    best: dict[int, dict[str, float]] = {}
    for _ in range(_ROUNDS):
        for cores in (1, 2):
            found = json.loads(run(step("read", journal, cores)).output.splitlines()[-1])
            best[cores] = {name: min(value, best.get(cores, found)[name]) for name, value in found.items()}
    for cores, found in best.items():
        _print(
            f"typed rows to noop, local[{cores}], all processes on {cores} of the cores",
            f"{arguments.rows / found['wall']:,.0f} rows/s, {arguments.rows / found['cpu']:,.0f} rows per CPU second",
            f"{_READ_GOAL:,} rows/s" if cores == 2 else None,
        )
    _print("two cores beside one", f"{best[1]['wall'] / best[2]['wall']:.2f} times", f"{_CORES_GOAL} times")


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


def _scattered(folder: Path, arguments: argparse.Namespace) -> None:
    for kind in arguments.format:
        for rows in arguments.table_rows:
            with EmbeddedServer(settings=SETTINGS) as server:
                bench = Bench(server, "scattered")
                found = scattered(bench, folder / f"{kind}-{rows}", kind, rows, partial(_captured, bench))
            _print(
                f"1,000 updates of {rows:,} rows, {kind}",
                describe(found),
                "10 million rows: 2 times the CPU, 1 MB, p95 1 s",
            )


def _once(folder: Path, arguments: argparse.Namespace) -> None:
    asyncio.run(write_journal(folder / "once", _CHANGES, 1))
    file = folder / "mirror.toml"
    file.write_text(
        f"[journal]\nurl = '{folder}/once'\n[mirror]\ntables = ['public.*']\ntarget = '{folder}/once-lake'\n"
    )
    for changes, goal in ((f"{_CHANGES:,} changes", None), ("nothing to do", "6 s of CPU, 8 s")):
        found = run([sys.executable, "-m", "aiorepl", "spark", "mirror", "--once", str(file)])
        _print(f"spark mirror --once with {changes}", f"{found.wall:.1f} s, {found.cpu:.1f} s of CPU", goal)


def _small(folder: Path, arguments: argparse.Namespace) -> None:
    with EmbeddedServer(settings=SETTINGS) as server:
        bench = Bench(server, "small")
        for number in range(_SMALL):
            bench.psql(
                f"CREATE TABLE t{number} (id int PRIMARY KEY, note text); "
                f"INSERT INTO t{number} SELECT i, 'note ' || i FROM generate_series(1, 100) i"
            )
        bench.psql("CREATE PUBLICATION bench FOR ALL TABLES")
        program = str(Path(__file__).with_name("snapshot_spark.py"))
        found = json.loads(
            run([sys.executable, program, bench.dsn, "bench", str(folder / "small")]).output.splitlines()[-1]
        )
    _print(
        f"snapshot of {_SMALL} tables with 100 rows",
        f"{found['wall']:.1f} s, {found['cpu']:.1f} s of CPU",
        "10 s of CPU",
    )


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
        found = descendants(os.getpid())
        if len(found) > len(most):
            most.clear()
            most.update(found)


def _tpch(folder: Path, arguments: argparse.Namespace) -> None:
    mirror_and_refresh(
        folder, arguments.scale, arguments.folder, arguments.vectors, beside=not arguments.no_debezium
    )


def _transaction(folder: Path, arguments: argparse.Namespace) -> None:
    transaction(folder, 10 * arguments.rows)


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
