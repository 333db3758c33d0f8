"""How the kit runs a sink: each life of a process in an event loop of its own, watched, and cancelled where it waits.

No plugin of pytest has a part in it, so the kit runs the same under pytest-asyncio, anyio's plugin or neither.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aiorepl.testing.conformance.scenario import SECRET

_T = TypeVar("_T")


class ContractBroken(AssertionError):
    """The sink does other than it has to.

    :param found: what it did.
    :param rule: what the contract or the test's declaration says.
    """

    def __init__(self, found: str, rule: str) -> None:
        super().__init__(f"{found}\n\n  the contract: {rule}")


def run(
    work: Coroutine[Any, Any, _T], seconds: float, *, killed: bool = False, leaves_nothing: bool = False
) -> _T:
    """Run ``work`` as all that a process does.

    :param killed: the process is killed at the end: what went unhandled is not complained of.
    :param leaves_nothing: complain of tasks that still run.
    """
    unhandled: list[str] = []

    async def bounded() -> _T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(str(context["message"])))
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise ContractBroken(
                f"the sink was not done after {seconds} s",
                "a call ends, or raises TransientError; slow targets can be given more time by `seconds`",
            ) from None

    with asyncio.Runner() as runner:
        result = runner.run(bounded())
        left = _tasks(runner.get_loop()) if leaves_nothing else []
    if left:
        raise ContractBroken(f"tasks still run after close: {', '.join(left)}", "close lets go of everything")
    if unhandled and not killed:
        raise ContractBroken(
            f"the event loop was told of: {'; '.join(unhandled)}",
            "a sink awaits the tasks it starts, and raises what goes wrong from its calls",
        )
    return result


def _tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    return sorted(task.get_coro().__qualname__ for task in asyncio.all_tasks(loop))  # type: ignore[union-attr]


@contextmanager
def joined() -> Iterator[None]:
    """Wait for the threads that were started within: an idle one still holds what it was called with.

    A process does not wait for its daemon threads; those of a proxy wait in turn for the sockets that are collected later.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(10.0)


@contextmanager
def unmourned() -> Iterator[None]:
    """What is dropped within was killed, so nobody complains that it was not closed."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook


async def cancelled(call: Coroutine[Any, Any, Any], at: int, name: str, *, late: bool) -> bool:
    """Make a call that is cancelled where it waits for the n-th time; returns whether it came so far.

    :param late: cancel it once what it waits for has completed, before it sees the result.
    :raises ContractBroken: when the call goes on as if it had not been cancelled.
    """
    counted = _Counted(call, at, late=late)
    task = asyncio.ensure_future(counted)
    await asyncio.wait([task])
    if task.cancelled():
        return True
    error = task.exception()
    if counted.struck:
        did = "returned as if nothing had been" if error is None else f"raised {type(error).__name__}"
        raise ContractBroken(
            f"{name} was cancelled at its await number {at} and {did}",
            "cancellation may strike at any await: clean up if need be and let asyncio.CancelledError out",
        )
    if error is not None:
        raise error
    return False


class _Counted(Awaitable[Any]):
    """Awaits a call, and cancels the task around it at the n-th suspension."""

    def __init__(self, call: Coroutine[Any, Any, Any], at: int, *, late: bool) -> None:
        self.struck = False
        self._late = late
        self._call = call
        self._at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, waits = self._call.__await__(), 0
        thrown: BaseException | None = None
        while True:
            try:
                future = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as stop:
                return stop.value
            waits += 1
            if waits == self._at:
                self._strike(future)
            try:
                yield future
                thrown = None
            except BaseException as error:  # noqa: BLE001 - handed on to the call
                thrown = error

    def _strike(self, future: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None

        def strike(*_: object) -> None:
            self.struck = True
            task.cancel()

        if self._late and future is not None:
            # Called before the task hears of it, because the task adds its callback after this one.
            future.add_done_callback(strike)
        else:
            asyncio.get_running_loop().call_soon(strike)


class Watch(logging.Handler):
    """Everything that is logged at INFO or above, and everything raised, searched for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += logging.Formatter().formatException(record.exc_info)
        self.look(text, f"a log record of {record.name!r}")

    def look(self, text: str, where: str) -> None:
        """Remember ``where`` if the text quotes a row."""
        if SECRET in text:
            self.leaks.append(where)

    def look_at(self, error: BaseException, call: str) -> None:
        """Search an error as it would be logged, with what caused it."""
        self.look("".join(traceback.format_exception(error)), f"{type(error).__name__} raised by {call}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Listen to the root logger."""
        root = logging.getLogger()
        level = root.level
        root.addHandler(self)
        root.setLevel(min(level, logging.INFO) or logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(self)
            root.setLevel(level)
