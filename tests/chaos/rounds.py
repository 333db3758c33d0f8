"""Runs one program: writers, the process under test with its faults, and in the end the verifier."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from processes import Process, Processes
from program import Program, Run
from watch import FolderWatch, JournalWatch, cursor

from aiorepl import LSN
from aiorepl.cancellation import cancel_and_wait
from aiorepl.testing import CuttingProxy, EmbeddedServer
from aiorepl.testing.verify import Mixture, Operation, Promise, Workload, verify

DEADLINE = 120.0
# How often the process may fail to start without a fault.
_STARTS = 3
# With these errors a process may end although no call of the operating system has failed.
_EXCUSED = ("ConnectionFailed", "ConnectionLost", "SlotError", "ServerError")
_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(slots=True)
class Outcome:
    """What came of a program."""

    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    """Transactions that were compared, counted for each consumer."""
    changes: int = 0
    duplicates: int = 0
    seconds: float = 0.0


class Round:
    """One program on one server.

    :param server: runs; it may be restarted and killed.
    :param processes: starts the process under test.
    :param folder: for all files of the round.
    """

    def __init__(self, program: Program, server: EmbeddedServer, processes: Processes, folder: Path) -> None:
        self._program = program
        self._server = server
        self._processes = processes
        self._folder = folder
        self._slot = f"chaos_{program.seed}"
        self._dsn = server.dsn
        self._outcome = Outcome()
        self._watches: dict[str, FolderWatch | JournalWatch] = {}
        self._proxy = CuttingProxy("127.0.0.1", server.port)
        self._polled: Any = None
        self._last_confirmed: LSN | None = None

    async def run(self) -> Outcome:
        """Run it; everything it makes on the server is dropped."""
        began = time.monotonic()
        (self._folder / "stderr").touch()
        async with self._database(), self._proxy:
            workload = Workload(
                self._dsn,
                seed=self._program.seed,
                writers=self._program.writers,
                mixture=Mixture(**self._program.mixture),
            )
            await workload.create()
            await self._prepare()
            watching = [asyncio.create_task(self._poll())]
            watching += [
                asyncio.create_task(watch.follow())
                for watch in self._watches.values()
                if isinstance(watch, JournalWatch)
            ]
            try:
                async with workload:
                    for run in self._program.runs:
                        await self._live(run)
                    caught_up = await self._catch_up(workload)
            finally:
                await cancel_and_wait(*watching)
            await self._judge(workload, caught_up=caught_up)
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    @contextlib.asynccontextmanager
    async def _database(self) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self._server.dsn)
        await connection.execute(f"CREATE DATABASE {self._slot}")
        await connection.execute(f"ALTER DATABASE {self._slot} SET wal_sender_timeout = '900ms'")
        connection.terminate()
        self._dsn = self._server.dsn_for(self._slot)
        try:
            yield
        finally:
            if self._polled is not None:
                self._polled.terminate()
            connection = await asyncpg.connect(self._server.dsn)
            drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1"
            await self._free()
            terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
            await connection.fetch(terminate, self._slot)
            await connection.fetch(drop, self._slot)
            await connection.execute(f"DROP DATABASE {self._slot}")
            connection.terminate()

    async def _prepare(self) -> None:
        """Publish the tables, create the slot, and begin to watch."""
        connection = await asyncpg.connect(self._dsn)
        await connection.execute("CREATE PUBLICATION verify FOR ALL TABLES")
        two_phase = ", false, true" if self._program.source.get("two_phase") else ""
        await connection.fetch(
            f"SELECT pg_create_logical_replication_slot($1, 'pgoutput'{two_phase})", self._slot
        )
        connection.terminate()
        journal = self._folder / "journal"
        journaled = self._program.pipeline["journal"]
        for name in self._program.sinks:
            confirmed: Callable[[], LSN | None] = cursor(journal, name) if journaled else self._confirmed
            self._watches[name] = FolderWatch(self._folder / name, confirmed)
        if journaled:
            self._watches["the journal"] = JournalWatch(journal, self._confirmed)

    def _confirmed(self) -> LSN | None:
        return self._last_confirmed

    async def _poll(self) -> None:
        """Read the slot's position all the time, and after it what is durable."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
        while True:
            try:
                if self._polled is None or self._polled.is_closed():
                    self._polled = await asyncpg.connect(self._dsn)
                text = await self._polled.fetchval(query, self._slot)
                self._last_confirmed = LSN.parse(text)
                for watch in self._watches.values():
                    watch.look()
            except _AWAY:
                self._polled = None
            await asyncio.sleep(0.03)

    async def _live(self, run: Run) -> None:
        """Run the process once, with its faults."""
        fired = self._folder / "fired"
        process = await self._start(run)
        before = fired.stat().st_size if fired.exists() else 0
        striking = asyncio.create_task(self._strike_all(run, process))
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({ended}, timeout=run.seconds)
        await striking
        if not ended.done():
            if run.end == "kill":
                self._outcome.faults["kill at random"] += 1
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            else:
                self._outcome.faults["stop under load"] += 1
                process.ask_to_stop()
                await asyncio.wait({ended}, timeout=30)
                if not ended.done():
                    self._outcome.violations.append("the process does not stop when it is asked to")
                    process.kill()
        process.ask_to_stop()
        code = await ended
        struck = fired.read_text()[before:].splitlines() if fired.exists() else []
        self._outcome.faults.update(struck)
        self._note_end(code, struck)
        for watch in self._watches.values():
            watch.restarted()

    def _note_end(self, code: int, struck: list[str]) -> None:
        if code == -signal.SIGKILL:
            self._outcome.ends["killed"] += 1
            return
        if code == 0:
            self._outcome.ends["stopped"] += 1
            return
        error = self._last_error()
        kind = error.partition(":")[0]
        self._outcome.ends[kind] += 1
        failed_calls = any(line.startswith("E") for line in struck)
        if kind not in _EXCUSED and not failed_calls:
            self._outcome.violations.append(f"the pipeline ended by itself: {error}")

    async def _start(self, run: Run) -> Process:
        await self._free()
        plan = self._folder / "plan.json"
        plan.write_text(
            json.dumps(
                {
                    "program": asdict(self._program),
                    "dsn": self._proxy.dsn_for(self._dsn),
                    "slot": self._slot,
                    "folder": str(self._folder),
                    "fired": str(self._folder / "fired"),
                    "arms": run.arms,
                }
            )
        )
        return self._processes.start(plan, self._folder / "stderr")

    async def _free(self) -> None:
        """Wait until the server is there and has noticed that the slot's consumer is gone."""
        async with asyncio.timeout(DEADLINE):
            while True:
                with contextlib.suppress(*_AWAY):
                    connection = await asyncpg.connect(self._server.dsn)
                    try:
                        query = "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
                        if not await connection.fetchval(query, self._slot):
                            return
                    finally:
                        connection.terminate()
                await asyncio.sleep(0.02)

    async def _strike_all(self, run: Run, process: Process) -> None:
        for kind, after, size in run.strikes:
            await asyncio.sleep(after)
            self._outcome.faults[kind] += 1
            with contextlib.suppress(*_AWAY, ProcessLookupError):
                await self._strike(kind, size, process)

    async def _strike(self, kind: str, size: float, process: Process) -> None:
        proxy = self._proxy
        if kind in ("walsender", "backends"):
            only = "AND backend_type = 'walsender'" if kind == "walsender" else ""
            connection = await asyncpg.connect(self._server.dsn)
            # The workload and the verifier have no application name of the pipeline's.
            await connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 "
                f"AND application_name LIKE 'aiorepl%' {only}",
                self._slot,
            )
            connection.terminate()
        elif kind == "cut":
            proxy.cut()
        elif kind == "cut after":
            proxy.cut_after(int(size * 20_000))
        elif kind == "drip":
            proxy.drip(int(size * 5_000))
        elif kind in ("stall", "hold", "refuse", "freeze"):
            await self._for_a_while(kind, size, process)
        elif kind == "restart":
            await asyncio.to_thread(self._server.restart)
        elif kind == "crash":
            await asyncio.to_thread(self._server.kill)
            self._last_confirmed = None
            for watch in self._watches.values():
                watch.crashed()
            await asyncio.to_thread(self._server.start)

    async def _for_a_while(self, kind: str, size: float, process: Process) -> None:
        begin, end = {
            "stall": (self._proxy.stall, self._proxy.resume),
            "hold": (self._proxy.hold, self._proxy.resume),
            "refuse": (self._proxy.refuse, self._proxy.accept),
            "freeze": (
                partial(process.send_signal, signal.SIGSTOP),
                partial(process.send_signal, signal.SIGCONT),
            ),
        }[kind]
        begin()
        try:
            await asyncio.sleep(size * 2)
        finally:
            end()

    async def _catch_up(self, workload: Workload) -> bool:
        """Run the process without faults until everything has come."""
        last = await workload.mark()
        for _ in range(_STARTS):
            process = await self._start(Run())
            try:
                async with asyncio.timeout(DEADLINE):
                    while process.returncode is None and self._missing(last):
                        await asyncio.sleep(0.02)
            except TimeoutError:
                self._outcome.violations.append(f"{', '.join(self._missing(last))} does not catch up")
                process.kill()
            process.ask_to_stop()
            self._note_end(await process.wait(), [])
            for watch in self._watches.values():
                watch.restarted()
            if not self._missing(last):
                return True
        self._outcome.violations.append(f"the process does not start again: {self._last_error()}")
        return False

    def _missing(self, last: tuple[int, int]) -> list[str]:
        return [name for name, watch in self._watches.items() if last not in watch.ledger]

    def _last_error(self) -> str:
        told = (self._folder / "stderr").read_text().splitlines()
        return told[-1][:500] if told else "it says nothing"

    async def _judge(self, workload: Workload, *, caught_up: bool) -> None:
        history, final = await workload.finish()
        for name, watch in self._watches.items():
            options = self._program.sinks.get(name, {})
            promise = replace(promised(options), defaults=workload.defaults)
            verdict = verify(history, watch.log, promise, final=None if options.get("transform") else final)
            if caught_up:
                self._outcome.violations += [f"{name}: {violation}" for violation in verdict.violations]
            if isinstance(watch, JournalWatch):
                self._outcome.violations += watch.violations
            self._outcome.transactions += verdict.transactions
            self._outcome.changes += verdict.changes
            self._outcome.duplicates += verdict.duplicates
        if self._program.pipeline["journal"]:
            damaged = await asyncio.to_thread(_problems, self._folder / "journal")
            self._outcome.violations += damaged


def promised(options: dict[str, Any]) -> Promise:
    """Return what a sink with these options is promised."""
    tables, transformed = options.get("tables"), options.get("transform")

    def expected(operation: Operation) -> Operation | None:
        if tables is not None and operation.table not in tables:
            return None
        if not transformed or operation.table != "accounts" or operation.new is None:
            return operation
        if operation.new["id"] % 2:
            return None
        return replace(operation, new={**operation.new, "note": "changed"})

    masked: dict[str, set[str]] = {}
    # The transform comes after the mask, and sets the column.
    for column in () if transformed else options.get("mask", ()):
        table, _, name = column.partition(".")
        masked.setdefault(table, set()).add(name)
    return Promise(
        repeats="faulty" in options,
        expected=expected,
        masked={table: frozenset(names) for table, names in masked.items()},
    )


def _problems(journal: Path) -> list[str]:
    from aiorepl.journal.store import LocalStore
    from aiorepl.journal.verification import problems

    return [f"the journal: {problem}" for problem in problems(LocalStore(journal))]
