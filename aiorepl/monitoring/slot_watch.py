"""Reads the slot's state from the server: how much WAL it keeps, and the server's position."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Final

from aiorepl.errors import AioreplError
from aiorepl.lsn import LSN
from aiorepl.source.source import Source
from aiorepl.wire.kept_connection import KeptConnection

_log = logging.getLogger("aiorepl.monitoring")

SECONDS: Final = 10.0
# wal_status and safe_wal_size exist since PostgreSQL 13; to_jsonb reads the columns that exist. A standby replays WAL and writes
# none.
_QUERY: Final = """
SELECT pg_catalog.to_jsonb(slot) ->> 'wal_status' AS wal_status,
       (pg_catalog.to_jsonb(slot) ->> 'safe_wal_size')::int8 AS safe_bytes,
       slot.active,
       server.lsn::text AS server_lsn,
       pg_catalog.pg_wal_lsn_diff(server.lsn, slot.restart_lsn)::int8 AS retained
  FROM (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                    ELSE pg_catalog.pg_current_wal_lsn() END AS lsn) AS server
  LEFT JOIN pg_catalog.pg_replication_slots AS slot ON slot.slot_name = $1
"""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The slot on the server.

    :param server_lsn: the end of the server's WAL; ``None`` if it is unknown.
    :param retained_bytes: WAL that the slot keeps; ``None`` if the slot does not exist.
    :param safe_bytes: how much WAL can be written before the slot may be lost; ``None`` if there is no limit.
    :param wal_status: as in ``pg_replication_slots``; ``None`` before PostgreSQL 13.
    :param active: whether a consumer is connected.
    :param error: why the state could not be read; the other fields are then the last known ones.
    """

    server_lsn: LSN | None = None
    retained_bytes: int | None = None
    safe_bytes: int | None = None
    wal_status: str | None = None
    active: bool = False
    error: str | None = None


class SlotWatch:
    """Reads a slot's status every few seconds, on a separate connection. Never fails.

    :ivar status: the last status; ``None`` before the first one.
    """

    def __init__(self, source: Source, *, seconds: float = SECONDS) -> None:
        self.status: SlotStatus | None = None
        self._slot = source.slot
        self._seconds = seconds
        self._connection = KeptConnection(source.connect_sql)

    async def run(self) -> None:
        """Watch until this is cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._seconds)
        finally:
            self._connection.drop()

    async def _look(self) -> None:
        try:
            row = await self._connection.fetchrow(_QUERY, self._slot)
        except Exception as error:  # noqa: BLE001 - the pipeline does not depend on it
            text = str(error) if isinstance(error, AioreplError) else type(error).__name__
            before = self.status or SlotStatus()
            if before.error is None:
                _log.warning("cannot read the state of slot %s: %s", self._slot, text)
            self.status = replace(before, error=text)
            return
        self.status = SlotStatus(
            LSN.parse(row["server_lsn"]),
            None if row["retained"] is None else max(row["retained"], 0),
            row["safe_bytes"],
            row["wal_status"],
            bool(row["active"]),
        )
