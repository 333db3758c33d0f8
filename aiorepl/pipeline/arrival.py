"""Waits until sinks of a running pipeline have made everything up to an LSN durable, seen from another process.

The slot's confirmed LSN is that of the journal; without a journal, that of the slowest sink. A sink of a journal has a cursor, and cursors
stop only at the ends of segments. So a sink with its cursor at the journal's end has everything up to the slot's LSN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiorepl.errors import AioreplError
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.source.source import Source
from aiorepl.storage.store import Store
from aiorepl.wire.opening import ANSWER_SECONDS, ASYNCPG_ERRORS, translated
from aiorepl.wire.slot_position import poller

_log = logger("aiorepl.wait")

_POLL_SECONDS: Final = 0.5
# How long a slot may be unused, as during a restart of the pipeline, before the log says so.
_UNUSED_SECONDS: Final = 10.0

# A heartbeat (``source.heartbeat``), which no sink receives. Only a commit with an xid flushes WAL, and the server sends only
# flushed WAL. A standby writes no WAL.
_MARK: Final = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_logical_emit_message(false, 'aiorepl', '') END::text AS lsn,
       CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.txid_current() END::text AS xid
"""
_SLOT: Final = """
SELECT confirmed_flush_lsn::text AS confirmed, active OR {poller} IS NOT NULL AS active FROM pg_catalog.pg_replication_slots
 WHERE slot_name = $1 AND database = pg_catalog.current_database()
"""


class NotReached(AioreplError):
    """The time was up before the sinks had everything up to the LSN."""


@dataclass
class Arrival:
    """A wait for sinks of one pipeline.

    :param journal: the pipeline's journal; ``None`` if its sinks read the slot.
    :param ledger: the folder of the chunk ledger of snapshots; ``None`` if there are no snapshots.
    :ivar waiting_for: a text for people: the reason why the wait has not ended.
    """

    source: Source
    journal: Store | None
    ledger: Store | None
    sinks: Sequence[str]
    waiting_for: str = field(default="the server", init=False)
    _unused_since: float | None = field(default=None, init=False)

    async def wait(self, lsn: LSN | None, timeout: float | None = None) -> LSN:
        """Wait until all of the sinks have everything up to ``lsn`` durable.

        :param lsn: an LSN of the source; ``None`` for the end of its WAL now.
        :param timeout: in seconds; ``None`` waits for ever.
        :returns: the LSN.
        :raises NotReached: the time is up.
        :raises ConnectionFailed, ConnectionLost, ServerError: the source cannot be asked.
        :raises JournalError: the journal or a cursor is damaged.
        """
        connection = await self.source.connect_sql()
        try:
            async with asyncio.timeout(timeout) as limit:
                return await self._wait(connection, lsn)
        except TimeoutError:
            if not limit.expired():
                raise
            raise NotReached(f"the time is up: {self.waiting_for}") from None
        except ASYNCPG_ERRORS as error:
            raise translated(error) from None
        finally:
            connection.terminate()

    async def _wait(self, connection: Any, lsn: LSN | None) -> LSN:
        wanted = target = await _mark(connection) if lsn is None else lsn
        begun = LSN(0) < await self._confirmed(connection) < target
        settled = self.ledger is None or (begun and await self._unfinished() is None)
        while True:
            await self._stream(connection, target)
            if await self._tables(connection):
                settled = False
            if settled:
                break
            # The rows of tables have later LSNs than ``target``. A new slot may also begin after ``target``, before there is a
            # ledger. The new mark is after all of these rows.
            settled, target = True, max(target, await _mark(connection))
        while (missing := await self._missing(target)) is not None:
            await self._pause(connection, missing)
        return wanted

    async def _stream(self, connection: Any, target: LSN) -> None:
        """Wait until the slot is confirmed up to ``target``."""
        while (confirmed := await self._confirmed(connection)) < target:
            what = "the sinks have" if self.journal is None else "the journal has"
            self._waits(f"{what} everything up to {confirmed}, {target - confirmed} bytes before {target}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _tables(self, connection: Any) -> bool:
        """Wait until snapshots have read all their tables. Return whether they had not read all of them before."""
        waited = False
        while (missing := await self._unfinished()) is not None:
            waited = True
            await self._pause(connection, missing)
        return waited

    async def _pause(self, connection: Any, reason: str) -> None:
        self._waits(reason)
        await asyncio.sleep(_POLL_SECONDS)
        await self._confirmed(connection)

    async def _confirmed(self, connection: Any) -> LSN:
        """Return the slot's LSN; wait for a slot that does not exist yet, and say so if no pipeline reads it."""
        clock = asyncio.get_running_loop().time
        query = _SLOT.format(poller=poller(self.source.slot))
        while True:
            row = await connection.fetchrow(query, self.source.slot, timeout=ANSWER_SECONDS)
            if row is not None and row["active"]:
                self._unused_since = None
            elif self._unused_since is None:
                self._unused_since = clock()
            elif clock() - self._unused_since >= _UNUSED_SECONDS:
                state = "does not exist in this database" if row is None else "is not in use"
                _log.warning("slot %s %s: check that the pipeline runs", self.source.slot, state)
                self._unused_since = clock()
            if row is not None:
                return LSN.parse(row["confirmed"] or "0/0")
            self._waits(f"slot {self.source.slot} does not exist yet")
            await asyncio.sleep(_POLL_SECONDS)

    async def _missing(self, target: LSN) -> str | None:
        """Say which sink of a journal lacks changes before ``target``; ``None`` if no sink does."""
        if self.journal is None:
            return None
        end, cursors = await asyncio.to_thread(_positions, self.journal, self.sinks)
        if end is None:
            return "there is no journal yet"
        for name, cursor in cursors.items():
            if cursor is None:
                return f"sink {name} has not begun"
            if cursor < (reached := min(target, end)):
                return f"sink {name} has everything up to {cursor}, {reached - cursor} bytes before {reached}"
        return None

    async def _unfinished(self) -> str | None:
        """Say which table a snapshot still reads; ``None`` if there is none."""
        if self.ledger is None:
            return None
        ledger = await LedgerFile(self.ledger, self.source.slot).read()
        if ledger is None or not (unfinished := ledger.unfinished):
            return None
        return f"the snapshot still reads {unfinished[0].schema}.{unfinished[0].name}"

    def _waits(self, reason: str) -> None:
        self.waiting_for = reason


async def _mark(connection: Any) -> LSN:
    """Return an LSN after everything that has committed."""
    row = await connection.fetchrow(_MARK, timeout=ANSWER_SECONDS)
    return LSN.parse(row["lsn"])


def _positions(journal: Store, sinks: Sequence[str]) -> tuple[LSN | None, dict[str, LSN | None]]:
    reader, cursors = JournalReader(journal), Cursors(journal)
    if reader.recorded_position() is None:
        return None, {}
    # Read the end before the cursors: a sink at this end has everything that the slot had confirmed earlier.
    end = reader.end().lsn
    found = {name: cursors.read(name) for name in sinks}
    return end, {name: None if each is None else each.position.lsn for name, each in found.items()}
