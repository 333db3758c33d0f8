"""A server to measure with, and a process's wall time, CPU, walsender's CPU and peak memory."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from aiorepl import compiled
from aiorepl.testing import EmbeddedServer

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "max_replication_slots": "256",
    "max_wal_senders": "256",
    "max_connections": "500",
}
# Use cached bytecode, as an installed package does.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """The measurements of one process.

    :param start: the part of ``wall`` before its slot was in use: interpreter, imports, connection, checks.
    :param cpu: all of it, and ``cpu_to_start`` the part before that.
    :param walsender: the CPU of the server process that it read from.
    """

    wall: float
    start: float
    cpu: float
    cpu_to_start: float
    walsender: float
    memory: int
    output: str

    @property
    def drain(self) -> float:
        """Seconds from the beginning of the stream."""
        return self.wall - self.start


class Bench:
    """A new database on a server of its own; its WAL is read from where ``mark`` was called."""

    def __init__(self, server: EmbeddedServer, name: str) -> None:
        self.server = server
        self.dsn = server.dsn_for(name)
        self._slots: list[str] = []
        self._marked = False
        execute(server.dsn, f'CREATE DATABASE "{name}"')

    def psql(self, sql: str) -> str:
        """Run SQL, and return its output."""
        return self.program("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql).strip()

    def program(self, name: str, *arguments: str, output: bool = True) -> str:
        """Run one of PostgreSQL's programs on the database."""
        command = [str(self.server.bin_dir / name), *arguments]
        environment = {**os.environ, **self.environment()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr}")
        return done.stdout if output else ""

    def lines(self, sql: str) -> Iterator[bytes]:
        """Yield the lines of a COPY TO STDOUT."""
        command = [str(self.server.bin_dir / "psql"), "-qX", "-v", "ON_ERROR_STOP=1", "-c", sql]
        environment = {**os.environ, **self.environment()}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            yield from process.stdout
        if process.returncode:
            raise SystemExit(f"psql ended with {process.returncode}")

    def environment(self) -> dict[str, str]:
        """Libpq's environment variables for the database."""
        from urllib.parse import parse_qs, unquote, urlsplit

        parts = urlsplit(self.dsn)
        host = parts.hostname or parse_qs(parts.query)["host"][0]
        return {
            "PGHOST": host,
            "PGPORT": str(parts.port or parse_qs(parts.query)["port"][0]),
            "PGUSER": unquote(parts.username or ""),
            "PGPASSWORD": unquote(parts.password or ""),
            "PGDATABASE": unquote(parts.path[1:]),
        }

    def slots(self, names: Sequence[str]) -> None:
        """Create a slot for each run: all read the same WAL."""
        self._slots = list(names)

    def mark(self) -> None:
        """Begin the measured WAL here."""
        if not self._marked:
            self._marked = True
            listed = ", ".join(f"'{name}'" for name in self._slots)
            self.psql(
                f"SELECT pg_create_logical_replication_slot(s, 'pgoutput') FROM unnest(ARRAY[{listed}]) s"
            )

    def drop(self) -> None:
        """Drop the slots and the database."""
        for name in self._slots:
            self.psql(f"SELECT pg_drop_replication_slot('{name}')")
        execute(self.server.dsn, f'DROP DATABASE "{self.dsn.rpartition("/")[2].partition("?")[0]}"')


def execute(dsn: str, sql: str) -> None:
    """Run a statement."""

    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    asyncio.run(run())


def machine() -> dict[str, Any]:
    """Describe the machine."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "compiled": compiled.ACTIVE,
        "argv": sys.argv[1:],
    }


def measured(
    command: Sequence[str], *, slot: str, dsn: str, environment: Mapping[str, str], stdout: Path | None
) -> Run:
    """Run a process that reads ``slot`` until it ends.

    :param stdout: where its output goes; it is returned unless given.
    """
    out = subprocess.PIPE if stdout is None else stdout.open("wb")
    watch = _Watch(dsn, slot)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=out, env={**ENVIRONMENT, **environment}, text=stdout is None)
    watch.follow(process.pid, began)
    output = process.stdout.read() if process.stdout is not None else ""
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.stdout is not None:
        process.stdout.close()
    elif not isinstance(out, int):
        out.close()
    watch.stop()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:3])} … ended with {process.returncode}")
    # Not ru_maxrss, which includes this process's own memory at the fork.
    cpu = usage.ru_utime + usage.ru_stime
    return Run(wall, watch.start_seconds, cpu, watch.cpu_to_start, watch.walsender, watch.memory, output)


class _Watch(threading.Thread):
    """Waits until the slot is active; measures the CPU time of its server process, and the reader's peak memory."""

    def __init__(self, dsn: str, slot: str) -> None:
        super().__init__(daemon=True)
        self.start_seconds = 0.0
        self.cpu_to_start = 0.0
        self.walsender = 0.0
        self.memory = 0
        self._slot = slot
        self._reader = 0
        self._began = 0.0
        self._ended = threading.Event()
        # Before the reader is started, because its start is measured.
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(asyncpg.connect(dsn))

    def follow(self, reader: int, began: float) -> None:
        """Start measuring; the reader was started at ``began``."""
        self._reader, self._began = reader, began
        self.start()

    def run(self) -> None:
        walsender = self._loop.run_until_complete(self._walsender())
        while not self._ended.wait(0.02):
            self._look(walsender)

    def _look(self, walsender: int) -> None:
        try:
            self.walsender = _cpu(walsender)
            status = Path(f"/proc/{self._reader}/status").read_text().splitlines()
        except OSError:
            return
        peak = next((line for line in status if line.startswith("VmHWM")), "VmHWM: 0 kB")
        self.memory = max(self.memory, int(peak.split()[1]) * 1024)

    async def _walsender(self) -> int:
        query = await self._connection.prepare(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1"
        )
        while not self._ended.is_set():
            if pid := await query.fetchval(self._slot):
                self.start_seconds = time.perf_counter() - self._began
                with suppress(OSError):
                    self.cpu_to_start = _cpu(self._reader)
                return int(pid)
            await asyncio.sleep(0.005)
        return 0

    def stop(self) -> None:
        """Stop measuring."""
        self._ended.set()
        self.join()
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


def tree_cpu(root: int) -> float:
    """Return the CPU seconds so far of a process and its descendants, also of those that have ended and were waited for."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            used[pid] = sum(map(int, fields[11:15])) / _TICK
            children.setdefault(int(fields[1]), []).append(pid)
    found, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        found += used.get(pid, 0)
        waiting += children.get(pid, [])
    return found


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK
