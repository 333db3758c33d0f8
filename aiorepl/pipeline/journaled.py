"""Delivery through a journal: from the source to the journal, and from the journal to each sink.

The slot waits only for the journal. A sink reads the journal from its cursor, which is stored with the journal, so a slow,
stopped or broken sink does not make the server keep WAL. The journal can start with an initial snapshot of the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final

from aiorepl.cancellation import run_beside
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.worker import SinkWorker
from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.journal.reader import JournalReader
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.fan_out import SOURCE, Inputs, lag
from aiorepl.pipeline.journal_readers import JournalReaders
from aiorepl.pipeline.progress import SnapshotProgress
from aiorepl.pipeline.source_reader import JOURNAL
from aiorepl.pipeline.start import plan_start
from aiorepl.pipeline.statistics import Lag
from aiorepl.position import Position
from aiorepl.sizes import format_size
from aiorepl.source.continuity import Claim
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.sink")

HISTORY: Final = "history"
# How often the log says again that a sink has stopped, because its cursor keeps segments.
_REMINDER_SECONDS: Final = 300.0


class JournaledFanOut(JournalReaders):
    """Connects the source to the journal, and the journal to each sink, through one buffer each."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        options, sinks = inputs.options, inputs.sinks
        self.require_names(sinks)
        self.prove = self._sink.proofs.add
        # Limits of rows and lingering are meant for sinks, not for the journal.
        self._journal = ResolvedDelivery(
            self._sink,
            replace(options.batches, max_rows=None, linger=0.0),
            options.retry,
            selection=options.journal_selection,
        )
        self.statistics = {JOURNAL: SinkStatistics(JOURNAL), **self.statistics}
        # The first LSN of the journal.
        self._journal_start = LSN(0)

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the journal and the sinks, read the tables, and deliver until the end.

        :raises AioreplError: the source or the journal failed, or a sink; the other sinks continued to the end.
        """
        self._capture.deliver_prepared()
        reader = JournalReader(self.store)
        recorded = await self._read_with_retries(JOURNAL, self._journal, reader.recorded_position)
        beginning = await self._begin(cleanup, recorded, LSN(0) if recorded is None else recorded.lsn)
        begin = beginning.position
        stored = await self._open(JOURNAL, self._journal, begin, cleanup)
        start = self._start = plan_start(beginning, {JOURNAL: stored}, self.gaps, self._holder)
        # An empty journal has no position. It is at the beginning.
        held = start.positions[JOURNAL] or begin
        self._journal_end = held.lsn
        if beginning.found.created is not None:
            await self._sink.void_prepared()
        for gap in start.gaps:
            await self._sink.skip(gap.after, held)
        refuted = partial(self._refuted, beginning.found.position)
        ledger = await self._start_stream(start, refuted, self._sink.readings)
        buffer = self._new_buffer(SOURCE, self._share)
        progress = SnapshotProgress(ledger, JOURNAL, self._snapshot, record=False)
        worker = self._worker(JOURNAL, self._journal, buffer, progress, after=held.lsn, stored=held)
        begins = partial(_start_of, reader)
        self._journal_start = await self._read_with_retries(JOURNAL, self._journal, begins)
        cursors = {name: await self._register(name) for name in self._sinks}
        await self._upkeep.start(begin, cleanup)
        run_beside(cleanup, self._remind(), "stopped sinks")
        self.started.set()
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self._fill_journal(buffer, worker))
                for name, at in cursors.items():
                    if at is not None:
                        self._run_sink(name, at)
        finally:
            self._group = None
        await self._upkeep.abandon_snapshots()
        for error in self._failed.values():
            raise error

    async def _settle(self, slices: list[Slice]) -> None:
        """Look up tables for the journal's selection only: a reader of the journal looks up the tables for its sink's selection."""
        if self._capture.tables is not None and self._journal.needs_catalog:
            await self._capture.tables.settle(slices)

    async def _dependent(self, lsn: LSN) -> str | None:
        try:
            stored = await asyncio.to_thread(JournalReader(self.store).position)
        except (AioreplError, OSError):
            # An unreadable journal may hold data.
            return self._holder(JOURNAL)
        # An empty journal keeps no position. A journal at the beginning of the snapshot has no chunks yet.
        has_nothing = stored is None or stored.lsn < lsn or stored.lsn == self._snapshot.start
        return None if has_nothing else self._holder(JOURNAL)

    def lags(self) -> dict[str, Lag]:
        """Return how far the journal is behind the server, and every sink behind the journal."""
        lags = {}
        for name, statistics in self.statistics.items():
            end = self.received if name == JOURNAL else self._sink.end
            lags[name] = lag(end, statistics, self._journal_start)
        return lags

    def _holder(self, name: str) -> str:
        return f"journal {self.store.url}" if name == JOURNAL else super()._holder(name)

    async def _refuted(self, begin: Position, claim: Claim, begins: LSN) -> None:
        await self.gaps.check_refuted(claim, begins)
        # The first conflicting slice refutes a claim, before anything is written.
        await self._sink.skip(begins, begin.at(claim.position.lsn))

    def require_names(self, sinks: Collection[str]) -> None:
        """Check that no sink has the name of the journal, or of compaction.

        :raises ConfigurationError: a sink has it.
        """
        if JOURNAL in sinks:
            raise ConfigurationError(f"a sink must not be named {JOURNAL!r}: that is the journal's name")
        if self._options.compact and HISTORY in sinks:
            raise ConfigurationError(
                f"a sink must not be named {HISTORY!r}: compaction has the cursor of that name"
            )

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(_REMINDER_SECONDS)
            lags = self.lags()
            for name, error in self._failed.items():
                _log.error(
                    "sink %s has stopped and is %s behind; the journal keeps that for it. Mend the cause and start again: %s",
                    name,
                    format_size(lags[name].durable),
                    error,
                )

    async def _fill_journal(self, buffer: SliceBuffer, worker: SinkWorker) -> None:
        # The journal needs no rewind, because it never loses accepted data.
        await self._run_workers(buffer, partial(self._reader.read, buffer), [worker])
        end = await self._read_with_retries(JOURNAL, self._journal, JournalReader(self.store).end)
        self._end = end.lsn
        for follower in self._followers.values():
            follower.end_at(self._end)


def _start_of(reader: JournalReader) -> LSN:
    chain = reader.chain()
    return max(chain.start_lsn, chain.identity.start_lsn)
