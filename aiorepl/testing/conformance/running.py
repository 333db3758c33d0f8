"""Run a sink in simulated processes: each has its own event loop, is watched for leaks, and can be cancelled at any await.

Independent of pytest plugins: the kit works with pytest-asyncio, anyio's plugin or neither.
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
    """The sink violates its contract.

    :param found: what the sink did.
    :param rule: the rule of the contract, or the declaration, that it violates.
    """

    def __init__(self, found: str, rule: str) -> None:
        super().__init__(f"{found}\n\n  the contract: {rule}")


def run(
    work: Coroutine[Any, Any, _T], seconds: float, *, killed: bool = False, leaves_nothing: bool = False
) -> _T:
    """Run ``work`` in a simulated process.

    :param seconds: time limit.
    :param killed: the process is killed at the end, so unhandled errors do not count.
    :param leaves_nothing: fail if tasks still run at the end.
    :raises ContractBroken: the time limit has passed, an error was not handled, or a task still runs.
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
            f"unhandled errors in the event loop: {'; '.join(unhandled)}",
            "a sink awaits the tasks it starts, and raises what goes wrong from its calls",
        )
    return result


def _tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    return sorted(task.get_coro().__qualname__ for task in asyncio.all_tasks(loop))  # type: ignore[union-attr]


@contextmanager
def joined() -> Iterator[None]:
    """Wait for threads that were started within the context. An idle thread keeps references to its arguments.

    Daemon threads are left out, because a process does not wait for them either. A proxy's daemon threads would wait for
    sockets that are collected later.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(10.0)


@contextmanager
def without_resource_warnings() -> Iterator[None]:
    """Suppress warnings about unclosed resources: the simulated process was killed."""
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
    """Make a call and cancel it at its n-th await.

    :param at: the number of the await.
    :param late: cancel after the awaited operation has completed, before the call sees its result.
    :returns: whether the call reached that await.
    :raises ContractBroken: the call continues despite the cancellation.
    """
    counted = _Counted(call, at, late=late)
    task = asyncio.ensure_future(counted)
    await asyncio.wait([task])
    if task.cancelled():
        return True
    error = task.exception()
    if counted.struck:
        did = "returned normally" if error is None else f"raised {type(error).__name__}"
        raise ContractBroken(
            f"{name} was cancelled at its await number {at} and {did}",
            "cancellation may arrive at any await: clean up and let asyncio.CancelledError propagate",
        )
    if error is not None:
        raise error
    return False


class _Counted(Awaitable[Any]):
    """Awaits a call, and cancels the surrounding task at the n-th await."""

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
            except BaseException as error:  # noqa: BLE001 - passed to the call
                thrown = error

    def _strike(self, future: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None

        def strike(*_: object) -> None:
            self.struck = True
            task.cancel()

        if self._late and future is not None:
            # Runs before the task resumes, because the task adds its callback later.
            future.add_done_callback(strike)
        else:
            asyncio.get_running_loop().call_soon(strike)


class Watch(logging.Handler):
    """Searches log records at INFO and above, and errors, for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += logging.Formatter().formatException(record.exc_info)
        self.look(text, f"a log record of {record.name!r}")

    def look(self, text: str, where: str) -> None:
        """Record ``where`` if the text contains a row."""
        if SECRET in text:
            self.leaks.append(where)

    def look_at(self, error: BaseException, call: str) -> None:
        """Search an error with its causes, as it would be logged."""
        self.look("".join(traceback.format_exception(error)), f"{type(error).__name__} raised by {call}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Search the records of the root logger."""
        root = logging.getLogger()
        level = root.level
        root.addHandler(self)
        root.setLevel(min(level, logging.INFO) or logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(self)
            root.setLevel(level)
