"""The pipeline, the object that people embed: source, journal and sinks, started, watched and stopped together.

Without a journal every sink reads one buffer over the stream, and the slot is confirmed up to what all of them have
made durable. With a journal the journal is what the slot waits for, and every sink reads it from a cursor of its
own, at its own pace (``lanes``, ``journaled``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from anyio import CancelScope

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.config import ResolvedDelivery, SinkSpec, resolve
from aiorepl.delivery.watchdog import watching
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pipeline.direct import DirectFanOut
from aiorepl.pipeline.fan_out import FanOut, first_of
from aiorepl.pipeline.statistics import PipelineStatistics
from aiorepl.retry import RetryPolicy
from aiorepl.source.capture import Capture
from aiorepl.source.catalog.lookups import TableLookups
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.continuity import GapPolicy
from aiorepl.source.heartbeat import Heartbeat
from aiorepl.source.source import Source

if TYPE_CHECKING:
    from aiorepl.journal.retention import Retention

_log = logging.getLogger("aiorepl.pipeline")

FOR_EVER = RetryPolicy(timeout=None)


class Pipeline:
    """Use ``await pipeline.run()``, or ``async with pipeline:`` to have it run beside other work.

    :param sinks: sinks, or deliveries (a sink with choices of its own), perhaps by name. A name is what the sink's
        position is kept under: do not change it.
    :param journal: the folder (or ``file://`` URL) of a journal.
    :param snapshot: if the slot is created now, begin with the rows that are in the tables already. Needs a journal.
    :param retention: delete segments of the journal once all its consumers have passed them, and they are older than this or
        the journal is larger: ``"7d"``, ``"100gb"``, ``"7d 100gb"``. Unless given, only ``aiorepl journal prune`` does.
    :param resnapshot: make the slot anew, whatever became of it, and load the tables again, behind what the journal has.
        The load is one transaction that begins with a truncate of the tables. For one start, not for every.
    :param accept_gap: if the slot is ahead of the journal, or of a sink that keeps its position, or what a sink needs was
        pruned from the journal, go on without what is missing instead of refusing; it is logged, noted in the journal, and
        in the statistics.
    :param until: stop there: an LSN, or ``"now"`` for the end of WAL at the start.
    :param reconnect: how to go on after a lost connection; ``None`` ends with the error instead.
    :param batches: how much sinks get at once, and when they are flushed.
    :param retry: how long to insist when a sink raises TransientError.
    :param shutdown_timeout: seconds that ``stop`` gives sinks to finish before they are cancelled.
    :param buffer_bytes: bytes that may be in memory between the source and the sinks.
    :raises ConfigurationError: for choices that do not go together, and for what is no source or sink.
    """

    def __init__(
        self,
        source: Source,
        sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec] = (),
        *,
        journal: str | None = None,
        snapshot: bool = False,
        retention: Retention | str | None = None,
        resnapshot: bool = False,
        accept_gap: bool = False,
        until: LSN | str | None = None,
        reconnect: RetryPolicy | None = FOR_EVER,
        batches: BatchPolicy | None = None,
        retry: RetryPolicy | None = None,
        shutdown_timeout: float = 10.0,
        buffer_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        if not isinstance(source, Source):
            raise ConfigurationError(
                f"a pipeline reads an aiorepl.Source(dsn, slot=…, publication=…), not a {type(source).__name__}"
            )
        if not shutdown_timeout >= 0:
            raise ConfigurationError("shutdown_timeout is in seconds, 0 or more")
        if buffer_bytes < 1:
            raise ConfigurationError("buffer_bytes is a number of bytes, at least 1")
        if not sinks and journal is None:
            raise ConfigurationError("a pipeline needs at least one sink, or a journal")
        if (snapshot or resnapshot) and journal is None:
            raise ConfigurationError(
                "a snapshot needs a journal: without one, a crash in the middle of it would go unnoticed"
            )
        if retention is not None and journal is None:
            raise ConfigurationError("retention is about a journal, and there is none")
        if resnapshot and accept_gap:
            raise ConfigurationError("resnapshot leaves no gap to accept: choose one of the two")
        self._source = source
        self.shutdown_timeout = shutdown_timeout
        batches, retry = batches or BatchPolicy(), retry or RetryPolicy()
        deliveries = resolve(sinks, batches, retry)
        self._capture = Capture(
            source, retry=reconnect, until=until, tables=_table_lookups(source, deliveries)
        )
        gaps = GapPolicy(accept=accept_gap)
        self._fan_out: FanOut
        if journal is None:
            self._fan_out = DirectFanOut(self._capture, deliveries, buffer_bytes, gaps)
        else:
            # Imported here: a tenth of the time that the rest takes to start.
            from aiorepl.pipeline.journaled import JournaledFanOut

            self._fan_out = JournaledFanOut(
                self._capture,
                deliveries,
                buffer_bytes,
                gaps,
                journal=journal,
                batches=batches,
                retry=retry,
                snapshot=snapshot,
                resnapshot=resnapshot,
                retention=retention,
            )
        self._heartbeat = None if source.heartbeat_interval is None else Heartbeat(source)
        self._stopping = asyncio.Event()
        self._begun = False
        self._over = asyncio.Event()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run until the end of the stream (``until``), ``stop()``, or an error.

        After an error, as after ``stop()``, what was received is finished first, within the shutdown timeout. Cancelling
        stops at once. A pipeline runs once.

        :raises AioreplError: what could not be mended; what was flushed before is safe and confirmed.
        """
        if self._begun:
            raise RuntimeError("a pipeline runs once: make another one, with sinks of its own")
        self._begun = True
        try:
            await self._run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._over.set()

    async def _run(self) -> None:
        work = asyncio.create_task(self._work(), name=f"aiorepl pipeline {self._source.slot}")
        stop = asyncio.create_task(self._stopping.wait())
        ending = asyncio.create_task(self._fan_out.ending.wait())
        try:
            await asyncio.wait({work, stop, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._fan_out.stop_reading()
                await asyncio.wait({work}, timeout=self.shutdown_timeout)
            if not work.done():
                _log.warning(
                    "the shutdown timeout of %s s is over: sinks are cancelled", self.shutdown_timeout
                )
                work.cancel()
                await asyncio.wait({work})
            else:
                try:
                    work.result()
                except BaseExceptionGroup as group:
                    # Not "from None": what caused it is for those who ask.
                    raise first_of(group)  # noqa: B904
            if self._fan_out.failure is not None:
                raise self._fan_out.failure
        finally:
            await _ended(stop, ending, work)

    def stop(self) -> None:
        """Ask ``run`` to end: read no more, let the sinks finish within the shutdown timeout, confirm, disconnect."""
        self._stopping.set()

    async def started(self) -> None:
        """Wait until the stream runs.

        :raises AioreplError: what ``run`` has ended with before that.
        :raises RuntimeError: it has ended before that without an error.
        """
        if self._fan_out.started.is_set():
            return
        waits = [asyncio.create_task(event.wait()) for event in (self._fan_out.started, self._over)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(*waits)
        if self._fan_out.started.is_set():
            return
        if isinstance(self._error, Exception):
            raise self._error
        raise RuntimeError("the pipeline was stopped before its stream ran")

    def statistics(self) -> PipelineStatistics:
        """What the pipeline has done so far."""
        lanes, ledger = self._fan_out, self._fan_out.ledger
        return PipelineStatistics(
            received=lanes.received,
            accepted=LSN(0) if ledger is None else ledger.accepted,
            flushed=LSN(0) if ledger is None else ledger.flushed,
            reconnects=self._capture.reconnects,
            last_error=self._capture.last_error,
            idle_seconds=self._capture.idle_seconds,
            transaction_buffer=self._capture.transaction_buffer,
            buffers={name: buffer.statistics() for name, buffer in lanes.buffers.items()},
            sinks=dict(lanes.statistics),
            lags=lanes.lags(),
            gaps=tuple(lanes.gaps.accepted),
            heartbeat=None if self._heartbeat is None else self._heartbeat.statistics,
        )

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        started = asyncio.create_task(self.started())
        try:
            await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _ended(self._task)
            raise
        finally:
            await _ended(started)
        if self._task.done():
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            # An end in order takes no longer than the shutdown timeout: a cancelled scope of anyio's waits for it, too.
            with CancelScope(shield=True):
                await self._task

    async def _work(self) -> None:
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.enter_context(watching())
            cleanup.push_async_callback(self._capture.stop)
            if self._heartbeat is not None:
                beating = asyncio.create_task(self._beat(), name=f"aiorepl heartbeat {self._source.slot}")
                cleanup.push_async_callback(_ended, beating)
            await self._fan_out.run(cleanup)

    async def _beat(self) -> None:
        await self.started()
        assert self._heartbeat is not None
        await self._heartbeat.run()


def _table_lookups(source: Source, sinks: Mapping[str, ResolvedDelivery]) -> TableLookups | None:
    """Create the look-ups of tables for ``sinks``; ``None`` if no sink needs them, or if there is no catalog."""
    if not source.has_catalog or not any(delivery.needs_catalog for delivery in sinks.values()):
        return None
    chosen = {name: delivery.selection for name, delivery in sinks.items()}
    selections = {name: each for name, each in chosen.items() if each is not None and each.rules}

    def verify(catalog: TableCatalog) -> None:
        for name, selection in selections.items():
            for mistake in selection.mistakes(catalog):
                raise ConfigurationError(f"sink {name}: {mistake}")

    return TableLookups(source, verify if selections else None)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends, with what they still have to let go of."""
    for task in tasks:
        task.cancel()
    # Within a cancelled scope anyio cancels every await, again and again, and would cut that short.
    with CancelScope(shield=True):
        await asyncio.gather(*tasks, return_exceptions=True)
