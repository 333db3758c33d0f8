"""Who drains a slot: the limit, us in several forms, others. Each is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import debezium
from checking import Written, check_journal, check_lines, check_output
from measuring import Bench, Run, measured
from workloads import Workload

HERE = Path(__file__).parent
PEERS = Path(sys.prefix) / "peers"
LIMIT = "pg_recvlogical"
OURS = ("null", "typed", "tail", "jsonl", "journal")
WRITERS = ("tail", "jsonl", "journal")
OTHERS = ("psycopg2", "pypgoutput", "debezium")
# Those that know text and nothing else, and take many times as long.
SLOW = ("pypgoutput", "debezium")
# Those that are measured with what takes minutes.
THOROUGH = (LIMIT, "null", "typed", "jsonl", "journal")


@dataclass(frozen=True)
class Job:
    """What is to be read."""

    bench: Bench
    workload: Workload
    slot: str
    until: str
    expected: Written
    size: int
    """Bytes of WAL: about what is written of it, as JSON twice that."""


def available(names: Collection[str]) -> list[str]:
    """The limit, and those of ``names`` that can be had here. Debezium is fetched if need be: a minute, and 20 MB."""
    found = [LIMIT, *(name for name in OURS if name in names)]
    if find_spec("psycopg2") is not None:
        found += [name for name in ("psycopg2",) if name in names]
        if "pypgoutput" in names and _pypgoutput():
            found.append("pypgoutput")
    if "debezium" in names and debezium.ready():
        found.append("debezium")
    return found


def _pypgoutput() -> bool:
    """Have it here, without what it depends on: its decoder needs nothing, and its reader's dependencies are old."""
    folder = PEERS / "pypgoutput"
    if not folder.is_dir():
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--target", str(PEERS), "pypgoutput==0.0.3"),
        ]
        subprocess.run(command, check=False, capture_output=True)
    return folder.is_dir()


def suits(name: str, workload: Workload, number: int) -> bool:
    """Whether it reads that, in that round."""
    if workload.long:
        return name in THOROUGH and number == 0
    # One round tells what there is to tell of those.
    return name not in SLOW or (number == 0 and not workload.options)


def run(name: str, job: Job) -> Run:
    """Read the slot, and check that what came out is what went in."""
    with TemporaryDirectory(prefix="aiorepl-bench-") as folder:
        out = Path(folder) / "out"
        if name in WRITERS:
            _page_cache(out, 2 * job.size)
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


def _page_cache(path: Path, size: int) -> None:
    """Have the machine's memory for so large a file. Who writes first after long would pay for it: on a virtual machine,
    whose memory has gone back to the host, as much CPU again as all else.
    """
    block = bytes(1024 * 1024)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(block)):
            file.write(block)
    path.unlink()


def _environment(name: str, job: Job) -> dict[str, str]:
    if name not in SLOW:
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
        return debezium.command(slot, job.expected.total)
    if name in OTHERS:
        kind = "raw" if name == "psycopg2" else name
        rows = str(job.expected.total)
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
    who = f"{name} on {job.workload.name}"
    if name in ("tail", "jsonl"):
        files = [out] if name == "tail" else sorted(out.iterdir())
        check_lines(who, files, job.workload, job.expected)
    elif name == "journal":
        check_journal(who, out, job.expected)
    elif name != LIMIT:
        check_output(who, done.output, job.expected)
