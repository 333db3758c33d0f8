"""``make bench``: every workload with pg_recvlogical, aiorepl and others, one after the other.

    .venv/bin/python bench/suite.py [--quick] [--only WORD …] [--skip WORD …] [--rounds N]
                                    [--contestants NAME,…] [--without NAME …] [--json FILE] [--markdown FILE]

pg_recvlogical decodes nothing, so it shows what the walsender can send: the limit. All numbers are medians over the
rounds; what counts are the ratios, each taken within a round, since the machine is never the same twice. Time and CPU
count from when the slot is in use; what came before it is told by itself. Every run is checked: what came out is what
went in. In the end it says which goals were reached.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import latency
import report
import standing
from checking import written
from contestants import LIMIT, OTHERS, OURS, Job, available, run, suits
from goals import goals
from measuring import SETTINGS, Bench, Run, machine
from workloads import WORKLOADS, Workload

from aiorepl import LSN
from aiorepl.testing import EmbeddedServer

MIB = 1024 * 1024
# Measurements other than the workloads, by their names for --only.
BESIDE = ("latency", "standing")


def main() -> None:
    """Measure, print the tables, and write the results."""
    arguments = parse()
    rounds = arguments.rounds or (1 if arguments.quick else 2)
    began = time.monotonic()
    results: dict[str, Any] = {"machine": machine(), "workloads": {}}
    names = available(arguments.contestants)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        print(f"{text}\n", flush=True)
        # After each part, so that an interrupted run leaves its results.
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
        if arguments.markdown is not None:
            arguments.markdown.write_text("\n\n".join(told) + "\n")

    def beside(name: str) -> bool:
        return (not arguments.only or name in arguments.only) and name not in arguments.skip

    with EmbeddedServer(settings=SETTINGS) as server:
        for number, workload in enumerate(chosen(arguments.only, arguments.skip, quick=arguments.quick)):
            rows = workload.rows // 10 if arguments.quick else workload.rows
            found = drain(server, f"bench{number}", workload, rows, rounds, names)
            results["workloads"][workload.name] = found
            tell(report.workload(workload.name, found))
        if beside("latency"):
            results["latency"] = latency.measure(server, seconds=3 if arguments.quick else 10)
            tell(report.latency(results["latency"]))
        if beside("standing"):
            results["standing"] = standing.measure(server, pipelines=20 if arguments.quick else 200)
            tell(report.standing(results["standing"]))
    found_goals = goals(results)
    results["goals"] = [{**vars(goal), "reached": goal.reached} for goal in found_goals]
    tell(report.goals(found_goals))
    print(f"{time.monotonic() - began:.0f} s; everything is in {arguments.json}")


def parse() -> argparse.Namespace:
    """Parse the arguments; ``contestants`` are those to run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rows, one round, the main workloads"
    )
    names = "; ".join((*(each.name for each in WORKLOADS), *BESIDE))
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help=f"what has this in its name, of {names}",
    )
    parser.add_argument("--skip", action="append", default=[], metavar="WORD", help="and what not")
    parser.add_argument(
        "--contestants",
        type=lambda text: text.split(","),
        metavar="NAME,…",
        help=f"of {', '.join((*OURS, *OTHERS))}; all unless given, but debezium with --quick; {LIMIT} always takes part",
    )
    parser.add_argument("--without", action="append", default=[], help="contestants to leave out")
    parser.add_argument("--rounds", type=int, help="2 unless given, 1 with --quick")
    parser.add_argument("--json", type=Path, default=Path("bench-results.json"))
    parser.add_argument("--markdown", type=Path, help="where the tables go beside standard output")
    arguments = parser.parse_args()
    if arguments.contestants is None:
        arguments.contestants = [
            name for name in (*OURS, *OTHERS) if name != "debezium" or not arguments.quick
        ]
    if unknown := {*arguments.contestants, *arguments.without} - {*OURS, *OTHERS}:
        parser.error(f"no contestant is called {', '.join(sorted(unknown))}")
    arguments.contestants = [name for name in arguments.contestants if name not in arguments.without]
    if unknown := [
        word for word in arguments.only if word not in BESIDE and not chosen([word], [], quick=False)
    ]:
        parser.error(f"no workload is called {', '.join(unknown)}")
    return arguments


def chosen(words: list[str], skip: list[str], *, quick: bool) -> list[Workload]:
    """Return the workloads to run."""
    return [
        each
        for each in WORKLOADS
        if (any(word in each.name for word in words) if words else each.quick or not quick)
        and not any(word in each.name for word in skip)
    ]


def drain(
    server: EmbeddedServer, database: str, workload: Workload, rows: int, rounds: int, names: list[str]
) -> dict[str, Any]:
    """Measure each contestant on the same WAL."""
    turns = [
        (number, name, f"{database}_{name}_{number}")
        for number in range(rounds)
        for name in names
        if suits(name, workload, number)
    ]
    bench = Bench(server, database)
    runs: dict[str, list[Run]] = {}
    try:
        bench.psql("CREATE PUBLICATION bench FOR ALL TABLES")
        if workload.tables:
            bench.psql(workload.tables)
        bench.slots([slot for _, _, slot in turns])
        if workload.tables:
            bench.mark()
        begin = bench.psql("SELECT pg_current_wal_lsn()")
        wrote = workload.write(bench, rows)
        until = bench.psql("SELECT pg_current_wal_lsn()")
        size = LSN.parse(until) - LSN.parse(begin)
        expected = written(bench, workload, wrote)
        for _, name, slot in turns:
            runs.setdefault(name, []).append(run(name, Job(bench, workload, slot, until, expected, size)))
    finally:
        bench.drop()
    contestants = {name: summary(each, runs[LIMIT], expected.total) for name, each in runs.items()}
    return {"rows": expected.total, "contestants": contestants}


def summary(runs: list[Run], limit: list[Run], rows: int) -> dict[str, Any]:
    """Return medians and per-round ratios."""
    drain = statistics.median(each.drain for each in runs)
    cpu = statistics.median(each.cpu - each.cpu_to_start for each in runs)
    walsender = statistics.median(each.walsender for each in runs)
    pairs = list(zip(runs, limit, strict=False))
    return {
        "seconds": round(drain, 3),
        "seconds_to_start": round(statistics.median(each.start for each in runs), 3),
        "rows_per_second": round(rows / drain),
        "of_limit": [round(ours.drain / theirs.drain, 3) for ours, theirs in pairs],
        "of_limit_with_start": [round(ours.wall / theirs.wall, 3) for ours, theirs in pairs],
        "cpu_microseconds_per_row": round(cpu / rows * 1e6, 2),
        "walsender_microseconds_per_row": round(walsender / rows * 1e6, 2),
        "cpu_of_walsender": [
            round((each.cpu - each.cpu_to_start) / each.walsender, 3) for each in runs if each.walsender
        ],
        "cpu_of_limits_walsender": [
            round((ours.cpu - ours.cpu_to_start) / theirs.walsender, 3)
            for ours, theirs in pairs
            if theirs.walsender
        ],
        "peak_mib": round(max(each.memory for each in runs) / MIB, 1),
    }


if __name__ == "__main__":
    main()
