"""Damages the slot or the journal at the end of a program; the next start must be refused with the reason.

Once the round is judged, the clients write more changes. Then the slot is dropped, moved, created again or loses its WAL, the
journal's folder is replaced by an older copy, or a standby is promoted that lacks the slot or the last transactions. The next start
must end with an error that names the slot or the journal, and deliver nothing. A start with ``resnapshot`` or ``accept_gap`` must then continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
from cluster import Cluster
from processes import Process
from stall_timeout import stall_timeout
from watch import JournalWatch, LettersWatch, RequestWatch, TableWatch, Watch

from aiorepl import LSN, errors
from aiorepl.cancellation import cancel_and_wait
from aiorepl.journal import JournalReader
from aiorepl.storage.opening import Location
from aiorepl.verify import (
    Delivered,
    History,
    Promise,
    Publication,
    Workload,
    verify,
)
from aiorepl.verify.tables import SCHEMA, contents

DAMAGES = ("drop", "advance", "recreate", "invalidate", "older copy")
# Promotions of a standby that lacks the slot, or the last transactions.
PROMOTIONS = ("promotion", "late standby")
REMEDIES = ("resnapshot", "accept_gap")
# Seconds for a refusal, and for the start that continues.
_REFUSED = 60.0
_GOES_ON = 60.0
_REFUSALS = (errors.SlotError, errors.JournalError, errors.ConfigurationError)


class Aftermath:
    """The damage to a round's slot or journal, and how the pipeline continues.

    :param journal: where the journal is.
    :param start: starts the process with further options of ``Pipeline``.
    :param last_error: returns the last error of a process.
    :param forget: called while no server answers.
    :param published: what the process can get.
    """

    def __init__(
        self,
        cluster: Cluster,
        slot: str,
        folder: Path,
        journal: Location,
        watches: dict[str, Watch],
        start: Callable[[dict[str, Any]], Awaitable[Process]],
        last_error: Callable[[], str],
        forget: Callable[[], None],
        published: Publication,
    ) -> None:
        self._published = published
        self.violations: list[str] = []
        self._cluster = cluster
        self._forget = forget
        self._dsn = cluster.dsn_for(slot)
        self._slot = slot
        self._folder = folder
        self._journal = journal
        self._watches = watches
        self._start = start
        self._last_error = last_error

    @staticmethod
    async def copy(folder: Path) -> None:
        """Copy the journal, if there is one, while no process runs."""
        if await asyncio.to_thread((folder / "journal" / "position.json").exists):
            await asyncio.to_thread(shutil.copytree, folder / "journal", folder / "copy", dirs_exist_ok=True)

    async def run(self, damage: str, remedy: str, workload: Workload) -> None:
        """Damage it, require the refusal, and continue."""
        await workload.mark()
        if not await self._damage(damage):
            return
        seen = self._seen()
        process = await self._start({})
        await self._ended(process, _REFUSED)
        process.kill()
        if process.returncode != 1:
            self.violations.append(f"after the damage {damage!r}, a start was not refused")
            return
        error = self._last_error()
        kind = getattr(errors, error.partition(":")[0], object)
        if not issubclass(kind, _REFUSALS) or not (self._slot in error or "journal" in error):
            self.violations.append(f"the refusal after the damage {damage!r} is not clear: {error}")
        if self._seen() != seen:
            self.violations.append(f"after the damage {damage!r}, changes were delivered before the refusal")
        await self._go_on(damage, remedy, workload)

    def _seen(self) -> list[int]:
        """Return how many changes each sink has."""
        seen = []
        for watch in self._watches.values():
            if not isinstance(watch, JournalWatch):
                watch.look()
                seen.append(sum(isinstance(entry, Delivered) for entry in watch.log))
        return seen

    async def _ended(self, process: Process, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with stall_timeout(seconds):
                await process.wait()

    async def _damage(self, damage: str) -> bool:
        """Damage the slot or the journal. Return whether that was possible."""
        if damage == "older copy":
            return await self._replace_journal()
        if damage in PROMOTIONS:
            await self._promote(damage)
            return True
        connection = await asyncpg.connect(self._dsn)
        try:
            if damage == "invalidate":
                await self._invalidate(connection)
            elif damage == "advance":
                move = "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())"
                await connection.fetch(move, self._slot)
            else:
                await connection.fetch("SELECT pg_drop_replication_slot($1)", self._slot)
            if damage == "recreate":
                create = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')"
                await connection.fetch(create, self._slot)
        finally:
            connection.terminate()
        return True

    async def _promote(self, damage: str) -> None:
        if damage == "promotion":
            await self._cluster.caught_up()
        await self._cluster.promote(self._forget)
        # Otherwise the start is refused, because new transactions would get the LSNs of lost ones.
        found = await asyncio.to_thread(JournalReader(self._journal).position)
        await self._cluster.skip_wal(LSN(0) if found is None else found.lsn)

    async def _replace_journal(self) -> bool:
        journal, copy = self._folder / "journal", self._folder / "copy"
        if not copy.exists():
            return False
        connection = await asyncpg.connect(self._dsn)
        confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
        slot = LSN.parse(await connection.fetchval(confirmed, self._slot))
        connection.terminate()
        position = JournalReader(copy).position()
        if position is None or position.lsn >= slot:
            return False
        await asyncio.to_thread(shutil.rmtree, journal)
        await asyncio.to_thread(copy.rename, journal)
        return True

    async def _invalidate(self, connection: Any) -> None:
        """Let the slot lose WAL that it needs."""
        async with self._setting(connection, "max_slot_wal_keep_size", "1MB"):
            for _ in range(3):
                await connection.execute(f"INSERT INTO {SCHEMA}.ledger VALUES (-1, 0)")
                await connection.execute(f"DELETE FROM {SCHEMA}.ledger WHERE writer = -1")
                await connection.fetch("SELECT pg_switch_wal()")
            await connection.execute("CHECKPOINT")

    @contextlib.asynccontextmanager
    async def _setting(self, connection: Any, name: str, value: str) -> AsyncIterator[None]:
        await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await connection.fetch("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            await connection.execute(f"ALTER SYSTEM RESET {name}")
            await connection.fetch("SELECT pg_reload_conf()")

    async def _go_on(self, damage: str, remedy: str, workload: Workload) -> None:
        """Start with the remedy, and wait until new changes have arrived in every sink."""
        position = await asyncio.to_thread(JournalReader(self._journal).position)
        after = LSN(0) if position is None else position.lsn
        watch = JournalWatch(lambda: None, self._journal, lambda: True)
        self._watches["the journal"] = watch
        connection = await asyncpg.connect(self._dsn)
        initial = await contents(connection)
        if (damage, remedy) == ("invalidate", "accept_gap"):
            # As the error of the refused start says.
            await connection.fetch("SELECT pg_drop_replication_slot($1)", self._slot)
        # A late standby may lack the end of a prepared transaction, and the creation of a slot waits for it.
        ours = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        for (gid,) in await connection.fetch(ours):
            await connection.execute(f"ROLLBACK PREPARED '{gid}'")
        connection.terminate()
        process = await self._start({remedy: True, "create_slot": True})
        following = asyncio.create_task(watch.follow(after))
        try:
            async with stall_timeout(_GOES_ON, lambda: [one.progress for one in self._watches.values()]):
                marks: list[tuple[int, int]] = []
                # The first ones may be written before the slot exists.
                while process.returncode is None and not self._arrived(marks):
                    marks.append(await workload.mark())
                    await self._wait(marks[-1], process)
                # A mark may come with the rows of its table, before those of others.
                marks = [await workload.mark()]
                while process.returncode is None and not self._arrived(marks):
                    await self._wait(marks[-1], process)
        except TimeoutError:
            self.violations.append(f"after the damage {damage!r}, nothing arrives with {remedy}")
        finally:
            process.ask_to_stop()
            await self._ended(process, _REFUSED)
            process.kill()
            await cancel_and_wait(following)
        if process.returncode:
            self.violations.append(
                f"after the damage {damage!r}, the start with {remedy} ends: {self._last_error()}"
            )
        self.violations += watch.violations
        if remedy == "resnapshot" and not self.violations:
            history = await workload.finish(promoted=damage in PROMOTIONS)
            self._compare(self._published.history(replace(history, initial=initial)), watch)

    def _compare(self, history: History, watch: Watch) -> None:
        """Compare the rows that were read again, and the changes after them.

        Marks that did not come in the stream must be among the rows.
        """
        streamed = {entry.xid for entry in watch.log if isinstance(entry, Delivered)}
        marks = [one for one in history.transactions if one.writer == 0]
        history.transactions = [one for one in marks if one.xid in streamed]
        for one in marks:
            if one.xid not in streamed and one.outcome == "committed":
                key = one.writer, one.number
                history.initial["ledger"][key] = dict(zip(("writer", "number"), key, strict=True))
        promise = Promise(snapshot=True, defaults=history.defaults)
        verdict = verify(history, watch.log, promise, final=history.final)
        self.violations += [f"the journal after a new snapshot: {text}" for text in verdict.violations]

    def _arrived(self, marks: list[tuple[int, int]]) -> bool:
        return bool(marks) and all(marks[-1] in watch.ledger for watch in self._receivers)

    @property
    def _receivers(self) -> list[Watch]:
        kinds = (LettersWatch, TableWatch)
        return [watch for watch in self._watches.values() if not isinstance(watch, kinds)]

    async def _wait(self, mark: tuple[int, int], process: Process) -> None:
        for _ in range(40):
            for watch in self._receivers:
                if not isinstance(watch, (JournalWatch, RequestWatch)):
                    watch.look()
            if process.returncode is not None or self._arrived([mark]):
                return
            await asyncio.sleep(0.05)
