"""``make bench``: every workload against the limit, us and others, in turns, in one run.

    .venv/bin/python bench/suite.py [--quick] [--only WORD …] [--rounds N] [--json FILE]

pg_recvlogical decodes nothing, so it shows what the walsender can send: the limit. All numbers are medians over the
rounds; what counts are the ratios, each taken within a round, since the machine is never the same twice. Every run is
checked: what came out is what went in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import latency
import standing
from contestants import LIMIT, OURS, Job, available, run, start, suits
from measuring import SETTINGS, Bench, Run, machine
from workloads import WORKLOADS, Workload

from aiorepl.testing import EmbeddedServer

MIB = 1024 * 1024


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rows, one round, the main workloads"
    )
    parser.add_argument("--only", action="append", default=[], help="workloads whose names have this in them")
    parser.add_argument("--without", action="append", default=[], help="contestants to leave out")
    parser.add_argument("--rounds", type=int, help="3 unless given, 1 with --quick")
    parser.add_argument("--json", type=Path, default=Path("bench-results.json"))
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    began = time.monotonic()
    results: dict[str, Any] = {"machine": machine(), "workloads": {}}
    names = available(arguments.without, fetch=not arguments.quick)
    with EmbeddedServer(settings=SETTINGS) as server:
        for number, workload in enumerate(chosen(arguments.only, quick=arguments.quick)):
            rows = workload.rows // 10 if arguments.quick else workload.rows
            found = drain(server, f"bench{number}", workload, rows, rounds, names)
            results["workloads"][workload.name] = found
            report(workload, found)
        if not arguments.only or "latency" in arguments.only:
            results["latency"] = latency.measure(server, seconds=3 if arguments.quick else 10)
            latency.report(results["latency"])
        if not arguments.only or "standing" in arguments.only:
            results["standing"] = standing.measure(server, pipelines=20 if arguments.quick else 200)
            standing.report(results["standing"])
    arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\n{time.monotonic() - began:.0f} s; everything is in {arguments.json}")


def chosen(words: list[str], *, quick: bool) -> list[Workload]:
    """The workloads to run."""
    if words:
        return [each for each in WORKLOADS if any(word in each.name for word in words)]
    return [each for each in WORKLOADS if not quick or each.name in ("mixed", "pgbench", "update, delete")]


def drain(
    server: EmbeddedServer, database: str, workload: Workload, rows: int, rounds: int, names: list[str]
) -> dict[str, Any]:
    """Each contestant on the same WAL, in turns."""
    names = [name for name in names if suits(name, workload)]
    bench = Bench(server, database)
    try:
        bench.psql("CREATE PUBLICATION bench FOR ALL TABLES")
        if workload.tables:
            bench.psql(workload.tables)
        bench.slots([f"{database}_{name}_{number}" for number in range(rounds) for name in names])
        if workload.tables:
            bench.mark()
        wrote = workload.write(bench, rows)
        until = bench.psql("SELECT pg_current_wal_lsn()")
        runs: dict[str, list[Run]] = {name: [] for name in names}
        for number in range(rounds):
            for name in names:
                slot = f"{database}_{name}_{number}"
                runs[name].append(run(name, Job(bench, workload, slot, until, wrote)))
    finally:
        bench.drop()
    total = sum(wrote.values())
    return {"rows": total, "contestants": {name: summary(name, runs, total) for name in names}}


def summary(name: str, all_runs: dict[str, list[Run]], rows: int) -> dict[str, Any]:
    """Medians, and ratios taken round by round."""
    runs, limit = all_runs[name], all_runs[LIMIT]
    wall = statistics.median(each.wall for each in runs)
    cpu = statistics.median(each.cpu for each in runs)
    return {
        "seconds": round(wall, 3),
        "seconds_to_start": round(statistics.median(start(name, each) for each in runs), 3),
        "rows_per_second": round(rows / wall),
        "of_limit": [round(ours.wall / theirs.wall, 3) for ours, theirs in zip(runs, limit, strict=True)],
        "cpu_microseconds_per_row": round(cpu / rows * 1e6, 2),
        "cpu_of_walsender": [round(each.cpu / each.walsender, 3) for each in runs if each.walsender],
        "peak_mib": round(max(each.memory for each in runs) / MIB, 1),
    }


def report(workload: Workload, found: dict[str, Any]) -> None:
    """A table."""
    print(f"\n{workload.name}: {found['rows']:,} rows")
    print(
        f"{'':16}{'s':>8}{'rows/s':>12}{'of limit':>10}{'µs CPU/row':>12}{'of walsender':>14}{'peak MiB':>10}"
    )
    for name, each in found["contestants"].items():
        ratio = statistics.median(each["of_limit"])
        cpu = each["cpu_of_walsender"]
        share = f"{statistics.median(cpu):.2f}" if cpu else ""
        label = f"aiorepl {name}" if name in OURS else name
        print(
            f"{label:16}{each['seconds']:8.2f}{each['rows_per_second']:12,}{ratio:10.2f}"
            f"{each['cpu_microseconds_per_row']:12.2f}{share:>14}{each['peak_mib']:10.1f}",
            flush=True,
        )
        if began := each["seconds_to_start"]:
            rate = found["rows"] / (each["seconds"] - began)
            print(f"{'':16}{began:8.2f}{rate:12,.0f}  until its first rows, and from then on", flush=True)


if __name__ == "__main__":
    main()
