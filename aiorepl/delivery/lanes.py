"""How slices get from the source to the sinks: by one window, or through the journal.

Each lane is a window, one task that fills it and a runner for each sink that reads it. A lane ends when its filler
does: by the end of the stream, on request, or by an error, which is kept until the sinks have finished with what they
have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from typing import Any

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.capture import Capture
from aiorepl.delivery.ledger import Ledger
from aiorepl.delivery.retry import RetryPolicy
from aiorepl.delivery.runner import Progress, SinkRunner
from aiorepl.delivery.window import Window
from aiorepl.errors import ConfigurationError, SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.sink import Sink, SinkContext

_JOURNAL = "journal"
_SOURCE = "source"


class Lanes:
    """Everything between the capture and the sinks of one pipeline."""

    def __init__(
        self,
        capture: Capture,
        sinks: Mapping[str, Sink],
        *,
        journal: str | None,
        snapshot: bool,
        batches: BatchPolicy,
        retry: RetryPolicy,
        memory: int,
    ) -> None:
        if _JOURNAL in sinks:
            raise ConfigurationError(f"no sink can be called {_JOURNAL!r}: that is the journal's own name")
        self.ledger = Ledger(LSN(0), ())
        self.windows: dict[str, Window] = {}
        self.runners: dict[str, SinkRunner] = {}
        self.started = asyncio.Event()
        self.ending = asyncio.Event()
        self.failure: Exception | None = None
        self._capture = capture
        self._sinks = sinks
        self._journal = journal
        self._snapshot = snapshot
        self._batches = batches
        self._retry = retry
        self._memory = memory
        self._fillers: list[asyncio.Task[None]] = []
        self._stopped = False

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the sinks, and run until everything has ended. Sinks are closed through ``cleanup``."""
        readied = await self._capture.connect()
        held = {
            name: await self._open(name, sink, readied.position, cleanup)
            for name, sink in self._sinks.items()
        }
        begin = readied.position.lsn
        after = min((position.lsn for position in held.values() if position), default=begin)
        if any(position is None for position in held.values()):
            after = min(after, begin)
        self.ledger = await self._capture.begin(after, self._sinks)
        window = self.windows[_SOURCE] = Window(self._memory)
        for name, sink in self._sinks.items():
            self._runner(name, sink, window, _InLedger(self.ledger, name), held[name], begin)
        self.started.set()
        await self._lane(window, self._read(window), list(self.runners.values()))

    def stop_reading(self) -> None:
        """Fill no window any more; what is in them is still delivered."""
        self._stopped = True
        for filler in self._fillers:
            filler.cancel()

    async def _open(
        self, name: str, sink: Sink, begin: Position, cleanup: contextlib.AsyncExitStack
    ) -> Position | None:
        cleanup.push_async_callback(sink.close)
        held: Position | None = None
        async for attempt in self._retry.sink():
            with attempt:
                held = await sink.open(SinkContext(name, begin))
        if held is not None:
            held.require_same_source(begin, f"sink {name}")
            if held.lsn < begin.lsn:
                raise SlotError(
                    f"sink {name} stands at {held.lsn}, but slot {begin.slot!r} was confirmed up to {begin.lsn}: what "
                    "lies between is gone from the slot; load the tables into the sink again"
                )
        return held

    def _runner(
        self, name: str, sink: Sink, window: Window, progress: Progress, held: Position | None, begin: LSN
    ) -> SinkRunner:
        runner = self.runners[name] = SinkRunner(
            name,
            sink,
            window.cursor(),
            progress,
            after=begin if held is None else held.lsn,
            keeps_position=held is not None,
            batches=self._batches,
            retry=self._retry,
        )
        return runner

    async def _lane(
        self, window: Window, filling: Coroutine[Any, Any, None], runners: list[SinkRunner]
    ) -> None:
        async with asyncio.TaskGroup() as group:
            filler = group.create_task(self._fill(window, filling), name="aiorepl reader")
            self._fillers.append(filler)
            if self._stopped:
                filler.cancel()
            for runner in runners:
                group.create_task(runner.run(), name=f"aiorepl sink {runner.statistics.name}")

    async def _fill(self, window: Window, filling: Coroutine[Any, Any, None]) -> None:
        try:
            await filling
        except asyncio.CancelledError:
            if not self._stopped:
                raise
        except Exception as error:  # noqa: BLE001 - raised again once the sinks are done
            self.failure = error
            self.ending.set()
        finally:
            filling.close()
            window.close()

    async def _read(self, window: Window) -> None:
        while (slices := await self._capture.receive()) is not None:
            window.extend(slices)
            await window.room()


class _InLedger:
    """The progress of a sink that the slot waits for."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name

    async def accepted(self, end_lsn: LSN) -> None:
        self._ledger.accept(self._name, end_lsn)

    async def durable(self, end_lsn: LSN) -> None:
        self._ledger.durable(self._name, end_lsn)
