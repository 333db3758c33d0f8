"""Carries out ``on_slot_lost = "resnapshot"``: records starts and losses of the slot, and lets a start read the tables again.

A running pipeline does not need the record. So an error of a write is logged, and does not end the pipeline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from aiorepl.errors import AioreplError, SlotLost, loggable
from aiorepl.loggers import logger
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.pipeline.slot_losses import SlotLosses
from aiorepl.snapshot.planning import OLDEST_XID
from aiorepl.source.capture import Capture
from aiorepl.source.source import Source
from aiorepl.wire.opening import ASYNCPG_ERRORS

_log = logger("aiorepl.pipeline")

# The seconds between two records of the xid. No server begins 2^31 transactions within this time.
_XID_SECONDS: Final = 3600.0


class SlotRecovery:
    """The recovery of one pipeline from the loss of its slot.

    :param consumers: the sinks, as from ``slot_losses.consumers``.
    """

    def __init__(
        self, losses: SlotLosses, capture: Capture, phase: InitialPhase, consumers: Collection[str]
    ) -> None:
        self._losses = losses
        self._capture = capture
        self._phase = phase
        self.consumers = consumers
        phase.has_histories = True

    @property
    def recent(self) -> int:
        """How often all tables were read again within the last 24 hours."""
        return self._losses.recent(time.time())

    async def begin(self, *, accept_gap: bool) -> None:
        """Let this start read the tables again if the slot was lost.

        :param accept_gap: whether the user has chosen to continue without the missing changes.
        :raises JournalError: the file of the record is damaged, or cannot be read.
        :raises PermanentError, TransientError: the file cannot be written.
        """
        await self._losses.load()
        # After an accepted gap, every sink lacks changes.
        await self._losses.narrow(() if accept_gap else self.consumers)
        self._phase.known = self._losses.known and not accept_gap
        if self._losses.pending and not accept_gap:
            _log.warning("slot %s was lost: the tables are read again", self._capture.source.slot)
            self._phase.replace_slot(self._losses.gap(self.consumers))

    async def run(self, started: Callable[[], Awaitable[object]]) -> None:
        """Record the start, and then the server's current xid every hour, until the call is cancelled.

        :param started: returns once the stream has started.
        """
        await started()
        try:
            capture = self._capture
            await self._losses.started(self.consumers, self._phase.plan, capture.xid, capture.server_started)
        except AioreplError as error:
            _log.error("the start of slot %s cannot be recorded: %s", self._capture.source.slot, error)
            return
        while True:
            await asyncio.sleep(_XID_SECONDS)
            try:
                xid = await _current_xid(self._capture.source)
                await self._losses.reached(xid, self._capture.server_started)
            except (AioreplError, *ASYNCPG_ERRORS) as error:
                _log.warning(
                    "the transaction id for slot %s cannot be recorded: %s",
                    *(self._capture.source.slot, loggable(error)),
                )

    async def end(self) -> None:
        """If this start has dropped the slot that it had created, record that."""
        if self._capture.rolled_back:
            try:
                await self._losses.dropped()
            except AioreplError as error:
                _log.error("the end of slot %s cannot be recorded: %s", self._capture.source.slot, error)

    async def record(self, lost: SlotLost) -> bool:
        """Record a loss. Return whether the next start reads the tables again."""
        try:
            recovers = await self._losses.record(time.time(), lost, self._capture.server_started)
        except AioreplError as error:
            _log.error("the loss of slot %s cannot be recorded: %s", self._capture.source.slot, error)
            return False
        if recovers:
            _log.warning(
                "slot %s is lost: the next start creates it again, and reads the tables again (number of losses within 24 hours: %d)",
                *(self._capture.source.slot, self.recent),
            )
        else:
            _log.error(
                "slot %s is lost, and all tables were read again %d times within 24 hours, as max_resnapshots_per_day allows: find the cause, "
                "and start with resnapshot=True (--resnapshot)",
                *(self._capture.source.slot, self.recent),
            )
        return recovers


async def _current_xid(source: Source) -> int:
    connection = await source.connect_sql()
    try:
        return int(await connection.fetchval(OLDEST_XID))
    finally:
        connection.terminate()
