"""Initial snapshots beside psql's COPY, of the same tables, in as many parallel parts.

    python bench/snapshot.py [tpch mixed] [--scale 1] [--rows 10000000] [--connections 2] [--rounds 3] [--skip parquet]

``tpch`` is TPC-H by tpchgen-cli (scale 1 is 8.66 million rows in 8 tables), ``mixed`` one table of eight types. Contestants in
turns: psql, which copies to /dev/null in binary; ours to a sink that only counts, to a journal, and to Parquet; and
Spark's ``local[2]``, which mirrors the tables into Delta tables.

Of each: rows per second of wall time, as a ratio to psql in the same round; rows per CPU second of the process; CPU seconds of the
server; peak memory. Spark's is measured in a session that runs, as psql's server does: without the start of Java, whose CPU
is not of the snapshot; its peak memory is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import tpch
from consume import run_async
from measuring import ENVIRONMENT, SETTINGS, Bench, machine, tree_cpu
from workloads import MIXED, MIXED_ROW

import aiorepl
from aiorepl.testing import EmbeddedServer

OURS: Final = ("null", "journal", "parquet", "delta")
# The goals, of a round's ratio to psql, of rows per CPU second, of the peak memory in bytes, and of Spark's time over psql's.
RATIO, PER_CPU_SECOND, MEMORY, SPARK_TIME = 0.9, 350_000, 300 << 20, 1.5


class Null(aiorepl.Sink):
    """Counts rows, and looks at none."""

    async def write(self, batch: aiorepl.Batch) -> None:
        pass


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["tpch", "mixed"])
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "aiorepl-tpch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--consume", nargs=3, metavar=("SINK", "DSN", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume is not None:
        consume(*arguments.consume, connections=arguments.connections)
        return
    found: dict[str, Any] = {"machine": machine()}
    with EmbeddedServer(settings=SETTINGS) as server:
        for workload in arguments.workloads:
            found[workload] = measure(server, workload, arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))


def measure(server: EmbeddedServer, workload: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all contestants of a workload in turns."""
    bench = Bench(server, workload)
    if workload == "tpch":
        rows = tpch.load(bench, arguments.scale, arguments.folder)
    else:
        rows = arguments.rows
        bench.psql(f"CREATE TABLE rows ({MIXED})")
        bench.psql(f"INSERT INTO rows SELECT {MIXED_ROW.format(i='i')} FROM generate_series(1, {rows}) i")
    # Also sets the hint bits, which the first reader would write otherwise.
    bench.psql("VACUUM (FREEZE, ANALYZE)")
    bench.psql("CREATE PUBLICATION bench FOR ALL TABLES; CHECKPOINT")
    contestants = [name for name in ("psql", *OURS) if name not in arguments.skip]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for number in range(arguments.rounds):
        for name in contestants:
            before = server_cpu(server)
            if name == "psql":
                run = psql(bench, arguments.connections)
            elif name == "delta":
                run = spark(bench)
            else:
                run = ours(bench, name, arguments.connections)
            run["server"] = server_cpu(server) - before
            runs[name].append(run)
            print(
                f"{workload} {number + 1}: {name:8} {rows / run['wall'] / 1e6:6.2f} M rows/s, {run['wall']:5.1f} s, "
                f"{run['cpu']:6.1f} s of CPU, {rows / run['cpu']:12,.0f} rows per CPU second, {run['memory'] / 2**20:5.0f} MiB, "
                f"server {run['server']:5.1f} s of CPU",
                flush=True,
            )
    return {name: summary(name, rows, runs) for name in contestants}


def summary(name: str, rows: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Print and return the medians of a contestant, and whether they reach the goals."""
    found = {
        "rows_per_second": statistics.median(rows / run["wall"] for run in runs[name]),
        "rows_per_cpu_second": statistics.median(rows / run["cpu"] for run in runs[name]),
        "memory": max(run["memory"] for run in runs[name]),
    }
    goals = []
    if name == "null" and "psql" in runs:
        pairs = zip(runs["psql"], runs[name], strict=True)
        ratio = found["ratio"] = statistics.median(theirs["wall"] / our["wall"] for theirs, our in pairs)
        goals.append(f"{ratio:.2f} of psql's rate (goal {RATIO}): {verdict(ratio >= RATIO)}")
    if name == "delta" and "psql" in runs:
        pairs = zip(runs["psql"], runs[name], strict=True)
        times = found["times"] = statistics.median(our["wall"] / theirs["wall"] for theirs, our in pairs)
        goals.append(f"{times:.2f} of psql's time (goal {SPARK_TIME}): {verdict(times <= SPARK_TIME)}")
    if name in ("journal", "parquet"):
        rate, memory = found["rows_per_cpu_second"], found["memory"]
        goals.append(
            f"{rate:,.0f} rows per CPU second (goal {PER_CPU_SECOND:,}): {verdict(rate >= PER_CPU_SECOND)}"
        )
        goals.append(f"{memory / 2**20:.0f} MiB (goal {MEMORY >> 20}): {verdict(memory < MEMORY)}")
    for goal in goals:
        print(f"  {name}: {goal}")
    return found


def verdict(reached: bool) -> str:
    """The word for it."""
    return "reached" if reached else "missed"


def psql(bench: Bench, parts: int) -> dict[str, float]:
    """Copy all tables to /dev/null in so many processes, each a range of blocks of each table."""
    tables = bench.psql(
        "SELECT relname, pg_relation_size(oid) / 8192 FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    commands: list[list[str]] = [[str(bench.server.bin_dir / "psql"), "-qX"] for _ in range(parts)]
    for line in tables.splitlines():
        name, blocks = line.split("|")
        for number, command in enumerate(commands):
            first, end = (int(blocks) * part // parts for part in (number, number + 1))
            upper = "" if number == parts - 1 else f" AND ctid < '({end},0)'"
            rows = f"SELECT * FROM {name} WHERE ctid >= '({first},0)'{upper}"
            command += ["-c", f"COPY ({rows}) TO STDOUT (FORMAT binary)"]
    return process(commands, {**os.environ, **bench.environment()})


def ours(bench: Bench, sink: str, connections: int) -> dict[str, float]:
    """Read the tables by a process of ours."""
    folder = tempfile.mkdtemp(prefix="aiorepl-bench-")
    try:
        command = [sys.executable, __file__, "--connections", str(connections)]
        return process([[*command, "--consume", sink, bench.dsn, folder]], ENVIRONMENT)
    finally:
        shutil.rmtree(folder)
        bench.psql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def spark(bench: Bench) -> dict[str, float]:
    """Mirror the tables by Spark."""
    folder = tempfile.mkdtemp(prefix="aiorepl-bench-")
    try:
        command = [
            sys.executable,
            str(Path(__file__).with_name("snapshot_spark.py")),
            bench.dsn,
            "bench",
            folder,
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, env=ENVIRONMENT, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found | {"memory": 0}
    finally:
        shutil.rmtree(folder)
        bench.psql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def server_cpu(server: EmbeddedServer) -> float:
    """Return the CPU seconds of the server so far."""
    return tree_cpu(int(Path(server.folder, "data", "postmaster.pid").read_text().split()[0]))


def process(commands: list[list[str]], environment: dict[str, str]) -> dict[str, float]:
    """Run processes at the same time; return the wall time, and the CPU time and peak memory of all."""
    began = time.perf_counter()
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) for command in commands]
    peaks = dict.fromkeys((each.pid for each in running), 0)
    left, cpu = {each.pid: each for each in running}, 0.0
    while left:
        for pid in list(left):
            peaks[pid] = max(peaks[pid], peak_memory(pid))
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if done:
                left.pop(pid).returncode = os.waitstatus_to_exitcode(status)
                cpu += usage.ru_utime + usage.ru_stime
        time.sleep(0.01)
    wall = time.perf_counter() - began
    if any(each.returncode for each in running):
        raise SystemExit("a process failed")
    return {"wall": wall, "cpu": cpu, "memory": sum(peaks.values())}


def peak_memory(pid: int) -> int:
    """Return a process's peak memory so far, in bytes; not from ``wait4``, which includes this process's at the fork."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(peak.split()[1]) * 1024


def consume(sink: str, dsn: str, folder: str, *, connections: int) -> None:
    """Read the tables into a sink; the process that is measured."""
    source = aiorepl.Source(dsn, slot=f"bench_{os.getpid()}", publication="bench", create_slot=True)
    state = None if sink == "journal" else str(Path(folder) / "state")
    sinks: list[aiorepl.Sink] = []
    if sink == "null":
        sinks.append(Null())
    elif sink == "parquet":
        from aiorepl_sinks.parquet import ParquetSink

        sinks.append(ParquetSink(Path(folder) / "parquet"))  # type: ignore[arg-type]
    pipeline = aiorepl.Pipeline(
        source,
        sinks,
        journal=str(Path(folder) / "journal") if sink == "journal" else None,
        snapshot=aiorepl.SnapshotOptions(connections=connections, state=state),
        until="now",
    )
    run_async(pipeline.run())


if __name__ == "__main__":
    main()
