"""``make bench-sinks``: delivers the same WAL to every sink, one after the other, next to a sink that drops everything.

    .venv/bin/python bench/sinks.py [NAME …] [--rows 1000000] [--rounds 2] [--workload mixed] [--json FILE]

Each run is a process of its own, with a counterpart of its own on the same machine, which is started for it and asked
afterwards: what arrived is what went in. What cannot be had here is left out. All numbers are medians over the rounds;
what counts are the ratios to the null sink, each taken within a round, of wall time and of CPU for a row. CPU is the
pipeline's, without the counterpart's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import brokers
import counterparts
from counterparts import Job, Target
from measuring import SETTINGS, Bench, Run, machine, measured
from workloads import INTERLEAVED, WORKLOADS, Workload

from aiorepl import compiled
from aiorepl.errors import ConfigurationError
from aiorepl.pipeline.registry import load
from aiorepl.testing import EmbeddedServer

MIB = 1024 * 1024
NULL = "null"


@contextmanager
def nowhere(job: Job) -> Iterator[Target]:
    """The null sink's target; the sink itself counts."""
    yield Target({}, lambda: None, None)


@dataclass(frozen=True)
class Sink:
    """A sink with options.

    :param kind: its name in ``[[sinks]]``.
    :param share: one in so many rows is enough.
    """

    kind: str
    counterpart: Callable[[Job], AbstractContextManager[Target]]
    options: Mapping[str, Any] = field(default_factory=dict)
    share: int = 1


SECRET = "whsec_c2VjcmV0IG9mIHRoZSBiZW5jaG1hcmsgICAg"
SINKS = {
    NULL: Sink(NULL, nowhere),
    "jsonl": Sink("jsonl", counterparts.lines),
    "webhook": Sink("webhook", counterparts.receiver),
    "webhook, signed": Sink("webhook", counterparts.receiver, {"secrets": [SECRET]}),
    "webhook, one event a request": Sink("webhook", counterparts.receiver, {"body": "event"}, 20),
    "s3": Sink("s3", counterparts.bucket),
    "s3, Parquet": Sink("s3", counterparts.bucket, {"files": "parquet"}),
    "parquet": Sink("parquet", counterparts.folder),
    "postgres": Sink("postgres", counterparts.postgres),
    "postgres, strict": Sink("postgres", counterparts.postgres, {"mode": "strict"}),
    "kafka": Sink("kafka", brokers.kafka),
    "kafka, exactly once": Sink("kafka", brokers.kafka, {"exactly_once": True}),
    "nats": Sink("nats", brokers.nats),
    "redis": Sink("redis", brokers.redis),
}
# Workloads that create all their tables; pgbench makes its own.
LOADS = {each.name: each for each in (*WORKLOADS, INTERLEAVED) if each.tables}


def main() -> None:
    """Measure the sinks, print the table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="sinks whose names have this in them")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workload", choices=LOADS, default="mixed", metavar="NAME", help="; ".join(LOADS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for word in arguments.names:
        if not any(word in name for name in SINKS):
            parser.error(f"there is no {word!r}; there are {'; '.join(SINKS)}")
    words = arguments.names or [""]
    names = [name for name in SINKS if name == NULL or any(word in name for word in words)]
    with EmbeddedServer(settings=SETTINGS) as server:
        found = drain(server, LOADS[arguments.workload], arguments.rows, arguments.rounds, names)
    print(f"{arguments.workload}, {'compiled' if compiled.ACTIVE else 'plain Python'}\n")
    report(found)
    if arguments.json:
        results = {"machine": machine(), "workload": arguments.workload, "sinks": found}
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def drain(
    server: EmbeddedServer, workload: Workload, rows: int, rounds: int, names: list[str]
) -> dict[str, Any]:
    """Measure each sink on the same WAL."""
    runs: dict[str, list[Run]] = {name: [] for name in names}
    with ExitStack() as stack:
        # The largest share last, so that no slot has to skip the rows of others.
        shares = sorted({SINKS[name].share for name in names}, reverse=True)
        jobs = {}
        for share in shares:
            slots = [
                slot(name, number) for name in names if SINKS[name].share == share for number in range(rounds)
            ]
            jobs[share] = write(stack, Bench(server, f"sinks{share}"), workload, max(rows // share, 1), slots)
        for number in range(rounds):
            for name in list(runs):
                try:
                    runs[name].append(run(name, slot(name, number), jobs[SINKS[name].share]))
                except (ConfigurationError, ImportError) as reason:
                    print(f"{name} is left out: {reason}", file=sys.stderr)
                    del runs[name]
    return {name: summary(name, runs, jobs) for name in runs}


def slot(name: str, number: int) -> str:
    """Create a slot for each run."""
    return f"sink{list(SINKS).index(name)}_{number}"


def write(stack: ExitStack, bench: Bench, workload: Workload, rows: int, slots: list[str]) -> Job:
    """Write the load for these slots."""
    stack.callback(bench.drop)
    bench.psql("CREATE PUBLICATION bench FOR ALL TABLES")
    bench.psql(workload.tables)
    bench.slots(slots)
    bench.mark()
    wrote = workload.write(bench, rows)
    return Job(bench, workload, bench.psql("SELECT pg_current_wal_lsn()"), sum(wrote.values()))


def run(name: str, slot: str, job: Job) -> Run:
    """Deliver everything, and check what has arrived."""
    sink = SINKS[name]
    with ExitStack() as stack:
        if name != NULL:
            load(sink.kind)  # whether its client is here
        target = stack.enter_context(sink.counterpart(job))
        command = [
            *(sys.executable, str(counterparts.HERE / "consume.py"), sink.kind),
            *("--dsn", job.bench.dsn, "--slot", slot, "--until", job.until),
            *("--sink", json.dumps({**target.options, **sink.options})),
            *(part for option in job.workload.options.items() for part in ("--option", "=".join(option))),
        ]
        done = measured(command, slot=slot, dsn=job.bench.server.dsn, environment={}, stdout=None)
        found, expected = target.arrived(), target.expected
    if name == NULL:
        seen = json.loads(done.output)
        del seen["ids"]
        found, expected = sum(seen.values()), job.rows
    if found != expected:
        raise SystemExit(f"{name}: {found} arrived, {expected} went in")
    return done


def summary(name: str, all_runs: Mapping[str, list[Run]], jobs: Mapping[int, Job]) -> dict[str, Any]:
    """Return medians and per-round ratios, per row."""
    rows, rows_of_null = jobs[SINKS[name].share].rows, jobs[1].rows
    runs, null = all_runs[name], all_runs[NULL]
    pairs = list(zip(runs, null, strict=True))
    return {
        "rows": rows,
        "rows_per_second": round(rows / statistics.median(each.wall for each in runs)),
        "wall_over_null": [round(ours.wall / rows / (none.wall / rows_of_null), 2) for ours, none in pairs],
        "cpu_microseconds_per_row": round(statistics.median(each.cpu for each in runs) / rows * 1e6, 1),
        "cpu_over_null": [round(ours.cpu / rows / (none.cpu / rows_of_null), 2) for ours, none in pairs],
        "walsender_microseconds_per_row": round(
            statistics.median(each.walsender for each in runs) / rows * 1e6, 1
        ),
        "peak_mib": round(max(each.memory for each in runs) / MIB, 1),
    }


def report(found: dict[str, dict[str, Any]]) -> None:
    """Return the results as a Markdown table."""
    heads = ("rows", "rows/s", "over null", "µs CPU/row", "over null", "peak MiB")
    print(f"| {'sink':28} |" + "".join(f" {head:>10} |" for head in heads))
    print(f"|{'-' * 30}|" + f"{'-' * 11}:|" * len(heads))
    for name, each in found.items():
        cells = (
            f"{each['rows']:,}",
            f"{each['rows_per_second']:,}",
            f"{statistics.median(each['wall_over_null']):.2f}",
            f"{each['cpu_microseconds_per_row']:.1f}",
            f"{statistics.median(each['cpu_over_null']):.2f}",
            f"{each['peak_mib']:.0f}",
        )
        print(f"| {name:28} |" + "".join(f" {cell:>10} |" for cell in cells))


if __name__ == "__main__":
    main()
