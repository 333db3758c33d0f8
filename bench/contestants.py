"""Who drains a slot: the limit, us in several forms, others. Each is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import debezium
from measuring import Bench, Run, measured
from workloads import Workload

HERE = Path(__file__).parent
PEERS = Path(sys.prefix) / "peers"
LIMIT = "pg_recvlogical"
# aiorepl's own, and whether it says how many rows there were (else its files are counted).
OURS = {"null": True, "typed": True, "tail": False, "jsonl": False, "journal": False}
OTHERS = ("psycopg2", "pypgoutput", "debezium")
# Those that know text and nothing else.
PLAIN = ("pypgoutput", "debezium")


@dataclass(frozen=True)
class Job:
    """What is to be read."""

    bench: Bench
    workload: Workload
    slot: str
    until: str
    wrote: Mapping[str, int]


def available(without: Collection[str], *, fetch: bool) -> list[str]:
    """Those that can be had here.

    :param fetch: Debezium too, if it is not here yet: a minute, and 20 MB.
    """
    found = [LIMIT, *OURS]
    if find_spec("psycopg2") is not None:
        found.append("psycopg2")
        if not (PEERS / "pypgoutput").is_dir():
            # Without what it depends on: its decoder needs nothing, and its reader's dependencies are old.
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                    *("--no-deps", "--target", str(PEERS), "pypgoutput==0.0.3"),
                ],
                check=False,
                capture_output=True,
            )
        if (PEERS / "pypgoutput").is_dir():
            found.append("pypgoutput")
    if "debezium" not in without and debezium.ready(fetch=fetch):
        found.append("debezium")
    return [name for name in found if name not in without]


def suits(name: str, workload: Workload) -> bool:
    """Whether it can read that: others know neither streaming nor its messages."""
    if name in PLAIN and workload.options:
        return False
    # Minutes a round, in which it does as with a million rows.
    if name == "debezium" and workload.rows > 1_000_000:
        return False
    return not (name in OTHERS and "streaming" in workload.options)


def run(name: str, job: Job) -> Run:
    """Read the slot, and check that what came out is what went in."""
    with TemporaryDirectory(prefix="aiorepl-bench-") as folder:
        out = Path(folder) / "out"
        stdout = None if name not in (LIMIT, "tail") else Path("/dev/null") if name == LIMIT else out
        done = measured(
            _command(name, job, out),
            slot=job.slot,
            dsn=job.bench.server.dsn,
            environment=_environment(name, job),
            stdout=stdout,
        )
        _check(name, job, done, out)
    return done


def start(name: str, done: Run) -> float:
    """The seconds until it had its first rows, of the one for whom that is long."""
    return float(json.loads(done.output)["start"]) if name == "debezium" else 0.0


def _environment(name: str, job: Job) -> dict[str, str]:
    if name not in PLAIN:
        return {}
    return {**job.bench.environment(), "PYTHONPATH": str(PEERS)}


def _command(name: str, job: Job, out: Path) -> list[str]:
    dsn, slot, until, options = job.bench.dsn, job.slot, job.until, job.workload.options
    if name == LIMIT:
        chosen = {"proto_version": "4", "publication_names": "bench"} | options
        return [
            str(job.bench.server.bin_dir / "pg_recvlogical"),
            *("-d", dsn, "-S", slot, "--start", "--no-loop", "--endpos", until, "-f", "-"),
            *(part for option in chosen.items() for part in ("-o", "=".join(option))),
        ]
    python = [sys.executable]
    flags = [part for option in options.items() for part in ("--option", "=".join(option))]
    if name == "debezium":
        return debezium.command(slot, sum(job.wrote.values()))
    if name in OTHERS:
        kind = "raw" if name == "psycopg2" else name
        rows = str(sum(job.wrote.values()))
        return [*python, str(HERE / "raw.py"), kind, "--dsn", dsn, "--slot", slot, "--rows", rows, *flags]
    if name == "tail":
        chosen = ["--binary"] if "binary" in options else []
        chosen += ["--streaming", options["streaming"]] if "streaming" in options else []
        script = "from aiorepl.cli import main; main()"
        return [
            *(*python, "-c", script, "tail", "--dsn", dsn, "--slot", slot, "--publication", "bench"),
            *("--until", until, *chosen),
        ]
    places = {"jsonl": ["--sink", json.dumps({"path": str(out)})], "journal": ["--to", str(out)]}
    return [
        *(*python, str(HERE / "consume.py"), name, "--dsn", dsn, "--slot", slot),
        *("--until", until, *places.get(name, ()), *flags),
    ]


def _check(name: str, job: Job, done: Run, out: Path) -> None:
    if name == LIMIT:
        return
    if name in ("tail", "jsonl"):
        files = [out] if name == "tail" else sorted(out.iterdir())
        seen = dict.fromkeys(job.wrote, 0)
        for file in files:
            with file.open("rb") as lines:
                for line in lines:
                    seen[line[9 : line.index(b'"', 9)].decode()] += 1
    elif name == "journal":
        from aiorepl.journal.reader import JournalReader

        reader = JournalReader(out)
        blocks = (block for segment in reader.segments() for block in reader.index(segment).blocks)
        rows = sum(sum(block.rows.values()) for block in blocks)
        _require(name, job, rows, sum(job.wrote.values()))
        return
    else:
        seen = json.loads(done.output)
        ids = seen.pop("ids")
        seen.pop("start", None)
        if ids and job.workload.name != "pgbench":
            _require(name, job, ids, job.wrote["insert"] * (job.wrote["insert"] + 1) // 2)
    _require(name, job, seen, dict(job.wrote))


def _require(name: str, job: Job, found: object, expected: object) -> None:
    if found != expected:
        raise SystemExit(f"{name} on {job.workload.name}: {found} came out, {expected} went in")
