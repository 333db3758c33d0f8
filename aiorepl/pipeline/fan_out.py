"""How slices get from the source to the sinks: by one buffer, or through the journal.

Each harness is a buffer, one task that fills it and a worker for each sink that reads it. A harness ends when its feeder
does: by the end of the stream, on request, or by an error, which is kept until the sinks have finished with what they
have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from aiorepl.cancellation import uninterrupted
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.feeder import Feeder
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink
from aiorepl.delivery.worker import Progress, SinkWorker
from aiorepl.delivery.writer import awaitable, close
from aiorepl.errors import AioreplError, ConfigurationError, SinkError
from aiorepl.lsn import LSN
from aiorepl.pipeline.statistics import Lag
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy
from aiorepl.sink import Sink, SinkContext
from aiorepl.source.capture import Capture
from aiorepl.source.continuity import Claim, GapPolicy
from aiorepl.source.ledger import Ledger
from aiorepl.source.preflight import PreflightResult
from aiorepl.wire.interface import CreatedSlot

_log = logging.getLogger("aiorepl.pipeline")

JOURNAL = "journal"
BACKPRESSURE_WARNING_SECONDS = 10.0


class FanOut(ABC):
    """Everything between the capture and the sinks of one pipeline; ``direct`` here, ``journaled`` next door.

    :param buffer_bytes: bytes that all buffers together may hold.
    :param gaps: what to do about what is missing.
    """

    def __init__(
        self, capture: Capture, sinks: Mapping[str, ResolvedDelivery], buffer_bytes: int, gaps: GapPolicy
    ) -> None:
        self.buffers: dict[str, SliceBuffer] = {}
        self.statistics = {name: SinkStatistics(name) for name in sinks}
        self.started = asyncio.Event()
        self.ending = asyncio.Event()
        self.failure: Exception | None = None
        self.gaps = gaps
        self._capture = capture
        self._sinks = sinks
        self._buffer_bytes = buffer_bytes
        self._contexts: dict[str, SinkContext] = {}
        self._feeders: list[Feeder] = []
        self._stopped = asyncio.Event()

    @abstractmethod
    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the sinks, and run until everything has ended. Sinks are closed through ``cleanup``."""

    @property
    def ledger(self) -> Ledger | None:
        """The positions of the stream; ``None`` before it has begun."""
        return self._capture.ledger

    @property
    def received(self) -> LSN:
        """How far the server has sent; 0 before the stream has begun."""
        return LSN(0) if self.ledger is None else self.ledger.received

    def lags(self) -> dict[str, Lag]:
        """How far every sink is behind what the server has sent."""
        return {name: lag(self.received, statistics) for name, statistics in self.statistics.items()}

    def stop_reading(self) -> None:
        """Fill no buffer any more; what is in them is still delivered."""
        self._stopped.set()
        for feeder in self._feeders:
            feeder.stop()

    async def _connect(self, cleanup: contextlib.AsyncExitStack, **options: Any) -> PreflightResult:
        """Connect. ``cleanup`` drops a slot that this creates, unless a sink or the journal already depends on it."""
        readied = await self._capture.connect(**options)
        if self._capture.created is not None:
            cleanup.push_async_callback(self._undo, self._capture.created)
        return readied

    async def _undo(self, created: CreatedSlot) -> None:
        if not self._complete:
            await uninterrupted(self._undone(created))

    async def _undone(self, created: CreatedSlot) -> None:
        holder = await self._dependent(created.consistent_point)
        if holder is None:
            await self._capture.roll_back()
        elif not self.started.is_set():
            _log.warning(
                "the start has failed, and slot %s stays, for %s has begun with it: it keeps WAL until the next start",
                created.name,
                holder,
            )

    @property
    def _complete(self) -> bool:
        """Whether the stream has begun and its consumers have everything before it."""
        return self.started.is_set()

    @abstractmethod
    async def _dependent(self, lsn: LSN) -> str | None:
        """The name of a sink or journal that holds a position at or behind ``lsn``, once everything is closed."""

    async def _open(
        self, name: str, delivery: ResolvedDelivery, begin: Position, cleanup: contextlib.AsyncExitStack
    ) -> Position | None:
        """Open the sink and its dead letters.

        :raises AioreplError: it cannot be opened, or does not support its configuration.
        """
        context = self._contexts[name] = SinkContext(name, begin.followed(), delivery.routing_key)
        try:
            if delivery.dead_letters is not None:
                await self._opened(delivery.dead_letters, context, delivery.retry, cleanup)
            held = await self._opened(delivery.sink, context, delivery.retry, cleanup)
            self._require_fitting(name, delivery, held, begin)
        except Exception as error:
            self.statistics[name].failed = str(error)
            raise
        return held

    @staticmethod
    def _require_fitting(
        name: str, delivery: ResolvedDelivery, held: Position | None, begin: Position
    ) -> None:
        if held is not None:
            held.require_same_source(begin, f"sink {name}")
            if delivery.concurrency > 1:
                raise ConfigurationError(
                    f"sink {name} keeps its position with its data, which takes one batch at a time: leave concurrency out"
                )

    @staticmethod
    async def _opened(
        sink: Sink, context: SinkContext, retry: RetryPolicy, cleanup: contextlib.AsyncExitStack
    ) -> Position | None:
        cleanup.push_async_callback(close, context.name, sink)
        try:
            async for attempt in retry.sink(f"sink {context.name}: open"):
                with attempt:
                    return await awaitable(context.name, "open", sink.open(context))
            raise AssertionError("the retries end by returning or raising")
        except AioreplError:
            raise
        except Exception as error:
            # The exception's own text may quote a password.
            raise SinkError(f"sink {context.name}: open raised {type(error).__name__}") from error

    def _new_buffer(self, name: str, limit: int) -> SliceBuffer:
        buffer = self.buffers[name] = SliceBuffer(limit)
        return buffer

    def _claim(self, name: str, holder: str, held: Position) -> Claim:
        """The claim of a sink, to be compared with the stream."""
        return Claim(holder, replace(held, trail=self._contexts[name].position.trail))

    def _worker(
        self,
        name: str,
        delivery: ResolvedDelivery,
        buffer: SliceBuffer,
        progress: Progress,
        *,
        after: LSN,
        held: Position | None,
    ) -> SinkWorker:
        """The worker of an opened sink.

        :param after: the sink has everything up to here; it is not delivered again.
        :param held: the position that the sink keeps, if it keeps one.
        """
        context = self._contexts[name]
        if held is not None and context.position.trail is not None:
            context.position.trail.begin(held)
        return SinkWorker(
            self.statistics[name],
            delivery,
            buffer.cursor(name),
            progress,
            context,
            after=after,
            keeps_position=held is not None,
            catalog=None if self._capture.tables is None else self._capture.tables.catalog,
        )

    async def _run_workers(
        self,
        buffer: SliceBuffer,
        read: Callable[[], Coroutine[Any, Any, None]],
        workers: list[SinkWorker],
        *,
        go_back: Callable[[LSN], Awaitable[None]] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        async with asyncio.TaskGroup() as group:
            feeder = Feeder(group, buffer, read, go_back, failed or self._reading_failed)
            self._feeders.append(feeder)
            feeder.start()
            if self._stopped.is_set():
                feeder.stop()
            for worker in workers:
                name = f"aiorepl sink {worker.statistics.name}"
                attribute_to_sink(group.create_task(_run(worker, feeder), name=name), worker.statistics)

    def _reading_failed(self, error: Exception) -> None:
        """Raise it again once the sinks are done."""
        self.failure = error
        self.ending.set()

    async def _read(self, buffer: SliceBuffer) -> None:
        while (slices := await self._capture.receive()) is not None:
            buffer.extend(slices)
            # Or they would be held, and their spool with them, until something else comes.
            del slices
            if buffer.backpressured:
                await self._room(buffer)

    async def _room(self, buffer: SliceBuffer) -> None:
        """Wait until the source may be read on; who keeps it waiting for long is named."""
        clock = asyncio.get_running_loop().time
        began, patience = clock(), BACKPRESSURE_WARNING_SECONDS
        while buffer.backpressured:
            try:
                async with asyncio.timeout(patience):
                    await buffer.room()
            except TimeoutError:
                _log.warning(
                    "sink %s has held back the source for %.0f s, with %d bytes in the buffer: WAL is kept on the "
                    "server meanwhile%s",
                    buffer.slowest,
                    clock() - began,
                    buffer.statistics().bytes,
                    ""
                    if buffer.slowest == JOURNAL
                    else ", and all other sinks wait; with a journal nobody waits",
                )
                patience *= 2


def first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """Task groups raise groups; our callers are told the first thing that went wrong."""
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


def lag(end: LSN, sink: SinkStatistics, begin: LSN = LSN(0)) -> Lag:  # noqa: B008 - immutable
    """How far a sink is behind ``end``, in a stream that has nothing before ``begin``."""
    return Lag(max(0, end - max(sink.accepted, begin)), max(0, end - max(sink.durable, begin)))
