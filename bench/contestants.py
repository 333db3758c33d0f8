"""The contestants, which read a slot: pg_recvlogical, aiorepl in several forms, others. Each is a process."""

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
# Contestants that decode only text, and take many times as long.
SLOW = ("pypgoutput", "debezium")
# Contestants that take part in workloads of minutes.
THOROUGH = (LIMIT, "null", "typed", "jsonl", "journal")


@dataclass(frozen=True)
class Job:
    """The WAL to read."""

    bench: Bench
    workload: Workload
    slot: str
    until: str
    expected: Written
    size: int
    """Bytes of WAL: about the size of the output; JSON is twice as large."""


def available(names: Collection[str]) -> list[str]:
    """Return pg_recvlogical, and those of ``names`` that are available. Debezium is downloaded if necessary: a minute, and 20 MB."""
    found = [LIMIT, *(name for name in OURS if name in names)]
    if find_spec("psycopg2") is not None:
        found += [name for name in ("psycopg2",) if name in names]
        if "pypgoutput" in names and _pypgoutput():
            found.append("pypgoutput")
    if "debezium" in names and debezium.ready():
        found.append("debezium")
    return found


def _pypgoutput() -> bool:
    """Install it without its dependencies: its decoder needs none, and those of its reader are outdated."""
    folder = PEERS / "pypgoutput"
    if not folder.is_dir():
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--require-hashes", "-r", str(Path(__file__).with_name("pypgoutput.lock"))),
            *("--target", str(PEERS)),
        ]
        subprocess.run(command, check=False, capture_output=True)
    return folder.is_dir()


def suits(name: str, workload: Workload, number: int) -> bool:
    """Whether a contestant takes part in a workload and round."""
    if workload.long:
        return name in THOROUGH and number == 0
    # One round is enough for these.
    return name not in SLOW or (number == 0 and not workload.options)


def run(name: str, job: Job) -> Run:
    """Read the slot, and check the output."""
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
    """Make the host provide memory for a file of this size. Otherwise the first writer pays for it: on a virtual machine,
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
