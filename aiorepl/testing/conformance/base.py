"""What every sink is put through, whatever its target shows: batches in all cuts, crashes, replays, cancellation.

``Conformance`` says how a sink is driven and when the target is looked at; what is expected to be seen there is
``expect``, which ``SinkConformance`` and ``MirrorConformance`` define.
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
from aiorepl.testing.conformance.running import ContractBroken, Watch, joined, run, unmourned
from aiorepl.testing.conformance.scenario import TABLES, Scenario, Table, batches
from aiorepl.transactions.slices import Slice

_T = TypeVar("_T")

ONE_BATCH, EACH_ALONE, IN_PARTS = 1 << 40, 2000, 1
"""Batch limits: everything at once, a transaction or a few, each slice by itself."""

OUTAGE = "outage(): how the target is made not to answer"
LOST_ANSWER = "lost_answer(): how the target does what it is asked and its answer is lost"


class Conformance:
    """What an author declares. See the package for how to use it."""

    exactly_once: ClassVar[bool] = False
    """Whether ``open`` returns the position that the target holds with its data."""

    atomic: ClassVar[bool] = False
    """Whether a transaction is seen whole or not at all, also one that comes in slices."""

    kinds: ClassVar[frozenset[str]] = frozenset({"insert", "update", "delete", "truncate", "message"})
    """The kinds of change that the target shows. Others are written all the same, and may be ignored."""

    tables: ClassVar[tuple[Table, ...]] = TABLES
    """The tables that it takes: leave out ``FULL`` and ``KEYLESS`` where tables without a key are refused."""

    poison: ClassVar[str | None] = None
    """A value of ``public.items.note`` that the target refuses for good, if there is one."""

    seconds: ClassVar[float] = 60.0
    """How long one life of a sink may take."""

    cancellations: ClassVar[int] = 20
    """At how many awaits of a call it is cancelled at most."""

    def make_sink(self) -> Sink | SyncSink:
        """A new sink, not yet opened. Within one test all of them have the same target, empty at the beginning."""
        raise NotImplementedError("define make_sink: a new sink over this test's target")

    def crash(self, sink: Any) -> None:
        """Lose what a killed process would: for targets that live in this process. The sink is just dropped else."""

    def outage(self) -> AbstractContextManager[object] | None:
        """Within it the target does not answer; ``None`` if that cannot be done."""
        return None

    def lost_answer(self) -> AbstractContextManager[object] | None:
        """Within it the target does what it is asked, and its answers are lost; ``None`` if that cannot be done."""
        return None

    async def expect(
        self,
        done: Sequence[Slice],
        maybe: Sequence[Slice] = (),
        *,
        replayed: Sequence[Slice] = (),
        after: str,
    ) -> None:
        """Look at the target: ``done`` has to be there, of ``maybe`` some may be, and nothing else.

        :param replayed: dead letters that were written again: they have to be there, in any place.
        :raises ContractBroken: when it is otherwise.
        """
        raise NotImplementedError

    # How the tests drive a sink.

    def live(self, work: Callable[[], Coroutine[Any, Any, _T]], *, leaves_nothing: bool = False) -> _T:
        """One life of a process, which ends in order."""
        return run(work(), self.seconds, leaves_nothing=leaves_nothing)

    def die(self, work: Callable[[Sink], Coroutine[Any, Any, _T]]) -> _T:
        """One life of a process that is killed at its end: the sink is neither flushed nor closed."""
        with unmourned(), joined():
            made = self.make_sink()
            result = run(work(_asynchronous(made)), self.seconds, killed=True)
            self.crash(made)
            del made
        return result

    def new_sink(self) -> Sink:
        """A new sink as the engine calls it."""
        return _asynchronous(self.make_sink())

    @asynccontextmanager
    async def opened(self, scenario: Scenario) -> AsyncIterator[tuple[Sink, Position | None]]:
        """A new sink, opened, and closed in the end."""
        sink = self.new_sink()
        try:
            yield sink, self._checked(await sink.open(scenario.context), scenario)
        finally:
            await sink.close()

    def missing(
        self, scenario: Scenario, held: Position | None, confirmed: int = 0, at_once: int | None = None
    ) -> list[Slice]:
        """What the engine sends again to a sink that returned ``held``, where the slot stands at ``confirmed``."""
        return scenario.stream.again(at_once, after=confirmed if held is None else held.lsn)

    async def write(
        self, sink: Sink, slices: Sequence[Slice], limit: int = EACH_ALONE, *, flush: bool = True
    ) -> None:
        """Write slices in batches of the limit, and flush."""
        for batch in batches(slices, limit):
            await sink.write(batch)
        if flush:
            await sink.flush()

    async def refuse(self, sink: Sink, batch: Batch, watch: Watch | None = None) -> SinkError | None:
        """Write and flush a batch that may fail; the error if it did."""
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
                "open returned a position of another cluster or slot than it was given and has written",
                "a position is kept whole, as Position.to_json has it",
            )
        return held


def _asynchronous(sink: Sink | SyncSink) -> Sink:
    return ThreadedSink(sink) if isinstance(sink, SyncSink) else sink


async def value_of(found: Any) -> Any:
    """What an author's method gives, be it a coroutine or not."""
    return await found if inspect.isawaitable(found) else found


def skip_without(given: object, what: str) -> None:
    """Skip a test that the author has given no means for."""
    if not given:
        pytest.skip(f"the test class does not say {what}")
