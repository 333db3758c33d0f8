"""The base of the conformance tests: what an author declares, and how the tests drive a sink.

``SinkConformance`` and ``MirrorConformance`` define ``expect``, which compares the target with the changes that were written.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, ClassVar, TypeVar

import pytest

from aiorepl.delivery.sync_sink import ThreadedSink
from aiorepl.errors import SinkError
from aiorepl.position import Position
from aiorepl.sink import Batch, Sink, SyncSink
from aiorepl.testing.conformance.running import ContractBroken, Watch, joined, run, without_resource_warnings
from aiorepl.testing.conformance.scenario import TABLES, SampleTable, Scenario, batches
from aiorepl.transactions.slices import Slice

_T = TypeVar("_T")

ONE_BATCH, EACH_ALONE, IN_PARTS = 1 << 40, 2000, 1
"""Batch limits in bytes: all slices in one batch, one or a few transactions, one slice."""

OUTAGE = "outage(): how to make the target unavailable"
LOST_ANSWER = "lost_answer(): how to lose an answer of the target"


class Conformance:
    """What a sink's author declares: the sink, its target, and its guarantees. The package's docstring has an example."""

    exactly_once: ClassVar[bool] = False
    """Whether ``open`` returns a position that the target stores together with its data."""

    atomic: ClassVar[bool] = False
    """Whether consumers see a transaction whole or not at all, even if it arrives in slices."""

    kinds: ClassVar[frozenset[str]] = frozenset({"insert", "read", "update", "delete", "truncate", "message"})
    """The kinds of change that the target contains. The tests also write all other kinds, which the sink may ignore."""

    tables: ClassVar[tuple[SampleTable, ...]] = TABLES
    """The tables that the sink accepts. Leave out ``FULL`` and ``KEYLESS`` if it rejects tables without a key."""

    poison: ClassVar[str | None] = None
    """A value of ``public.items.note`` that the target always rejects, if there is one."""

    seconds: ClassVar[float] = 60.0
    """Time limit for one simulated process, in seconds."""

    cancellations: ClassVar[int] = 20
    """The number of awaits at which each call is cancelled, at most."""

    def make_sink(self) -> Sink | SyncSink:
        """Return a new sink that is not open. All sinks of one test have the same target, which is empty at its start."""
        raise NotImplementedError("define make_sink: return a new sink over this test's target")

    def crash(self, sink: Any) -> None:
        """Drop what a killed process would lose; only needed for targets inside this process."""

    def outage(self) -> AbstractContextManager[object] | None:
        """Return a context within which the target is unavailable; ``None`` if that is not possible."""
        return None

    def lost_answer(self) -> AbstractContextManager[object] | None:
        """Return a context within which the target executes requests but its answers are lost; ``None`` if not possible."""
        return None

    async def expect(
        self,
        done: Sequence[Slice],
        maybe: Sequence[Slice] = (),
        *,
        replayed: Sequence[Slice] = (),
        after: str,
    ) -> None:
        """Compare the target with the written slices.

        :param done: slices that must be there.
        :param maybe: slices of which some may be there.
        :param replayed: replayed dead letters, which must be there, in any order.
        :raises ContractBroken: the target lacks a change, or has one that was not written.
        """
        raise NotImplementedError

    # The members below are for the tests.

    def live(self, work: Callable[[], Coroutine[Any, Any, _T]], *, leaves_nothing: bool = False) -> _T:
        """Simulate a process that ends normally."""
        return run(work(), self.seconds, leaves_nothing=leaves_nothing)

    def die(self, work: Callable[[Sink], Coroutine[Any, Any, _T]]) -> _T:
        """Simulate a process that is killed at the end of ``work``: the sink is neither flushed nor closed."""
        with without_resource_warnings(), joined():
            sink = self.make_sink()
            result = run(work(_asynchronous(sink)), self.seconds, killed=True)
            self.crash(sink)
            del sink
        return result

    def new_sink(self) -> Sink:
        """Return a new sink, wrapped for threads if it is synchronous."""
        return _asynchronous(self.make_sink())

    @asynccontextmanager
    async def opened(self, scenario: Scenario) -> AsyncIterator[tuple[Sink, Position | None]]:
        """Open a new sink, and close it in the end."""
        sink = self.new_sink()
        try:
            yield sink, self._checked(await sink.open(scenario.context), scenario)
        finally:
            await sink.close()

    def missing(
        self, scenario: Scenario, held: Position | None, confirmed: int = 0, at_once: int | None = None
    ) -> list[Slice]:
        """Return the slices that the engine sends again to a sink whose ``open`` returned ``held``.

        :param confirmed: the slot's confirmed LSN, for sinks without a position.
        """
        return scenario.stream.again(at_once, after=confirmed if held is None else held.lsn)

    async def write(
        self, sink: Sink, slices: Sequence[Slice], limit: int = EACH_ALONE, *, flush: bool = True
    ) -> None:
        """Write slices in batches of at most ``limit`` bytes, and flush."""
        for batch in batches(slices, limit):
            await sink.write(batch)
        if flush:
            await sink.flush()

    async def try_write(self, sink: Sink, batch: Batch, watch: Watch | None = None) -> SinkError | None:
        """Write and flush a batch that may fail; return its error."""
        call = "write"
        try:
            await sink.write(batch)
            call = "flush"
            await sink.flush()
        except SinkError as error:
            if watch is not None:
                watch.look_at(error, call)
            return error
        except Exception as error:
            if watch is not None:
                watch.look_at(error, call)
                return None
            raise ContractBroken(
                f"{call} raised {type(error).__name__}",
                "raise TransientError when the same batch may succeed later, PermanentError when it never will; "
                "anything else is taken for permanent",
            ) from error
        return None

    def _checked(self, held: Position | None, scenario: Scenario) -> Position | None:
        begin = scenario.context.position
        if held is None:
            return None
        if not self.exactly_once:
            raise ContractBroken(
                "open returned a position, and the test says exactly_once = False",
                "a position is returned by a sink that keeps it in the same atomic step as the data, and so gets "
                "every change exactly once: declare exactly_once = True, or return None",
            )
        if (held.system_identifier, held.slot) != (begin.system_identifier, begin.slot):
            raise ContractBroken(
                "open returned a position of another cluster or slot than its context's",
                "a position is kept whole, as Position.to_json has it",
            )
        return held


def _asynchronous(sink: Sink | SyncSink) -> Sink:
    return ThreadedSink(sink) if isinstance(sink, SyncSink) else sink


async def value_of(result: Any) -> Any:
    """Return the result of an author's method, which may be a coroutine."""
    return await result if inspect.isawaitable(result) else result


def skip_without(declared: object, what: str) -> None:
    """Skip a test if ``declared``, the declaration that it needs, is missing."""
    if not declared:
        pytest.skip(f"the test class does not declare {what}")
