"""The pipeline, the object that a program embeds: it starts, supervises and stops source, journal and sinks.

Without a journal all sinks read one buffer, and the slot is confirmed up to what all of them have made durable (``direct``).
With a journal the slot waits only for the journal, and every sink reads the journal from its own cursor (``journaled``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from anyio import CancelScope

from aiorepl.cancellation import cancel_and_wait, require_asyncio, run_until_set
from aiorepl.checked import checked
from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.config import SinkSpec
from aiorepl.delivery.watchdog import watching
from aiorepl.durations import Duration, seconds_of
from aiorepl.errors import ConfigurationError, SlotLost, loggable
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.fan_out import first_of
from aiorepl.pipeline.options import NO_TABLES, PipelineOptions
from aiorepl.pipeline.parts import Parts
from aiorepl.pipeline.publication_policy import OnNewTable, OnPartitionChange, PublicationPolicy
from aiorepl.pipeline.slot_losses import OnSlotLost
from aiorepl.pipeline.statistics import PipelineState, PipelineStatistics
from aiorepl.retry import RetryPolicy
from aiorepl.sizes import Size, size_of
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.source.source import Source
from aiorepl.source.takeover import wait_for_slot as wait_until_free

# Imported at run time, because ``checked`` reads the annotations.
from aiorepl.transforms.selection import Selection

if TYPE_CHECKING:
    from aiorepl.journal.retention import Retention
    from aiorepl.pipeline.running_sinks import RunningSinks, SinkChanges
    from aiorepl.storage.opening import Location
    from aiorepl.storage.store import Store

_log = logger("aiorepl.pipeline")

FOR_EVER = RetryPolicy(timeout=None)


@checked(zero=("shutdown_timeout",), own=("source", "sinks", "until"))
class Pipeline:
    """Delivers the changes of one source to sinks. Use ``await pipeline.run()``, or ``async with pipeline:``.

    :param sinks: sinks, or deliveries (sinks with options); as a list, or a mapping from names. A sink's position or cursor
        is stored under its name, so do not rename a sink. In a list, names come from the classes: kafka, kafka-2.
    :param journal: where a journal is: a folder, ``s3://bucket/prefix``, ``gs://…`` or ``az://…``. ``ObjectStore(url, config)``
        if credentials or an endpoint are not in the environment.
    :param snapshot: if the slot is created now, start with the existing rows of the tables; ``True``, or the options of
        reading them. Without a journal their plan needs a folder: ``SnapshotOptions(state=…)``.
    :param retention: delete journal segments that all consumers have read and that are older than an age, or exceed a total
        size: ``"7d"``, ``"100GB"``, ``"7d 100GB"``. ``None``: only ``aiorepl journal prune`` deletes segments.
    :param journal_selection: the columns that are dropped or masked before the journal is written. Their values are never in the
        journal's files, its history, the sinks or Spark tables. The selection must not have ``tables`` or ``kinds``.
    :param compact: compact the journal into Parquet files per table, its history, in a process beside this one; retention keeps
        what is not compacted yet.
    :param resnapshot: create the slot again, and read the rows of all tables again, after a TRUNCATE of the tables. With a
        journal they come after its content. Set this for one start only.
    :param accept_gap: continue without missing transactions instead of refusing to start: if the slot is ahead of the
        journal or of a sink that keeps its position, or if the journal no longer has what a sink needs. Each gap is logged,
        recorded in the journal, and in the statistics.
    :param on_slot_lost: what to do when the slot no longer has changes that were not delivered: ``"stop"``: end with ``SlotLost``;
        ``"resnapshot"``: also record that the next pipeline with these options starts as with ``resnapshot=True``. ``recovers`` says whether
        the next pipeline will do that. It reads only the rows of the gap from tables to which the stream only appends.
    :param max_resnapshots_per_day: how often within 24 hours ``on_slot_lost`` may read all tables again.
    :param wait_for_slot: if another instance reads the slot, wait until it ends, and then read the slot; ``False``: end with an error.
        A server notices a lost machine after ``wal_sender_timeout``.
    :param until: stop before the first transaction that commits at or after this LSN; ``"now"``: at the end of WAL at the start.
    :param reconnect: the policy for a lost connection; ``None``: end with the error.
    :param batches: the batch policy of sinks that have none of their own.
    :param retry: the retry policy of sinks that have none of their own.
    :param shutdown_timeout: the time that sinks have to finish after ``stop``, before they are cancelled.
    :param state_dir: without a journal, a folder for the state that a restart needs: the names of hidden columns and tables, the
        plans of snapshots, and the last picture of the publications. Needed if a selection hides by a pattern with ``*`` or ``?``.
    :param publication_interval: how often the publications in the catalog are compared with their last picture, to notice what the
        stream lacks: partitions that were attached, detached or truncated, and tables that were added or dropped. ``None``: never.
    :param on_new_table: what to do when a table is added to the publications: ``"snapshot"``: read its rows while the stream runs,
        ``"warn"``: log a warning, ``"ignore"``: log nothing.
    :param on_partition_change: what to do when a partition has added or removed rows: ``"resnapshot"``: read the partitioned table while the
        stream runs, after a TRUNCATE if rows were removed, ``"warn"``: log a warning.
    :param buffer_bytes: how many bytes may be buffered between the source and the sinks.
    :raises ConfigurationError: the options contradict each other, or an object is not a source or a sink.
    """

    def __init__(
        self,
        source: Source,
        sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec] = (),
        *,
        journal: Location | Store | None = None,
        snapshot: bool | SnapshotOptions = False,
        retention: Retention | str | None = None,
        compact: bool = False,
        journal_selection: Selection | None = None,
        resnapshot: bool = False,
        accept_gap: bool = False,
        on_slot_lost: OnSlotLost = "stop",
        max_resnapshots_per_day: int = 1,
        wait_for_slot: bool = False,
        until: LSN | Literal["now"] | None = None,
        reconnect: RetryPolicy | None = FOR_EVER,
        batches: BatchPolicy | None = None,
        retry: RetryPolicy | None = None,
        shutdown_timeout: Duration = 10.0,
        state_dir: str | os.PathLike[str] | None = None,
        publication_interval: Duration | None = 60.0,
        on_new_table: OnNewTable = "warn",
        on_partition_change: OnPartitionChange = "warn",
        buffer_bytes: Size = 16 * 1024 * 1024,
    ) -> None:
        options = PipelineOptions(
            source=source,
            journal=journal,
            snapshot=snapshot,
            retention=retention,
            compact=compact,
            journal_selection=journal_selection,
            resnapshot=resnapshot,
            accept_gap=accept_gap,
            on_slot_lost=on_slot_lost,
            max_resnapshots_per_day=max_resnapshots_per_day,
            until=until,
            reconnect=reconnect,
            batches=batches or BatchPolicy(),
            retry=retry or RetryPolicy(),
            shutdown_timeout=seconds_of("shutdown_timeout", shutdown_timeout),
            state_dir=state_dir,
            policy=PublicationPolicy.of(publication_interval, on_new_table, on_partition_change),
            buffer_bytes=size_of("buffer_bytes", buffer_bytes),
        )
        self.shutdown_timeout = options.shutdown_timeout
        self.recovers = False
        """Whether the next pipeline with these options reads all tables again, because this one has ended with ``SlotLost``."""
        self._source = source
        self._wait_for_slot = wait_for_slot
        self._parts = Parts(options, sinks)
        self._capture, self._fan_out = self._parts.capture, self._parts.fan_out
        self._stopping = asyncio.Event()
        self._began: float | None = None
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run until the end of the stream (``until``), ``stop()``, or an error. A pipeline runs only once.

        After an error of the source, and after ``stop()``, the sinks deliver what was received, within the shutdown timeout.
        A cancellation interrupts them at once.

        :raises AioreplError: a permanent failure; everything that was flushed before is durable and confirmed.
        """
        require_asyncio()
        if self._began is not None:
            raise RuntimeError("a pipeline runs only once: create another one, with new sinks")
        self._began = time.monotonic()
        try:
            await self._run()
        except BaseException as error:
            self._error = error
            if isinstance(error, SlotLost) and self._parts.recovery is not None:
                self.recovers = await self._parts.recovery.record(error)
            if isinstance(error, Exception):
                # The mark ``fatal`` is for a program that itself reports the error that ``run`` raises.
                _log.error("pipeline %s has failed: %s", self.name, loggable(error), extra={"fatal": True})
            raise
        finally:
            self._ended.set()

    async def _run(self) -> None:
        work = asyncio.create_task(self._work(), name=f"aiorepl pipeline {self._source.slot}")
        stop = asyncio.create_task(self._stopping.wait())
        ending = asyncio.create_task(self._fan_out.ending.wait())
        try:
            await asyncio.wait({work, stop, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._fan_out.stop_reading()
                if self._fan_out.connecting:
                    # Nothing was received yet.
                    work.cancel()
                await asyncio.wait({work}, timeout=self.shutdown_timeout)
            if not work.done():
                timeout = self.shutdown_timeout
                _log.warning("the shutdown timeout of %s s has expired: sinks are cancelled", timeout)
                work.cancel()
                await asyncio.wait({work})
            elif not work.cancelled():
                try:
                    work.result()
                except BaseExceptionGroup as group:
                    # Not "from None", which would hide the error's own cause.
                    raise first_of(group)  # noqa: B904
            if self._fan_out.failure is not None:
                raise self._fan_out.failure
        finally:
            await cancel_and_wait(stop, ending, work)

    def stop(self) -> None:
        """Make ``run`` end: stop reading, let the sinks finish within the shutdown timeout, confirm, disconnect."""
        self._stopping.set()

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots that are taken while the stream runs: pause, resume or cancel them, and see their progress."""
        return self._parts.snapshots

    async def resnapshot(self, table: str, where: str | None = None) -> None:
        """Read a table (again) while the stream runs, and return once its rows are durable in all sinks, or in the journal.

        Sinks receive the rows as changes of the kind ``read``, merged into the stream so that each row is as new as the stream
        is there. Rows that are not in the table are not deleted from sinks. A table without a key is read at one point, with
        the stream held back, and its rows follow a TRUNCATE. With a journal, or ``SnapshotOptions(state=…)``, an interrupted
        snapshot continues after a restart.

        Needs PostgreSQL 14, and a primary, because it writes logical messages.

        :param table: ``schema.table``; a partitioned table stands for its published partitions.
        :param where: a condition of the rows, in SQL; names of functions, types and operators outside of ``pg_catalog`` must
            be qualified.
        :raises ConfigurationError: the table cannot be read; says what to do.
        :raises AioreplError: reading failed, was cancelled, or the pipeline ended.
        """
        self.require_snapshots()
        await self.snapshots.request(table, where)

    def require_snapshots(self) -> None:
        """Check that tables can be read while the stream runs.

        :raises ConfigurationError: the source has no tables, or the slot is temporary.
        """
        if not self._source.has_catalog:
            raise ConfigurationError(f"a {type(self._source).__name__} has no tables that could be read")
        if self._capture.resyncs:
            raise ConfigurationError(NO_TABLES)

    async def reload(self, sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec]) -> SinkChanges:
        """Add, replace and remove sinks while the pipeline runs; needs a journal. The stream and the other sinks continue.

        A sink stays if its name has the same object as before. If a name has another object, the former sink makes durable what it
        has accepted, up to the end of a transaction, and is closed; the new one continues at the cursor of that name. A sink with a
        new name begins where the journal begins. A removed sink leaves its cursor in the journal, as if the pipeline were started
        without it. Sinks are opened after the call has returned. A sink that cannot be opened stops, and the others continue, as at
        a start. A paused sink stays paused.

        The call waits for the start of the stream. Then it checks everything, as at a start, including whether a selection hides
        less than before. If a check fails, or the call is cancelled before the checks end, nothing is changed. A later cancellation
        does not stop the change.

        :param sinks: all sinks from now on, as the pipeline takes them.
        :returns: the names of the sinks that were added, replaced and removed.
        :raises ConfigurationError: a sink is wrong, or there is no journal.
        :raises AioreplError: the catalog or the journal's folder is not available, or the pipeline has ended, or ends.
        """
        return await (await self._changeable()).reload(sinks)

    async def pause(self, name: str) -> None:
        """Stop and close a sink between two transactions, until ``resume``. The pipeline needs a journal, which keeps the sink's changes.

        A sink that does not end within the shutdown timeout is cancelled. The pause ends with the process.

        :raises ConfigurationError: there is no such sink, or no journal.
        :raises AioreplError: the pipeline has ended, or ends.
        """
        await (await self._changeable()).pause(name)

    async def resume(self, name: str, sink: SinkSpec) -> None:
        """Continue a sink that is paused, or that has stopped because of an error.

        :param sink: a new object, because sinks are opened only once; other options than before are checked as by ``reload``.
        :raises ConfigurationError: there is no such sink, or it runs, or is wrong; or there is no journal.
        :raises AioreplError: as for ``reload``.
        """
        await (await self._changeable()).resume(name, sink)

    async def _changeable(self) -> RunningSinks:
        if self._parts.running_sinks is None:
            raise ConfigurationError(
                "sinks can be changed, paused and resumed only if the pipeline has a journal: without one, stop it and start it again"
            )
        await self.started()
        return self._parts.running_sinks

    async def started(self) -> None:
        """Wait until the stream has started.

        :raises AioreplError: the error with which ``run`` has ended before.
        :raises RuntimeError: ``run`` has ended before without an error.
        """
        await run_until_set(self._ended, self._fan_out.started.wait())
        if not self._fan_out.started.is_set():
            await self.wait()
            raise RuntimeError("the pipeline was stopped before its stream started")

    async def wait(self) -> None:
        """Wait until the pipeline has ended, in whichever task it runs.

        :raises AioreplError: the error with which ``run`` has ended.
        """
        await self._ended.wait()
        if isinstance(self._error, Exception):
            raise self._error

    @property
    def source(self) -> Source:
        """The source."""
        return self._source

    @property
    def name(self) -> str:
        """The name of the pipeline's slot."""
        return self._source.slot

    @property
    def journal(self) -> Store | None:
        """The store of the pipeline's journal; ``None`` without a journal."""
        return self._parts.journal

    @property
    def state(self) -> PipelineState:
        """The pipeline's state."""
        if self._ended.is_set():
            return PipelineState.FAILED if isinstance(self._error, Exception) else PipelineState.STOPPED
        if not self._fan_out.started.is_set():
            return PipelineState.STARTING
        sinks = self._fan_out.statistics.values()
        troubled = self._capture.last_error is not None or any(sink.failed or sink.retrying for sink in sinks)
        return PipelineState.DEGRADED if troubled else PipelineState.RUNNING

    def statistics(self) -> PipelineStatistics:
        """Return the state, and the current positions, buffers and counters."""
        parts, fan_out, ledger = self._parts, self._fan_out, self._fan_out.ledger
        return PipelineStatistics(
            state=self.state,
            error=loggable(self._error) if isinstance(self._error, Exception) else None,
            received=fan_out.received,
            accepted=LSN(0) if ledger is None else ledger.accepted,
            flushed=parts.flushed,
            reconnects=self._capture.reconnects,
            last_error=self._capture.last_error,
            waiting_for=self._capture.waiting_for,
            uptime_seconds=None if self._began is None else time.monotonic() - self._began,
            idle_seconds=self._capture.idle_seconds,
            transaction_buffer=self._capture.transaction_buffer,
            tables=tuple(self._capture.counts.tables()),
            transaction_rows=self._capture.counts.transactions,
            buffers={name: buffer.statistics() for name, buffer in fan_out.buffers.items()},
            sinks=fan_out.sink_statistics(),
            lags=fan_out.lags(),
            gaps=tuple(fan_out.gaps.accepted),
            snapshot=parts.monitor.statistics(),
            heartbeat=None if parts.heartbeat is None else parts.heartbeat.statistics,
            publication=None if parts.watch is None else parts.watch.statistics,
            slot_losses=None if parts.recovery is None else parts.recovery.recent,
        )

    def __repr__(self) -> str:
        sinks = ", ".join(self._fan_out.statistics) or "no sinks"
        return f"<Pipeline {self.name} to {sinks}: {self.state.value}>"

    async def __aenter__(self) -> Self:
        require_asyncio()
        self._task = asyncio.create_task(self.run())
        try:
            await run_until_set(self._fan_out.started, asyncio.wait({self._task}))
        except asyncio.CancelledError:
            await cancel_and_wait(self._task)
            raise
        if self._task.done():
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            # Shielded, because an orderly shutdown within the shutdown timeout is wanted even in a cancelled scope of anyio.
            with CancelScope(shield=True):
                await self._task

    async def _work(self) -> None:
        if self._wait_for_slot and self._source.has_catalog:
            # Wait before anything is opened, because the other instance still writes to the sinks and the journal.
            await wait_until_free(self._source)
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.enter_context(watching())
            await self._parts.run(cleanup)
