"""Runs one program: the writers, the process under test with its faults, and finally the verifier."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from aftermath import Aftermath
from broker import AWAY, Broker
from bucket import FailingLayer
from cluster import Cluster
from drawing import masks_notes
from ends import Ends
from judge import Judge
from mirrored import MirrorLives
from processes import Process, Processes
from program import QUIET, RENAMED, Program, Run
from receiver import Receiver
from renamed import RenamedColumn
from report import Outcome
from sabotage import OF_MIRRORS
from stall_timeout import stall_timeout
from starter import UNAVAILABLE, Starter
from strikes import OF_SERVERS, SECOND, Striker
from watch import BrokerWatch, JournalWatch, LettersWatch, RequestWatch, TableWatch, Watch, watches

from aiorepl import LSN, AioreplError
from aiorepl.cancellation import cancel_and_wait, detect_unexpected_cancellation
from aiorepl.journal import JournalReader
from aiorepl.journal.verification import problems
from aiorepl.storage.opening import Location
from aiorepl.verify import Mixture, Workload, tables

# Seconds without progress, while the consumers catch up and in the whole round; the number of rows that extends both by a second.
CATCHES_UP = 120.0
STALLED = 300.0
_ROWS_PER_SECOND = 2_000
# The start of a mirror's Java shows no progress, so a round with a mirror gets more seconds.
STALLED_WITH_MIRROR = 600.0
# Seconds for a round without progress, as the last resort.
LONGEST = 3600.0
# Seconds to wait for the start of a stream.
_STARTED = 10.0
# Seconds until the first rows of a snapshot are durable.
_STAYS = 120.0
# Seconds without progress of a snapshot's tables while clients wait for locks.
_TABLE_STALLED = 60.0
# Seconds without progress until a process that was asked to stop is killed.
_STOPS = 60.0
# Seconds until a broker that was started again answers.
_ANSWERS = 120.0
# How often the process may fail to start without a fault.
_STARTS = 3
# In the last life, the writers go on for at most this many seconds while tables are read again. Some chunks are delayed after they
# were read, so that the stream overtakes them.
_READING = 3.0
_OVERTAKEN = Run(tuple({"at": "name:chunk read", "nth": number, "action": "slow"} for number in (2, 4, 6, 8)))
# The least role that can read a slot and tables.
_ROLE = """
CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{role}';
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {role};
"""
# The tables that are read again, as the publication names them: without its roots, and with them.
_READ_AGAIN = {
    False: ("accounts", "entries", "parts_0", "notes"),
    True: ("accounts", "entries", "parts", "notes"),
}
_DROP_ORIGINS = (
    "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE starts_with(roname, $1)"
)
# Damages of the journal, not of the slot.
_OF_JOURNALS = ("older copy",)


class Round:
    """One program on one server, or on a primary and its standby.

    :param target: the servers of a ``postgres`` sink's target; ``None`` if it is a database of ``cluster``.
    :param layer: leads to the object store of the journal.
    :param brokers: by kind of sink; those to which the program writes.
    :param processes: starts the process under test.
    :param folder: the folder for all files of the round.
    :param sabotage: a bug to put into the process, see ``sabotage``.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        target: Cluster | None,
        layer: FailingLayer | None,
        brokers: dict[str, Broker],
        processes: Processes,
        folder: Path,
        sabotage: str | None = None,
    ) -> None:
        self._program = program
        self._cluster = cluster
        self._target_cluster = target
        self._folder = folder
        self._layer = layer
        self._brokers = brokers
        # Where the verifier reads the journal, without faults.
        self._journal: Location = folder / "journal" if layer is None else layer.location(direct=True)
        # The name of the slot, and of the database.
        self._slot = f"chaos_{program.seed}"
        self._outcome = Outcome()
        self._ends = Ends(program, folder, self._outcome)
        self._watches: dict[str, Watch] = {}
        self._receiver = Receiver(program.seed, self._received, self._struck)
        self._mirror: MirrorLives | None = None
        if program.mirror:
            self._mirror = MirrorLives(
                program.mirror,
                self._journal if layer is None else layer.location(),
                folder,
                self._struck,
                sabotage=sabotage if sabotage in OF_MIRRORS else None,
            )
        self._starter = Starter(
            program,
            cluster,
            lambda: self._target,
            layer,
            self._receiver,
            brokers,
            processes,
            folder,
            self._ends,
            sabotage,
        )
        self._striker = Striker(
            cluster,
            target,
            layer,
            self._slot,
            _READ_AGAIN[program.published.roots],
            [*brokers.values()],
            self._forget,
            self._struck,
            self._starter.run_second,
        )
        self._connections: dict[str, Any] = {}
        self._workload: Workload | None = None
        self._confirmed: LSN | None = None
        self._last_told: dict[str, Any] = {}
        self._left: list[tuple[str, float, float]] = []
        self._longer = program.mixture.get("rows", 0) / _ROWS_PER_SECOND
        # Whether the writers may write.
        self._writing = not self._snapshot
        # If the power fails, only from the last life on.
        self._looking = not program.power

    async def run(self) -> Outcome:
        """Run the program, and drop everything that it created on the server."""
        began = time.monotonic()
        try:
            most = STALLED if self._mirror is None else STALLED_WITH_MIRROR
            async with (
                stall_timeout(LONGEST + self._longer),
                stall_timeout(most + self._longer, self._progress),
            ):
                await self._run()
        except TimeoutError:
            seconds = time.monotonic() - began
            self._outcome.violations.append(f"the round stalls; it was ended after {seconds:.0f} s")
        except (ValueError, AioreplError) as error:
            # The files on disk cannot be read.
            self._outcome.violations.append(f"the round ends with {type(error).__name__}: {error}")
        finally:
            if self._mirror is not None:
                await asyncio.to_thread(self._mirror.close)
        if self._layer is not None:
            self._outcome.faults += self._layer.struck
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    async def _run(self) -> None:
        (self._folder / "stderr").touch()
        await self._receiver.listener.listen()
        target = contextlib.nullcontext() if self._target_cluster is None else self._target_cluster
        async with self._cluster, target, self._reached(), self._database():
            workload = self._workload = Workload(
                self._dsn,
                seed=self._program.seed,
                writers=self._program.writers,
                mixture=Mixture(
                    **self._program.mixture, messages=self._program.source.get("messages", False)
                ),
            )
            with self._outcome.timed("tables"):
                await workload.create()
                await self._prepare()
            watching = [asyncio.create_task(self._reported(self._poll()))]
            watching += [
                asyncio.create_task(watch.follow())
                for watch in self._watches.values()
                if isinstance(watch, JournalWatch) and self._looking
            ]
            if self._mirror is not None:
                watching.append(asyncio.create_task(self._reported(self._mirror.run())))
            try:
                async with workload:
                    if self._snapshot:
                        workload.pause()
                        watching.append(
                            asyncio.create_task(self._reported(self._resume_with_first_rows(workload)))
                        )
                    for number, run in enumerate(self._program.runs):
                        # Otherwise most changes would be written in the first lives.
                        lives = len(self._program.runs) + 1
                        workload.limit = self._program.limit * (number + 1) // lives
                        await self._live(run)
                        if not number and "older copy" in self._program.aftermath:
                            await Aftermath.copy(self._folder)
                    workload.limit = self._program.limit
                    with self._outcome.timed("the consumers catch up"):
                        caught_up = await self._catch_up(workload, watching)
                if self._mirror is not None and caught_up:
                    with self._outcome.timed("the mirror catches up"):
                        await self._mirror.finish()
            finally:
                await cancel_and_wait(*watching)
            if caught_up:
                judge = Judge(
                    self._program,
                    self._folder,
                    self._journal,
                    self._target,
                    self._watches,
                    self._mirror,
                    self._outcome,
                )
                with self._outcome.timed("judgement"):
                    await judge.judge(await workload.finish(promoted=self._program.promotes))
                self._outcome.violations += self._cluster.executed(self._slot)
                if self._program.aftermath and not self._outcome.violations:
                    with self._outcome.timed("aftermath"):
                        await self._aftermath(workload)
        self._receiver.listener.close()
        self._receiver.listener.cancel()
        await self._receiver.listener.closed()

    async def _aftermath(self, workload: Workload) -> None:
        """Damage the slot or the journal, see ``aftermath``."""
        damage, remedy = self._program.aftermath
        if damage == RENAMED:
            self._outcome.faults[f"a masked column renamed: {remedy}"] += 1
            await self._rename_column(remedy)
            return
        self._outcome.faults[damage if damage in _OF_JOURNALS else f"slot: {damage}"] += 1
        aftermath = Aftermath(
            self._cluster,
            self._slot,
            self._folder,
            self._journal,
            self._watches,
            partial(self._starter.start, Run()),
            self._ends.last_error,
            self._forget,
            self._program.published,
        )
        await aftermath.run(damage, remedy, workload)
        self._outcome.violations += aftermath.violations

    async def _rename_column(self, way: str) -> None:
        """Rename a masked column, see ``renamed``."""
        self._forget_told()
        stop = [name for name, sink in self._program.sinks.items() if masks_notes(sink)]
        renamed = RenamedColumn(
            self._dsn,
            [self._watches[name] for name in stop],
            partial(self._starter.start, Run()),
            lambda: bool(self._told().get("started")),
            bool(self._program.pipeline["journal"]) and len(stop) < len(self._program.sinks),
            lambda: "remark" in (self._folder / "stderr").read_text(),
            self._ends.last_error,
        )
        await renamed.run(way)
        self._outcome.violations += renamed.violations

    @property
    def _dsn(self) -> str:
        return self._cluster.dsn_for(self._slot)

    @property
    def _target(self) -> str:
        return (self._target_cluster or self._cluster).dsn_for(f"{self._slot}_target")

    @property
    def _snapshot(self) -> bool:
        return bool(self._program.pipeline.get("snapshot"))

    @property
    def _databases(self) -> list[str]:
        """The databases on the program's server."""
        here = self._has_target and self._target_cluster is None
        return [self._slot, f"{self._slot}_target"] if here else [self._slot]

    @property
    def _has_target(self) -> bool:
        return any(sink["type"] == "postgres" for sink in self._program.sinks.values())

    @contextlib.asynccontextmanager
    async def _reached(self) -> AsyncIterator[None]:
        """Open the ways to the brokers."""
        async with contextlib.AsyncExitStack() as stack:
            for broker in self._brokers.values():
                await stack.enter_async_context(broker)
            for name, sink in self._program.sinks.items():
                if sink["type"] in self._brokers:
                    await self._brokers[sink["type"]].prepare(name, sink)
            yield

    @contextlib.asynccontextmanager
    async def _database(self) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self._cluster.dsn_for())
        for name in self._databases:
            await connection.execute(f"CREATE DATABASE {name}")
        await connection.execute(f"ALTER DATABASE {self._slot} SET wal_sender_timeout = '900ms'")
        connection.terminate()
        if self._target_cluster is not None:
            connection = await asyncpg.connect(self._target_cluster.dsn_for())
            await connection.execute(f"CREATE DATABASE {self._slot}_target")
            connection.terminate()
        try:
            yield
        finally:
            for connection in self._connections.values():
                connection.terminate()
            if not self._program.standby:
                with self._outcome.timed("databases are dropped"):
                    await self._drop()

    async def _drop(self) -> None:
        await self._starter.free()
        connection = await asyncpg.connect(self._cluster.dsn_for())
        terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE $1 || '%'"
        await connection.fetch(terminate, self._slot)
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1"
        await connection.fetch(drop, self._slot)
        for name in self._databases:
            await connection.execute(f"DROP DATABASE {name}")
        if self._program.role:
            await connection.execute(f"DROP ROLE {self._slot}")
        await connection.fetch(_DROP_ORIGINS, f"{tables.SCHEMA}_{self._program.seed}_")
        connection.terminate()

    async def _prepare(self) -> None:
        """Publish the tables, create the slot and the target, and begin to watch."""
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(self._program.published.create("verify", tables.SCHEMA))
        if self._program.role:
            await connection.execute(_ROLE.format(role=self._slot, schema=tables.SCHEMA))
        if not self._snapshot:
            source = self._program.source
            two_phase = f", false, {source.get('two_phase', False)}" if self._program.version >= 14 else ""
            failover = ", true" if source.get("failover") else ""
            create = f"SELECT pg_create_logical_replication_slot($1, 'pgoutput'{two_phase}{failover})"
            await connection.fetch(create, self._slot)
        connection.terminate()
        if self._has_target:
            target = await asyncpg.connect(self._target)
            rows = 0 if self._snapshot else self._program.mixture["keys"]
            mixture = self._program.mixture
            created = tables.create(
                rows=rows,
                generated=mixture.get("generated", False),
                guests=self._program.writers if mixture.get("guests") else 0,
                traps=mixture.get("traps", False),
            )
            await target.execute(created)
            target.terminate()
        self._watches |= watches(
            self._program, self._folder, self._journal, self._confirmation, self._slot_stays, self._brokers
        )

    @property
    def _receivers(self) -> list[Watch]:
        """The logs that get every transaction."""
        return [watch for watch in self._watches.values() if not isinstance(watch, LettersWatch)]

    def _slot_stays(self) -> bool:
        """Whether the slot must be kept: once the writers write, a new slot could miss changes."""
        return self._writing

    def _confirmation(self) -> LSN | None:
        return self._confirmed

    def _forget(self) -> None:
        self._confirmed = None
        for watch in self._watches.values():
            watch.crashed()

    def _progress(self) -> object:
        """Return a state that changes with each progress of the round. Retries, which may repeat for ever, do not change it."""
        return (
            [watch.progress for watch in self._watches.values()],
            None if self._workload is None else self._workload.changes,
            self._outcome.faults.total(),
            self._outcome.ends.total(),
            self._told().get("tables"),
            None if self._mirror is None else self._mirror.progress,
        )

    def _struck(self, fault: str) -> None:
        self._outcome.faults[fault] += 1

    def _received(self, name: str, lines: list[bytes]) -> None:
        watch = self._watches[name]
        assert isinstance(watch, RequestWatch)
        watch.received(lines)

    async def _reported(self, watching: Coroutine[Any, Any, None]) -> None:
        """Report the error of a background task as a violation. Otherwise the consumers would seem to lack all later changes."""
        try:
            await detect_unexpected_cancellation(watching)
        except Exception as error:  # noqa: BLE001 - every error is reported
            with (self._folder / "tracebacks").open("a") as file:
                traceback.print_exception(error, file=file)
            self._outcome.violations.append(
                f"a background task of the suite failed: {type(error).__name__}: {error}"
            )

    async def _poll(self) -> None:
        """Poll the slot's position, and after it the durable contents of the sinks."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
        task = asyncio.current_task()
        assert task is not None
        # A client may translate the cancellation to an error of its own.
        while not task.cancelling():
            with contextlib.suppress(*UNAVAILABLE, *self._away):
                async with self._striker.restarting:
                    text = await (await self._connected(self._dsn)).fetchval(query, self._slot)
                    self._confirmed = None if text is None else LSN.parse(text)
                    for watch in self._watches.values() if self._looking else ():
                        watch.look()
                    for watch in self._watches.values():
                        if isinstance(watch, TableWatch):
                            await watch.poll(await self._connected(self._target))
                        elif isinstance(watch, BrokerWatch) and self._looking:
                            await watch.poll()
            await asyncio.sleep(0.03)

    @property
    def _away(self) -> tuple[type[Exception], ...]:
        """The errors of the suite's own calls while a broker is away."""
        return (*AWAY, *(error for broker in self._brokers.values() for error in broker.away))

    async def _connected(self, dsn: str) -> Any:
        connection = self._connections.get(dsn)
        if connection is None or connection.is_closed():
            connection = self._connections[dsn] = await asyncpg.connect(dsn)
        return connection

    async def _resume_with_first_rows(self, workload: Workload) -> None:
        """Let the writers write once the slot will not be dropped again."""
        while not self._told().get("stays"):
            await asyncio.sleep(0.01)
        self._writing = True
        workload.resume()

    def _forget_told(self) -> None:
        (self._folder / "told.json").unlink(missing_ok=True)
        self._last_told = {}

    def _told(self) -> dict[str, Any]:
        """Return the state that the process reports."""
        try:
            self._last_told = json.loads((self._folder / "told.json").read_text())
        except FileNotFoundError:
            self._last_told = {}
        except ValueError:
            pass  # the file is being written: an empty state would look like progress
        return self._last_told

    async def _live(self, run: Run) -> None:
        """Run the process once, with its faults."""
        fired = self._folder / "fired"
        before = fired.stat().st_size if fired.exists() else 0
        self._forget_told()
        timed = self._outcome.timed
        with timed("life: the slot is free"):
            process = await self._start(run)
        # Programs that lock tables during the snapshot do so once the writers may write.
        early = self._program.mixture.get("early") and run is self._program.runs[0]
        awaited, seconds = ("stays", _STAYS) if early else ("started", _STARTED)
        deadline = time.monotonic() + seconds
        with timed("life: the stream starts"):
            while run.waits and process.returncode is None and time.monotonic() < deadline:
                if self._told().get(awaited):
                    break
                await asyncio.sleep(0.02)
        if early:
            with timed("life: the snapshot"):
                await self._require_progress(process)
        striking = asyncio.create_task(self._strike_all(run, process))
        ended = asyncio.create_task(process.wait())
        with timed("life: faults"):
            await asyncio.wait({ended}, timeout=run.seconds)
        with timed("life: more faults"):
            kinds = await striking
        with timed("life: end"):
            if not ended.done():
                await self._end(run, process, ended)
            process.ask_to_stop()
            code = await ended
        struck = fired.read_text()[before:].splitlines() if fired.exists() else []
        self._outcome.faults.update(struck)
        self._ends.note(code, struck, fenced=SECOND in kinds)
        with timed("life: logs are read"):
            await self._note_restart()
        with timed("life: the journal is verified"):
            await self._verify_journal()

    async def _start(self, run: Run) -> Process:
        """Start the process. What its predecessor had sent to a broker may have arrived since the predecessor ended."""
        await self._starter.free()
        for watch in self._watches.values():
            if isinstance(watch, BrokerWatch):
                await self._poll_again(watch)
                watch.restarted()
        return await self._starter.start(run)

    async def _note_restart(self) -> None:
        """Tell the logs that the process has ended."""
        for watch in self._watches.values():
            if isinstance(watch, BrokerWatch):
                await self._poll_again(watch)
            watch.restarted()

    async def _poll_again(self, watch: BrokerWatch) -> None:
        """Read all data that a broker has stored from ended processes. The broker may just have been started."""
        async with stall_timeout(_ANSWERS):
            await watch.emptied()
            while True:
                with contextlib.suppress(*self._away):
                    await watch.poll()
                    return
                await asyncio.sleep(0.1)

    async def _require_progress(self, process: Process) -> None:
        """Wait until all tables of a snapshot were read. Clients wait for locks of them, and must not make the snapshot wait for ever."""
        states = dict[str, str]()
        try:
            async with stall_timeout(_TABLE_STALLED, lambda: states):
                while process.returncode is None and not (states and set(states.values()) <= {"complete"}):
                    # The file has no tables while it is being written.
                    states = self._told().get("tables", states)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self._outcome.violations.append("the snapshot stalls while clients wait for locks")

    async def _verify_journal(self) -> None:
        """Verify every file of the journal, as the end of a process has left them."""
        reader = JournalReader(self._journal)
        if (
            self._program.pipeline["journal"]
            and await asyncio.to_thread(reader.recorded_position) is not None
        ):
            found = await asyncio.to_thread(list, problems(self._journal))
            self._outcome.violations += [f"the journal after an end: {problem}" for problem in found]

    async def _end(self, run: Run, process: Process, ended: asyncio.Task[int]) -> None:
        if run.end == "kill":
            self._outcome.faults["kill at random"] += 1
            process.kill()
            return
        self._outcome.faults["stop under load"] += 1
        process.ask_to_stop()
        with contextlib.suppress(TimeoutError):
            async with stall_timeout(_STOPS, self._progress):
                await asyncio.wait({ended})
        if not ended.done():
            self._outcome.violations.append("the process does not stop when it is asked to")
            process.kill()

    async def _strike_all(self, run: Run, process: Process) -> set[str]:
        """Strike while the process runs, and return the kinds of faults.

        Faults that are left when the process ends strike the next process.
        """
        struck: set[str] = set()
        if run == QUIET:
            return struck
        strikes, self._left = [*self._left, *run.strikes], []
        for kind, after, size in strikes:
            if process.returncode is None:
                await asyncio.sleep(after)
            if process.returncode is not None and kind not in OF_SERVERS:
                self._left.append((kind, after, size))
                continue
            struck.add(kind)
            with contextlib.suppress(*UNAVAILABLE, ProcessLookupError), self._outcome.timed(f"fault: {kind}"):
                await self._striker.strike(kind, size, process)
        return struck

    async def _catch_up(self, workload: Workload, watching: list[asyncio.Task[None]]) -> bool:
        """Run the process without faults until everything is delivered."""
        self._receiver.failing = False
        if self._layer is not None:
            self._layer.failing = False
        if not self._looking:
            self._looking = True
            watching += [
                asyncio.create_task(watch.follow())
                for watch in self._watches.values()
                if isinstance(watch, JournalWatch)
            ]
        last = (0, 0)
        for _ in range(_STARTS):
            process = await self._start(_OVERTAKEN)
            try:
                async with stall_timeout(CATCHES_UP + self._longer, self._progress):
                    while not workload.running and process.returncode is None:
                        await asyncio.sleep(0.02)
                    if "late standby" in self._program.aftermath and not self._cluster.held_back:
                        if self._program.source.get("failover"):
                            # Only while the slot is in use.
                            await self._cluster.synchronized(self._slot)
                        await self._cluster.hold_back()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_READING):
                            await self._read_tables(process)
                    if workload.running:
                        await self._receive(process, await workload.mark())
                        await self._read_tables(process)
                        # The snapshots' rows came after the first mark.
                        last = await workload.mark()
                        await self._receive(process, last)
            except TimeoutError:
                self._outcome.violations.append("the consumers do not catch up")
                process.kill()
            process.ask_to_stop()
            self._ends.note(await process.wait(), [])
            await self._note_restart()
            if all(last in watch.ledger for watch in self._receivers):
                return True
        self._outcome.violations.append(f"the process does not start again: {self._ends.last_error()}")
        return False

    async def _receive(self, process: Process, mark: tuple[int, int]) -> None:
        """Wait until all consumers have a transaction, or the process has ended."""
        while process.returncode is None and any(mark not in watch.ledger for watch in self._receivers):
            await asyncio.sleep(0.02)

    async def _read_tables(self, process: Process) -> None:
        """Wait until all snapshots that were begun are complete."""
        self._forget_told()
        while process.returncode is None and not self._program.pipeline.get("connect"):
            if told := self._told():
                states = told["tables"]
                failed = [table for table, state in states.items() if state in ("failed", "cancelled")]
                # Without memory, any error may come.
                if failed and "memory" not in self._program.limits:
                    self._outcome.violations.append(f"tables were not read: {', '.join(failed)}")
                if failed or set(states.values()) <= {"complete"}:
                    return
            await asyncio.sleep(0.05)
