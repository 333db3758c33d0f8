"""The base of both ways from the source to the sinks: ``direct``, and ``journaled``.

Slices are read into buffers, and each buffer has one feeder and a worker for each sink that reads it. Reading ends at the
end of the stream, on request, or with an error; the error is raised once the workers have delivered the buffered slices.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from aiorepl.cancellation import uninterrupted
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.feeder import Feeder
from aiorepl.delivery.notices import Notices
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink
from aiorepl.delivery.worker import Progress, SinkWorker
from aiorepl.delivery.writer import call_sink, close
from aiorepl.errors import ConfigurationError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.pipeline.options import PipelineOptions
from aiorepl.pipeline.snapshot_source import snapshot_source
from aiorepl.pipeline.source_reader import SourceReader
from aiorepl.pipeline.start import Beginning, Start
from aiorepl.pipeline.statistics import Lag
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy
from aiorepl.sink import Sink, SinkContext
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.source.capture import Capture
from aiorepl.source.continuity import Claim, GapPolicy
from aiorepl.source.ledger import Ledger
from aiorepl.source.present_rows import PresentRows
from aiorepl.source.same_stream import Refuted
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.memory import SelectionMemory
from aiorepl.wire.interface import CreatedSlot

_log = logger("aiorepl.pipeline")

SOURCE = "source"


class Inputs(NamedTuple):
    """The capture, the snapshots and the sinks of a fan-out.

    :param sinks: the resolved deliveries by sink name.
    :param snapshot: the initial snapshot before the stream.
    :param snapshots: the tables that are read while the stream runs.
    :param memories: the memories of the sinks' selections, by sink name.
    """

    options: PipelineOptions
    capture: Capture
    sinks: Mapping[str, ResolvedDelivery]
    snapshot: InitialPhase
    snapshots: Snapshots
    memories: Mapping[str, SelectionMemory]


class FanOut(ABC):
    """Delivers the slices of one capture to the sinks of one pipeline.

    :ivar prove: records the commit times that heartbeats prove; ``None`` if nothing records them.
    :ivar notices: changes from beside the stream, by sink name.
    :ivar connecting: whether the first connection is opened, and the slot is checked or created.
    :ivar started: set once the stream has started.
    :ivar ending: set when the pipeline has to end, because reading failed or all sinks have failed.
    :ivar failure: the error that ended reading.
    """

    def __init__(self, inputs: Inputs) -> None:
        options, capture, sinks, snapshot, snapshots, memories = inputs
        self.buffers: dict[str, SliceBuffer] = {}
        self.statistics = {name: SinkStatistics(name) for name in sinks}
        self.connecting = False
        self.prove: Callable[[LSN, int], None] | None = None
        self.started = asyncio.Event()
        self.ending = asyncio.Event()
        self.failure: Exception | None = None
        self.notices: Mapping[str, Notices] = {}
        self.gaps = GapPolicy(accept=options.accept_gap)
        self._options = options
        self._capture = capture
        self.snapshots = snapshots
        self._snapshot = snapshot
        self._snapshot_source = snapshot_source(capture.source, snapshot.options, snapshot.hides_key)
        self._sinks = dict(sinks)
        self._memories = memories
        self._contexts: dict[str, SinkContext] = {}
        # The positions that the sinks and the journal keep; set by ``_open``.
        self._stored: dict[str, Position | None] = {}
        # By the name of the buffer.
        self._feeders: dict[str, Feeder] = {}
        self._stopped = asyncio.Event()
        self._reader = SourceReader(capture, snapshot, snapshots, self._snapshot_source, self._settle)

    @abstractmethod
    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the sinks, and deliver until the end. ``cleanup`` closes the sinks."""

    @property
    def ledger(self) -> Ledger | None:
        """The positions of the stream; ``None`` before it has started."""
        return self._capture.ledger

    @property
    def received(self) -> LSN:
        """The WAL position up to which the server has sent the stream; 0 before it has started."""
        return LSN(0) if self.ledger is None else self.ledger.received

    def lags(self) -> dict[str, Lag]:
        """Return how far every sink is behind the server."""
        return {name: lag(self.received, statistics) for name, statistics in self.statistics.items()}

    def sink_statistics(self) -> dict[str, SinkStatistics]:
        """Return the statistics of each sink and of the journal, by name."""
        for name, delivery in self._sinks.items():
            self.statistics[name].waiting_for = delivery.sink.waiting_for
        return dict(self.statistics)

    def stop_reading(self) -> None:
        """Stop reading. Slices in the buffers are still delivered."""
        self._stopped.set()
        for feeder in self._feeders.values():
            feeder.stop()

    async def _begin(
        self,
        cleanup: contextlib.AsyncExitStack,
        journal: Position | None = None,
        journal_end: LSN | None = None,
    ) -> Beginning:
        """Connect, and choose the rows that are read besides the stream.

        If this creates a slot and the start fails, ``cleanup`` drops it, unless a sink or the journal needs it.

        :param journal: the recorded position of the journal; ``None`` if there is none.
        :param journal_end: the journal's end, 0 if it is empty; ``None`` without a journal.
        """
        request = await self._snapshot.prepare(journal, journal_end)
        self.connecting = True
        try:
            found = await self._capture.connect(request)
        finally:
            self.connecting = False
        if self._capture.created is not None:
            cleanup.push_async_callback(self._drop_slot, self._capture.created)
        return await self._snapshot.begin(found, cleanup)

    async def _start_stream(self, start: Start, refuted: Refuted, readings: Collection[str] = ()) -> Ledger:
        """Write the ledger of ``start``, and start the stream.

        :param refuted: as in ``Capture.begin``.
        :param readings: the readings of tables that the journal has in full.
        """
        await self._snapshot.carry_out(start, readings)
        positions = ((name, start.positions[name]) for name in start.claims)
        claims = [self._claim(name, self._holder(name), each) for name, each in positions if each is not None]
        return await self._capture.begin(
            start.after, start.positions, start=start.begin, claims=claims, refuted=refuted
        )

    def _holder(self, name: str) -> str:
        """Return the name of a sink or the journal in messages."""
        return f"sink {name}"

    async def _drop_slot(self, created: CreatedSlot) -> None:
        if not self.started.is_set() or self._undelivered:
            await uninterrupted(self._drop_slot_unless_needed(created))

    async def _drop_slot_unless_needed(self, created: CreatedSlot) -> None:
        start = self._snapshot.start
        dependent = await self._dependent(created.consistent_point if start is None else start)
        if dependent is None:
            await self._capture.roll_back()
            await self._snapshot.forget()
        elif not self.started.is_set():
            _log.warning(
                "the start has failed, but slot %s is kept, because %s has a position in its stream: it keeps WAL until the next "
                "start",
                created.name,
                dependent,
            )

    @property
    def _undelivered(self) -> bool:
        """Whether an initial snapshot has begun and none of its chunks is durable. The next start then begins the snapshot anew."""
        start = self._snapshot.start
        return start is not None and self.ledger is not None and self.ledger.flushed <= start

    @abstractmethod
    async def _dependent(self, lsn: LSN) -> str | None:
        """Return the name of a sink or journal with a position at or after ``lsn``; called after everything is closed."""

    async def _open(
        self, name: str, delivery: ResolvedDelivery, begin: Position, cleanup: contextlib.AsyncExitStack
    ) -> Position | None:
        """Open the sink and its dead letters.

        :returns: the position that the sink keeps, if it keeps one.
        :raises AioreplError: the sink or its dead letters cannot be opened, or do not support their configuration.
        """
        context = self._contexts[name] = SinkContext(name, begin.followed(), delivery.routing_key)
        try:
            if delivery.dead_letters is not None:
                await self._open_sink(delivery.dead_letters, context, delivery.retry, cleanup)
            stored = await self._open_sink(delivery.sink, context, delivery.retry, cleanup)
            self._require_compatible(name, delivery, stored, begin)
        except Exception as error:
            self.statistics[name].failed = str(error)
            raise
        self._stored[name] = stored
        return stored

    @staticmethod
    def _require_compatible(
        name: str, delivery: ResolvedDelivery, stored: Position | None, begin: Position
    ) -> None:
        if stored is not None:
            if delivery.sink.takes_resync:
                raise ConfigurationError(
                    f"sink {name} has takes_resync, so it cannot keep a position: return None from its open"
                )
            stored.require_same_source(begin, f"sink {name}")
            if delivery.concurrency > 1:
                raise ConfigurationError(
                    f"sink {name} keeps its position with its data, which requires one batch at a time: remove concurrency"
                )

    async def _open_sink(
        self, sink: Sink, context: SinkContext, retry: RetryPolicy, cleanup: contextlib.AsyncExitStack
    ) -> Position | None:
        name = context.name
        cleanup.push_async_callback(close, name, sink)
        return await call_sink(self.statistics[name], retry, "open", lambda: sink.open(context), rewind=True)

    def _new_buffer(self, name: str, limit: int) -> SliceBuffer:
        buffer = self.buffers[name] = SliceBuffer(limit)
        return buffer

    def _claim(self, name: str, holder: str, stored: Position) -> Claim:
        """Return the claim of a sink or journal, to be compared with the stream."""
        return Claim(holder, replace(stored, trail=self._contexts[name].position.trail))

    def _worker(
        self,
        name: str,
        delivery: ResolvedDelivery,
        buffer: SliceBuffer,
        progress: Progress,
        *,
        after: LSN,
        stored: Position | None,
    ) -> SinkWorker:
        """Create the worker of an opened sink.

        :param after: the sink has every transaction that ended at or before this LSN.
        :param stored: the position that the sink keeps; ``None`` if it keeps none.
        """
        context = self._contexts[name]
        if stored is not None and context.position.trail is not None:
            context.position.trail.begin(stored)
        return SinkWorker(
            self.statistics[name],
            delivery,
            buffer.cursor(name),
            progress,
            context,
            after=after,
            keeps_position=stored is not None,
            catalog=None if self._capture.tables is None else self._capture.tables.catalog,
            memory=self._memories.get(name),
            notices=self.notices.get(name),
            rows=PresentRows(self._capture.source, self._snapshot_source.options)
            if delivery.reselect
            else None,
        )

    async def _run_workers(
        self,
        buffer: SliceBuffer,
        read: Callable[[], Coroutine[Any, Any, None]],
        workers: list[SinkWorker],
        *,
        name: str = SOURCE,
        stopped: asyncio.Event | None = None,
        rewind: Callable[[LSN], Awaitable[None]] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Fill a buffer, and run its workers to their end.

        :param name: the name of the buffer.
        :param stopped: if it is set, reading ends; ``None``: only ``stop_reading`` ends reading.
        """
        try:
            async with asyncio.TaskGroup() as group:
                feeder = self._feeders[name] = Feeder(
                    group, buffer, read, rewind, failed or self._reading_failed
                )
                feeder.start()
                if (stopped or self._stopped).is_set():
                    feeder.stop()
                for worker in workers:
                    task = group.create_task(
                        _run(worker, feeder), name=f"aiorepl sink {worker.statistics.name}"
                    )
                    attribute_to_sink(task, worker.statistics)
        finally:
            # A sink that has failed reads no more, but the pipeline may continue for the others.
            buffer.clear()

    def _reading_failed(self, error: Exception) -> None:
        """End the pipeline. The error is raised once the sinks are done."""
        self.failure = error
        self.ending.set()

    @abstractmethod
    async def _settle(self, slices: list[Slice]) -> None:
        """Look up the tables of slices for the consumers of the source, before the slices are buffered."""


def first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first exception of a group, however deeply it is nested."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


async def _run(worker: SinkWorker, feeder: Feeder) -> None:
    try:
        await worker.run(feeder)
    except Exception as error:
        worker.statistics.failed = str(error)
        raise


def lag(end: LSN, sink: SinkStatistics, start: LSN = LSN(0)) -> Lag:  # noqa: B008 - immutable
    """Return how far a sink is behind ``end``, in a stream that begins at ``start``."""
    return Lag(max(0, end - max(sink.accepted, start)), max(0, end - max(sink.durable, start)))
