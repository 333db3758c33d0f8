"""Reads the slot's state on the server and the size of the journal, which a pipeline's statistics do not include."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from aiorepl.cancellation import cancel_and_wait
from aiorepl.checked import checked
from aiorepl.durable import reason
from aiorepl.errors import AioreplError, loggable
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.pipeline import Pipeline
from aiorepl.wire.kept_connection import KeptConnection

if TYPE_CHECKING:
    from aiorepl.storage.store import Store

_log = logger("aiorepl.monitoring")

SECONDS: Final = 10.0
# The pause while nobody uses the slot, as before its creation and between connections.
_INACTIVE_SECONDS: Final = 1.0
# The journal is read less often, because an object store charges for each request.
_JOURNAL_TIMES: Final = 3
_LAST_SECONDS: Final = 10.0
_ENDED: Final = "not read any more, because the pipeline has ended"
# wal_status and safe_wal_size exist since PostgreSQL 13; to_jsonb returns NULL for a missing column. A standby writes no WAL, so its
# end of WAL is the replayed LSN.
_QUERY: Final = """
SELECT pg_catalog.to_jsonb(slot) ->> 'wal_status' AS wal_status,
       (pg_catalog.to_jsonb(slot) ->> 'safe_wal_size')::int8 AS safe_bytes,
       pg_catalog.to_jsonb(slot) ->> 'slotsync_skip_reason' AS not_synchronized, {memory_exceeded} AS memory_exceeded,
       slot.active,
       server.lsn::text AS server_lsn,
       pg_catalog.current_database()::text AS database,
       pg_catalog.current_setting('server_version') AS version,
       pg_catalog.pg_wal_lsn_diff(server.lsn, slot.restart_lsn)::int8 AS retained
  FROM (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                    ELSE pg_catalog.pg_current_wal_lsn() END AS lsn) AS server
  LEFT JOIN pg_catalog.pg_replication_slots AS slot ON slot.slot_name = $1
"""

# The view exists since PostgreSQL 14, and this column since 19.
_MEMORY_EXCEEDED: Final = (
    "(SELECT t.mem_exceeded_count FROM pg_catalog.pg_stat_replication_slots t WHERE t.slot_name = $1::text)"
)
_MEMORY_SINCE: Final = 19


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The slot on the server.

    :param server_lsn: the end of the server's WAL; ``None`` if it is unknown.
    :param retained_bytes: WAL that the slot keeps; ``None`` if the slot does not exist.
    :param safe_bytes: how much WAL can be written before the slot may be lost; ``None`` if there is no limit.
    :param wal_status: as in ``pg_replication_slots``; ``None`` before PostgreSQL 13.
    :param active: whether a consumer is connected.
    :param memory_exceeded: how often decoding needed more than ``logical_decoding_work_mem``; ``None`` before PostgreSQL 19.
    :param not_synchronized: why a standby did not synchronize the slot; ``None`` if it did, and before PostgreSQL 19.
    :param database: the database of the slot.
    :param version: the server's version.
    :param error: why the state could not be read; the other fields are then the last known ones.
    """

    server_lsn: LSN | None = None
    retained_bytes: int | None = None
    safe_bytes: int | None = None
    wal_status: str | None = None
    active: bool = False
    memory_exceeded: int | None = None
    not_synchronized: str | None = None
    error: str | None = None
    database: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The files of the journal.

    :param bytes: the size of all segments that are kept.
    :param prepared: the number of undecided prepared transactions.
    :param consumers: by name, the bytes of segments that each consumer has not read, and that are kept for it.
    :param labels: by name, what a Spark query reads and writes; empty for a sink.
    :param error: why the state could not be read; the other fields are then the last known ones.
    """

    bytes: int = 0
    prepared: int = 0
    consumers: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@checked("watch", own=("pipeline",))
class Watch:
    """Reads the slot's state from the server every few seconds, on a separate connection, and the size of the journal.

    If reading fails, it logs a warning and tries again. Enter it before the pipeline runs::

        async with aiorepl.monitoring.Watch(pipeline) as watch:
            registry.register(aiorepl.monitoring.PrometheusCollector(pipeline, watch=watch))
            await pipeline.run()

    :ivar slot: the last status of the slot; ``None`` before the first one, and for a source without a server.
    :ivar journal: the last status of the journal; ``None`` before the first one, and without a journal.
    """

    def __init__(self, pipeline: Pipeline, *, seconds: float = SECONDS) -> None:
        source = pipeline.source
        self.slot: SlotStatus | None = None
        self.journal: JournalStatus | None = None
        self._name = source.slot
        self._on_server = source.has_catalog
        self._store = pipeline.journal
        self._seconds = seconds
        self._connection = KeptConnection(source.connect_sql)
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Watch until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._on_server:
                group.create_task(self._watch_slot(), name=f"aiorepl watch of slot {self._name}")
            if self._store is not None:
                group.create_task(self._watch_journal(self._store), name="aiorepl watch of the journal")

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name=f"aiorepl watch {self._name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def end(self) -> None:
        """Look once more, after the end of the pipeline. The values then count as old."""
        if self._on_server:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._look()
            self._connection.drop()
        if self.slot is not None:
            self.slot = replace(self.slot, error=_ENDED)
        if self.journal is not None:
            self.journal = replace(self.journal, error=_ENDED)

    async def _watch_slot(self) -> None:
        try:
            while True:
                await self._look()
                active = self.slot is not None and self.slot.active
                await asyncio.sleep(self._seconds if active else min(self._seconds, _INACTIVE_SECONDS))
        finally:
            self._connection.drop()

    async def _look(self) -> None:
        try:
            since = await self._connection.server_version() >= _MEMORY_SINCE
            query = _QUERY.format(memory_exceeded=_MEMORY_EXCEEDED if since else "NULL::int8")
            row = await self._connection.fetchrow(query, self._name)
        except Exception as error:  # noqa: BLE001 - the pipeline does not depend on it
            text = loggable(error)
            before = self.slot or SlotStatus()
            if before.error is None:
                _log.warning("cannot read the state of slot %s: %s", self._name, text)
            self.slot = replace(before, error=text)
            return
        self.slot = SlotStatus(
            LSN.parse(row["server_lsn"]),
            None if row["retained"] is None else max(row["retained"], 0),
            row["safe_bytes"],
            row["wal_status"],
            bool(row["active"]),
            row["memory_exceeded"],
            row["not_synchronized"],
            database=row["database"],
            version=row["version"],
        )

    async def _watch_journal(self, store: Store) -> None:
        while True:
            try:
                self.journal = await asyncio.to_thread(_journal_status, store)
            except (AioreplError, OSError) as error:
                text = reason(error) if isinstance(error, OSError) else str(error)
                before = self.journal or JournalStatus()
                if before.error is None:
                    _log.warning("cannot read the state of journal %s: %s", store.url, text)
                self.journal = replace(before, error=text)
            await asyncio.sleep(self._seconds * (1 if self.journal is None else _JOURNAL_TIMES))


def _journal_status(store: Store) -> JournalStatus | None:
    # Imported here, because a pipeline without a journal does not need them.
    from aiorepl.journal.consumers import consumers
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    reader = JournalReader(store)
    if reader.recorded_position() is None:
        return None
    chain = reader.chain()
    found = consumers(chain, Cursors(store))
    return JournalStatus(
        chain.size_after(LSN(0)),
        len(chain.state.prepared),
        {each.name: each.held for each in found},
        labels={each.name: each.cursor.label for each in found if each.cursor is not None},
    )
