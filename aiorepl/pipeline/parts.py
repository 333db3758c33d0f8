"""The parts of a pipeline: capture, fan-out, and what runs beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from aiorepl.cancellation import run_beside
from aiorepl.delivery.config import ResolvedDelivery, SinkSpec, resolve
from aiorepl.lsn import LSN, ZERO
from aiorepl.pipeline.direct import DirectFanOut
from aiorepl.pipeline.fan_out import FanOut, Inputs
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.pipeline.options import PipelineOptions
from aiorepl.pipeline.publication_state import PublicationState
from aiorepl.pipeline.publication_watch import PublicationWatch
from aiorepl.pipeline.selection_state import SelectionState
from aiorepl.pipeline.slot_losses import SlotLosses, consumers
from aiorepl.pipeline.slot_recovery import SlotRecovery
from aiorepl.pipeline.snapshot_monitor import SnapshotMonitor
from aiorepl.pipeline.source_reader import JOURNAL
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.snapshot.planning import hides_no_key
from aiorepl.source.capture import Capture
from aiorepl.source.catalog.lookups import ColumnLookups
from aiorepl.source.catalog.table_lookups import TableLookups
from aiorepl.source.heartbeat import Heartbeat

if TYPE_CHECKING:
    from aiorepl.pipeline.running_sinks import RunningSinks
    from aiorepl.storage.store import Store


class Parts:
    """The parts of one pipeline.

    :param sinks: the sinks as the user gave them.
    :raises ConfigurationError: a sink is wrong, or lacks an option.
    :ivar snapshots: the tables that are read while the stream runs.
    :ivar recovery: reads the tables again after a loss of the slot; ``None`` if the options do not want it.
    :ivar journal: the store of the journal; ``None`` without a journal.
    :ivar running_sinks: changes sinks while the pipeline runs; ``None`` without a journal.
    """

    def __init__(self, options: PipelineOptions, sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec]) -> None:
        self._options = options
        source, deliveries = options.source, resolve(sinks, options.batches, options.retry)
        selections = _selection_state(options, deliveries)
        self.capture = _capture(options, deliveries, selections)
        options.require_compatible(deliveries, resyncs=self.capture.resyncs)
        if source.has_catalog and not self.capture.resyncs:
            self.capture.request_control_messages()
        self.snapshots = Snapshots(options.reconnect)
        phase = InitialPhase(
            self.capture,
            options.folder,
            options.reading,
            wanted=bool(options.snapshot),
            resnapshot=options.resnapshot,
            hides_key=hides_no_key if selections is None else partial(selections.may_hide_key, JOURNAL),
        )
        self._losses = self.recovery = None
        if options.folder is not None:
            self._losses = SlotLosses(options.folder, source.slot, options.max_resnapshots_per_day)
            if options.on_slot_lost == "resnapshot":
                receiving = _consumers(options, deliveries)
                self.recovery = SlotRecovery(self._losses, self.capture, phase, receiving)
        self.journal: Store | None = None
        self.running_sinks: RunningSinks | None = None
        memories = {} if selections is None else selections.memories
        inputs = Inputs(options, self.capture, deliveries, phase, self.snapshots, memories)
        self.fan_out: FanOut
        if options.journal is None:
            self.fan_out = DirectFanOut(inputs)
            self.watch = self._new_watch(deliveries)
        else:
            # Imported here, because it takes a tenth of the start-up time.
            from aiorepl.pipeline.journaled import JournaledFanOut
            from aiorepl.pipeline.running_sinks import RunningSinks

            self.fan_out = journaled = JournaledFanOut(inputs)
            self.journal = journaled.store
            self.watch = self._new_watch(deliveries)
            self.running_sinks = RunningSinks(
                options, sinks, deliveries, journaled, self.capture, selections, self.watch, self._narrow
            )
        self.monitor = SnapshotMonitor(
            source, phase, self.snapshots, options.reading.max_wal_bytes, lambda: self.flushed
        )
        self.heartbeat = None if source.heartbeat_interval is None else Heartbeat(source, self.fan_out.prove)

    @property
    def flushed(self) -> LSN:
        """The position up to which all consumers are durable; 0 before the stream has started."""
        ledger = self.fan_out.ledger
        return ZERO if ledger is None else ledger.flushed

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Run all parts until the fan-out ends. ``cleanup`` ends the others.

        :raises AioreplError: the source, the journal or a sink failed, or the state of the slot cannot be read.
        """

        def beside(work: Coroutine[Any, Any, None], name: str) -> None:
            run_beside(cleanup, work, f"{name} {self._options.source.slot}")

        cleanup.push_async_callback(self.capture.stop)
        if self.heartbeat is not None:
            beside(self._run_heartbeat(self.heartbeat), "heartbeat")
        if self.watch is not None:
            await self.watch.recall()
            beside(self._run_watch(self.watch), "publications")
        if self.recovery is not None:
            await self.recovery.begin(accept_gap=self._options.accept_gap)
            cleanup.push_async_callback(self.recovery.end)
            beside(self.recovery.run(self.fan_out.started.wait), "losses")
        elif self._losses is not None:
            # Without a recovery, nothing records what the sinks receive.
            await self._losses.load()
            await self._losses.narrow(())
        beside(self.monitor.run(), "snapshot monitor")
        beside(self.snapshots.run(), "snapshots")
        await self.fan_out.run(cleanup)

    async def _run_heartbeat(self, heartbeat: Heartbeat) -> None:
        await self.fan_out.started.wait()
        await heartbeat.run()

    async def _run_watch(self, watch: PublicationWatch) -> None:
        await self.fan_out.started.wait()
        await watch.run(self.capture.position, fresh=self.capture.created is not None)

    def _new_watch(self, deliveries: Mapping[str, ResolvedDelivery]) -> PublicationWatch | None:
        options = self._options
        if not options.source.has_catalog or options.policy.interval is None:
            return None
        watch = PublicationWatch(
            options.source,
            options.policy,
            deliveries,
            PublicationState(options.folder, options.source.slot),
            self.snapshots,
            self.capture.counts,
            lambda: self.fan_out.received,
            self.capture.reopen,
        )
        self.fan_out.notices = watch.notices
        return watch

    async def _narrow(self, deliveries: Mapping[str, ResolvedDelivery]) -> None:
        """Record which sinks receive the changes from now on, for the rows of a gap."""
        if self.recovery is not None:
            assert self._losses is not None
            # The start may not be recorded yet, and it must not count a sink that was changed since.
            receiving = _consumers(self._options, deliveries)
            self.recovery.consumers = receiving.intersection(self.recovery.consumers)
            await self._losses.narrow(self.recovery.consumers)


def _selection_state(
    options: PipelineOptions, sinks: Mapping[str, ResolvedDelivery]
) -> SelectionState | None:
    """Create the memories of all selections; ``None`` if the source has no catalog."""
    if not options.source.has_catalog:
        return None
    return SelectionState(
        {JOURNAL: options.journal_selection} | {name: each.selection for name, each in sinks.items()},
        {JOURNAL: options.retry} | {name: each.retry for name, each in sinks.items()},
        options.folder,
        options.source.slot,
        journaled=options.journal is not None,
    )


def _capture(
    options: PipelineOptions, sinks: Mapping[str, ResolvedDelivery], selections: SelectionState | None
) -> Capture:
    """Create the capture of the source, with the look-ups in the catalog that the journal or the sinks need."""
    source, reconnect = options.source, options.reconnect
    if selections is None:
        return Capture(source, retry=reconnect, until=options.until)
    hides = bool(selections.memories)
    # Sinks that are added while the stream runs may need the look-ups of tables.
    later = options.journal is not None
    # A column keeps its number when it is renamed, so a selection still finds the columns that it hides.
    numbered = hides or later or any(each.needs_attributes for each in sinks.values())
    tables = hides or any(each.needs_catalog for each in sinks.values())
    return Capture(
        source,
        retry=reconnect,
        until=options.until,
        tables=TableLookups(source, selections.begin if hides else None, wanted=tables)
        if tables or later
        else None,
        columns=ColumnLookups(source, reconnects=reconnect is not None) if numbered else None,
    )


def _consumers(options: PipelineOptions, sinks: Mapping[str, ResolvedDelivery]) -> frozenset[str]:
    selected = {name: each.selection for name, each in sinks.items()}
    return consumers(options.source.options().publications, options.journal_selection, selected)
