"""``make chaos``: runs programs for a given time, and writes a report.

python tests/chaos/suite.py --minutes 10 --seed 1 --report chaos.md
python tests/chaos/suite.py --replay 4711          # one program again
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import brokers
import bucket
from bucket import FailingLayer
from cluster import Cluster, pair, target_pair
from drawing import VERSIONS, draw
from mirrored import ROOT
from processes import Processes
from program import Program
from report import Outcome, Report
from rounds import Round
from sabotage import SABOTAGES, SHOWS

from aiorepl.errors import ConfigurationError
from aiorepl.testing import EmbeddedServer

SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "wal_sender_timeout": "60s",
    "deadlock_timeout": "50ms",
    "max_prepared_transactions": "64",
}


class Servers:
    """One server of each version, started on first use, and restarted if it does not answer."""

    def __init__(self) -> None:
        self._running: dict[int, EmbeddedServer] = {}
        self._others = ExitStack()
        self._store: str | None = None
        self._brokers = brokers.Brokers()

    def __call__(self, version: int) -> EmbeddedServer:
        """Return the running server of this version."""
        if version not in self._running:
            settings = dict(SETTINGS)
            server = EmbeddedServer(version, bin_dir=programs(version), settings=settings)
            server.start()
            self._running[version] = server
        return self._running[version]

    @contextmanager
    def cluster(self, program: Program) -> Iterator[Cluster]:
        """The server of a program, or two new ones if it promotes a standby."""
        if program.standby:
            version = program.version
            with pair(version, programs(version), SETTINGS, waits=program.promotes) as cluster:
                yield cluster
        else:
            yield Cluster(self(program.version))

    @contextmanager
    def target(self, program: Program) -> Iterator[Cluster | None]:
        """Two new servers for the target of a ``postgres`` sink; ``None`` if it is on the server of the program."""
        if not program.target_standby:
            yield None
            return
        version = program.version
        with target_pair(version, programs(version), SETTINGS, program.target_standby) as cluster:
            yield cluster

    @contextmanager
    def layer(self, program: Program) -> Iterator[FailingLayer | None]:
        """The object store of a program's journal; ``None`` if it has none."""
        if not program.pipeline.get("store"):
            yield None
            return
        if self._store is None:
            self._store = self._others.enter_context(bucket.store())
        layer = FailingLayer(self._store, f"{program.seed}-{time.time_ns()}", program.seed)
        try:
            yield layer
        finally:
            layer.stop()

    def brokers(self, program: Program) -> dict[str, brokers.Broker]:
        """The brokers to which a program writes, by kind of sink."""
        kinds = {sink["type"] for sink in program.sinks.values()} & {*brokers.KINDS}
        return {kind: self._brokers.of(kind, program.seed) for kind in sorted(kinds)}

    def stop(self) -> None:
        """Stop all servers."""
        self._others.close()
        self._brokers.stop()
        for server in self._running.values():
            server.stop()


def programs(version: int) -> Path | None:
    """Return the folder of the server's programs from ``scripts/servers.py`` or Debian; ``None`` for the wheel's."""
    folders = (Path(f"/usr/lib/postgresql/{version}/bin"), Path(sys.prefix, "servers", str(version), "bin"))
    return None if version in (16, 18) else next(filter(Path.is_dir, folders), Path("nowhere"))


def available() -> tuple[int, ...]:
    """Return the versions whose programs are installed."""
    found = []
    for version in VERSIONS:
        try:
            EmbeddedServer(version, bin_dir=programs(version))
        except ConfigurationError:
            continue
        found.append(version)
    return tuple(found)


def run(
    program: Program,
    servers: Servers,
    processes: Processes,
    sabotage: str | None = None,
    *,
    keep: bool = True,
) -> Outcome:
    """Run one program in a new folder.

    :param keep: whether the folder is kept if there is a violation.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"aiorepl-chaos-{program.seed}-"))
    (folder / "program.json").write_text(program.to_json())
    began = time.monotonic()
    with (
        servers.cluster(program) as cluster,
        servers.target(program) as target,
        servers.layer(program) as layer,
    ):
        reached = servers.brokers(program)
        outcome = asyncio.run(
            Round(program, cluster, target, layer, reached, processes, folder, sabotage).run()
        )
    outcome.spent["servers: start and stop"] = time.monotonic() - began - outcome.seconds
    if outcome.violations and keep:
        sys.stdout.write(f"seed {program.seed}: the files are in {folder}\n")
    else:
        shutil.rmtree(folder)
    return outcome


def shrink(
    program: Program,
    servers: Servers,
    processes: Processes,
    sabotage: str | None = None,
    *,
    seconds: float = 600,
) -> Program:
    """Remove parts of the program that the violation does not need. Each simpler program is run up to twice.

    :param seconds: begin no run after this time.
    """
    deadline = time.monotonic() + seconds
    simpler = True
    while simpler:
        simpler = False
        for candidate in program.shorter():
            if time.monotonic() > deadline:
                return program
            if any(run(candidate, servers, processes, sabotage, keep=False).violations for _ in range(2)):
                program, simpler = candidate, True
                break
    return program


def kill_points(seed: int) -> Outcome:
    """End the query of a Spark mirror at every named point, with every loss of its checkpoint (``tests/spark/kill_points``)."""
    began, outcome = time.monotonic(), Outcome()
    command = [sys.executable, "-m", "tests.spark.kill_points", "--seed", str(seed)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in told.stdout.splitlines():
        point, there, _ = line.partition(", ")
        outcome.faults[f"mirror: {point}"] += bool(there)
    if told.returncode:
        # The last lines of Spark's errors do not have the cause.
        sys.stdout.write(told.stderr)
        lines = [line for line in told.stderr.splitlines() if "Error" in line or "Exception" in line]
        last = (lines or told.stderr.splitlines() or ["no error text"])[-1]
        outcome.violations.append(f"python -m tests.spark.kill_points --seed {seed}: {last}")
    outcome.seconds = time.monotonic() - began
    return outcome


@contextmanager
def machinery() -> Iterator[tuple[Servers, Processes]]:
    """The servers, and the server of processes."""
    servers, processes = Servers(), Processes()
    try:
        yield servers, processes
    finally:
        servers.stop()


def main() -> int:
    """Run programs, and return the exit code: 1 if there was a violation."""
    options = _options()
    # Otherwise SIGTERM would leave the servers and processes of a program.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, _show_tasks)
    # These servers have no TLS, and asking for it takes a third of a connection's time.
    os.environ.setdefault("PGSSLMODE", "disable")
    report = Report()
    if options.kill_points and not (options.replay or options.program or options.sabotage):
        outcome = kill_points(options.seed)
        report.add_faults(options.seed, outcome)
        _say(f"kill points of a mirror: {sum(outcome.faults.values())}, {outcome.seconds:.0f} s")
        for violation in outcome.violations:
            _say(f"  VIOLATION: {violation}")
    with machinery() as (servers, processes):
        for program in _programs(options):
            if options.sabotage and not SHOWS[options.sabotage](program):
                continue
            if options.mirrored and not program.mirror:
                continue
            outcome = run(program, servers, processes, options.sabotage)
            report.add(program, outcome)
            _say(report.line(program, outcome))
            if outcome.violations and options.shrink:
                short = shrink(program, servers, processes, options.sabotage)
                file = Path(f"chaos-{program.seed}.json")
                file.write_text(short.to_json() + "\n")
                _say(f"{short.script()}\nagain: --program {file}")
            if outcome.violations and options.sabotage:
                break
            if options.report is not None:
                options.report.write_text(report.text())
    _say(report.summary)
    return 1 if report.violations else 0


def _show_tasks(*_: object) -> None:
    """Write the tasks and what they wait for to standard error; the handler of SIGUSR1."""
    with suppress(RuntimeError):  # between two programs
        for task in asyncio.all_tasks():
            lines, awaited = [f"{task.get_name()}:"], task.get_coro()
            while (frame := getattr(awaited, "cr_frame", None)) is not None:
                lines.append(f"  {frame.f_code.co_qualname}, {frame.f_code.co_filename}:{frame.f_lineno}")
                awaited = awaited.cr_await
            sys.stderr.write("\n".join([*lines, f"  {awaited!r}", ""]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no program after this time")
    parser.add_argument("--programs", type=int, help="run this many programs, however long it takes")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first program")
    parser.add_argument(
        "--replay", type=int, nargs="+", metavar="SEED", help="run the programs of these seeds only"
    )
    parser.add_argument("--program", type=Path, metavar="FILE", help="run the program in this file only")
    parser.add_argument("--short", action="store_true", help="run short programs, as make test does")
    parser.add_argument(
        "--shrink", action="store_true", help="look for the shortest program with the violation"
    )
    parser.add_argument(
        "--sabotage", choices=SABOTAGES, help="put a bug into the process, which must be found"
    )
    parser.add_argument("--mirrored", action="store_true", help="run only programs with a Spark mirror")
    parser.add_argument(
        "--kill-points", action="store_true", help="first strike at every named point of a Spark mirror"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report in Markdown")
    return parser.parse_args()


def _programs(options: argparse.Namespace) -> Iterator[Program]:
    """Draw the programs that the options ask for."""
    drawn = partial(
        draw, versions=available(), brokers=brokers.available(quick=options.short), short=options.short
    )
    if options.program is not None:
        yield Program.from_json(options.program.read_text())
    elif options.replay is not None:
        yield from map(drawn, options.replay)
    elif options.programs is not None:
        yield from map(drawn, range(options.seed, options.seed + options.programs))
    else:
        deadline = time.monotonic() + options.minutes * 60
        seed = options.seed
        while time.monotonic() < deadline:
            yield drawn(seed)
            seed += 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
