"""How slices get from the source to the sinks: by one window, or through the journal.

Each lane is a window, one task that fills it and a runner for each sink that reads it. A lane ends when its filler
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
from functools import partial
from typing import Any

from aiorepl.cancellation import uninterrupted
from aiorepl.delivery.capture import Capture
from aiorepl.delivery.continuity import Claim
from aiorepl.delivery.delivery import Served
from aiorepl.delivery.filling import Filler
from aiorepl.delivery.gaps import HOW, Gaps
from aiorepl.delivery.ledger import Ledger
from aiorepl.delivery.overview import Lag
from aiorepl.delivery.readying import Readied
from aiorepl.delivery.retry import RetryPolicy
from aiorepl.delivery.runner import Progress, SinkRunner
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import held_responsible
from aiorepl.delivery.window import Window
from aiorepl.delivery.writing import awaitable, close
from aiorepl.errors import AioreplError, ConfigurationError, SinkError, SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.sink import Sink, SinkContext
from aiorepl.wire.routes import CreatedSlot

_log = logging.getLogger("aiorepl.pipeline")

SOURCE = "source"
JOURNAL = "journal"
HELD_BACK_SECONDS = 10.0


class Lanes(ABC):
    """Everything between the capture and the sinks of one pipeline; ``direct`` here, ``journaled`` next door.

    :param memory: bytes that all windows together may hold.
    :param gaps: what to do about what is missing.
    """

    def __init__(self, capture: Capture, sinks: Mapping[str, Served], memory: int, gaps: Gaps) -> None:
        self.ledger = Ledger(LSN(0), ())
        self.windows: dict[str, Window] = {}
        self.statistics = {name: SinkStatistics(name) for name in sinks}
        self.started = asyncio.Event()
        self.ending = asyncio.Event()
        self.failure: Exception | None = None
        self.gaps = gaps
        self._capture = capture
        self._sinks = sinks
        self._memory = memory
        self._contexts: dict[str, SinkContext] = {}
        self._fillers: list[Filler] = []
        self._stopped = asyncio.Event()

    @abstractmethod
    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the sinks, and run until everything has ended. Sinks are closed through ``cleanup``."""

    def lags(self) -> dict[str, Lag]:
        """How far every sink is behind what the server has sent."""
        received = self.ledger.received
        return {name: lag(received, statistics) for name, statistics in self.statistics.items()}

    def stop_reading(self) -> None:
        """Fill no window any more; what is in them is still delivered."""
        self._stopped.set()
        for filler in self._fillers:
            filler.stop()

    async def _connect(self, cleanup: contextlib.AsyncExitStack, **options: Any) -> Readied:
        """Connect. ``cleanup`` drops a slot that this creates, unless a sink or the journal already depends on it."""
        readied = await self._capture.connect(**options)
        if self._capture.created is not None:
            cleanup.push_async_callback(self._undo, self._capture.created)
        return readied

    async def _undo(self, created: CreatedSlot) -> None:
        if not self._complete:
            await uninterrupted(self._undone(created))

    async def _undone(self, created: CreatedSlot) -> None:
        holder = await self._holder(created.consistent_point)
        if holder is None:
            await self._capture.undo()
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
    async def _holder(self, lsn: LSN) -> str | None:
        """The name of a sink or journal that holds a position at or behind ``lsn``, once everything is closed."""

    async def _open(
        self, name: str, serve: Served, begin: Position, cleanup: contextlib.AsyncExitStack
    ) -> Position | None:
        """Open the sink and its dead letters.

        :raises AioreplError: it cannot be opened, or does not support its configuration.
        """
        context = self._contexts[name] = SinkContext(name, begin.followed(), serve.routing_key)
        try:
            if serve.dead_letters is not None:
                await self._opened(serve.dead_letters, context, serve.retry, cleanup)
            held = await self._opened(serve.sink, context, serve.retry, cleanup)
            self._require_fitting(name, serve, held, begin)
        except Exception as error:
            self.statistics[name].failed = str(error)
            raise
        return held

    @staticmethod
    def _require_fitting(name: str, serve: Served, held: Position | None, begin: Position) -> None:
        if held is not None:
            held.require_same_source(begin, f"sink {name}")
            if serve.concurrency > 1:
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

    def _window(self, name: str, limit: int) -> Window:
        window = self.windows[name] = Window(limit)
        return window

    def _claim(self, name: str, holder: str, held: Position) -> Claim:
        """The claim of a sink, to be compared with the stream."""
        return Claim(holder, replace(held, trail=self._contexts[name].position.trail))

    def _runner(
        self,
        name: str,
        serve: Served,
        window: Window,
        progress: Progress,
        *,
        after: LSN,
        held: Position | None,
    ) -> SinkRunner:
        """The runner of an opened sink.

        :param after: the sink has everything up to here; it is not delivered again.
        :param held: the position that the sink keeps, if it keeps one.
        """
        context = self._contexts[name]
        if held is not None and context.position.trail is not None:
            context.position.trail.begin(held)
        return SinkRunner(
            self.statistics[name],
            serve,
            window.cursor(name),
            progress,
            context,
            after=after,
            keeps_position=held is not None,
            lineage=None if self._capture.tables is None else self._capture.tables.lineage,
        )

    async def _lane(
        self,
        window: Window,
        read: Callable[[], Coroutine[Any, Any, None]],
        runners: list[SinkRunner],
        *,
        go_back: Callable[[LSN], Awaitable[None]] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        async with asyncio.TaskGroup() as group:
            filler = Filler(group, window, read, go_back, failed or self._reading_failed)
            self._fillers.append(filler)
            filler.start()
            if self._stopped.is_set():
                filler.stop()
            for runner in runners:
                name = f"aiorepl sink {runner.statistics.name}"
                held_responsible(group.create_task(_run(runner, filler), name=name), runner.statistics)

    def _reading_failed(self, error: Exception) -> None:
        """Raise it again once the sinks are done."""
        self.failure = error
        self.ending.set()

    async def _read(self, window: Window) -> None:
        while (slices := await self._capture.receive()) is not None:
            window.extend(slices)
            # Or they would be held, and their spool with them, until something else comes.
            del slices
            if window.held_back:
                await self._room(window)

    async def _room(self, window: Window) -> None:
        """Wait until the source may be read on; who keeps it waiting for long is named."""
        clock = asyncio.get_running_loop().time
        began, patience = clock(), HELD_BACK_SECONDS
        while window.held_back:
            try:
                async with asyncio.timeout(patience):
                    await window.room()
            except TimeoutError:
                _log.warning(
                    "sink %s has held back the source for %.0f s, with %d bytes in the window: WAL is kept on the "
                    "server meanwhile%s",
                    window.slowest,
                    clock() - began,
                    window.statistics().bytes,
                    ""
                    if window.slowest == JOURNAL
                    else ", and all other sinks wait; with a journal nobody waits",
                )
                patience *= 2


class DirectLanes(Lanes):
    """One window for all sinks, and the slot waits for each of them."""

    def __init__(self, capture: Capture, sinks: Mapping[str, Served], memory: int, gaps: Gaps) -> None:
        super().__init__(capture, sinks, memory, gaps)
        # The positions that the sinks returned from ``open``.
        self._held: dict[str, Position | None] = {}

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the sinks, deliver."""
        try:
            await self._run(cleanup)
        except Exception:
            for statistics in self.statistics.values():
                # With one sink, the raised error is enough.
                if len(self._sinks) > 1 and statistics.failed is not None:
                    _log.error(
                        "sink %s stops, and all others with it: %s", statistics.name, statistics.failed
                    )
            raise

    async def _holder(self, lsn: LSN) -> str | None:
        holding = (name for name, held in self._held.items() if held is not None and held.lsn >= lsn)
        return next((f"sink {name}" for name in holding), None)

    async def _run(self, cleanup: contextlib.AsyncExitStack) -> None:
        if all(serve.sink.takes_prepared for serve in self._sinks.values()):
            self._capture.take_prepared()
        readied = await self._connect(cleanup)
        begin = readied.position
        for name, serve in self._sinks.items():
            self._held[name] = await self._open(name, serve, begin, cleanup)
        goes_on = {
            name: self.gaps.check(f"sink {name}", position, begin, readied.wal_end)
            for name, position in self._held.items()
        }
        after = min(begin.lsn if position is None else position.lsn for position in goes_on.values())
        claims = [
            self._claim(name, f"sink {name}", position)
            for name, position in goes_on.items()
            if position is not None and position == self._held[name]
        ]
        self.ledger = await self._capture.begin(after, self._sinks, claims=claims, refuted=self.gaps.refuted)
        window = self._window(SOURCE, self._memory)
        runners = [
            self._runner(
                name,
                serve,
                window,
                InLedger(self.ledger, name),
                after=(goes_on[name] or begin).lsn,
                held=goes_on[name],
            )
            for name, serve in self._sinks.items()
        ]
        self.started.set()
        await self._lane(window, partial(self._read, window), runners, go_back=self._capture.go_back)


def first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """Task groups raise groups; our callers are told the first thing that went wrong."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


async def _run(runner: SinkRunner, filler: Filler) -> None:
    try:
        await runner.run(filler)
    except Exception as error:
        runner.statistics.failed = str(error)
        raise


def lag(end: LSN, sink: SinkStatistics, begin: LSN = LSN(0)) -> Lag:  # noqa: B008 - immutable
    """How far a sink is behind ``end``, in a stream that has nothing before ``begin``."""
    return Lag(max(0, end - max(sink.accepted, begin)), max(0, end - max(sink.durable, begin)))


class InLedger:
    """The progress of a sink that the slot waits for."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name

    async def accepted(self, end_lsn: LSN) -> None:
        self._ledger.accept(self._name, end_lsn)

    async def durable(self, end_lsn: LSN) -> None:
        self._ledger.durable(self._name, end_lsn)

    async def stands(self, lsn: LSN) -> None:
        if not self._ledger.stand(self._name, lsn):
            raise SlotError(
                f"sink {self._name} had everything up to {self._ledger.flushed} and now stands at {lsn}: its target has lost "
                f"what came between, and the slot is confirmed past it; {HOW}"
            )
