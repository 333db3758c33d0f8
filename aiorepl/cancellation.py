"""Protects calls from asyncio's cancellation.

``Resumable`` is for a call that takes longer than its caller's time-outs: it continues while no task waits for it.
``uninterrupted`` is for cleanup that must finish: its caller is cancelled afterwards.
``cancel_and_wait`` ends tasks, ``run_beside`` runs one until a cleanup, and ``run_until_set`` ends a call when an event is set.
``cancellable`` is for a call into a library that may swallow the cancellation.
``detect_unexpected_cancellation`` is for a call of user code, which may raise CancelledError although no task has cancelled the call.
``require_asyncio`` refuses other event loops.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from anyio import CancelScope

from aiorepl.errors import ConfigurationError

T = TypeVar("T")


def require_asyncio() -> None:
    """Check that the caller runs on asyncio.

    :raises ConfigurationError: the caller runs on another event loop, such as trio's.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "aiorepl needs asyncio, and the current event loop is another one, such as trio's: use asyncio.run, or "
            "anyio.run(…, backend='asyncio')"
        ) from None


class Resumable(Generic[T]):
    """Runs one call of ``work`` at a time, and returns each result once. One task may use it at a time.

    A call with several awaits would lose consumed data if it were cancelled between two of them. So it runs in a task of its
    own. If the waiting task is cancelled, the next call of ``result`` waits for the same task.

    :param name: of the task.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], name: str) -> None:
        self._work = work
        self._name = name
        self._task: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """Return the result of the call in progress, or else of a new call, or raise its exception."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=self._name)
        task = self._task
        if not task.done():
            await asyncio.wait({task})
        self._task = None
        return task.result()

    async def stop(self) -> None:
        """Cancel the call in progress and wait for its end."""
        if (task := self.cancel()) is not None:
            await asyncio.wait({task})

    def cancel(self) -> asyncio.Task[T] | None:
        """Cancel the call in progress, and return its task. An error that it raises is ignored."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            task.add_done_callback(_retrieve)
        return task


async def uninterrupted(work: Coroutine[Any, Any, T], *, patience: float = math.inf) -> T:
    """Run ``work`` to its end. A cancellation is raised afterwards, in place of an error of ``work``.

    :param patience: seconds from the first cancellation until ``work`` is cancelled, too.
    """
    clock = asyncio.get_running_loop().time
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    until = math.inf
    while not task.done():
        if clock() >= until:
            task.cancel()
            until = math.inf
        try:
            # Without a shield, a cancelled scope of anyio would cancel this wait repeatedly.
            with CancelScope(shield=True):
                await asyncio.wait({task}, timeout=None if until == math.inf else until - clock())
        except asyncio.CancelledError as error:
            if cancelled is None:
                cancelled, until = error, clock() + patience
    if cancelled is None:
        return task.result()
    _retrieve(task)
    raise cancelled


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, including their cleanup. Their errors are dropped."""
    for task in tasks:
        task.cancel()
    # Within a cancelled scope anyio would cancel this again and again.
    with CancelScope(shield=True):
        await asyncio.gather(*tasks, return_exceptions=True)


def run_beside(cleanup: AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
    """Run ``work`` in a task, until ``cleanup`` cancels it.

    :param name: the task's name, without the prefix ``aiorepl``.
    """
    cleanup.push_async_callback(cancel_and_wait, asyncio.create_task(work, name=f"aiorepl {name}"))


async def run_until_set(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of ``work``; if the event is set first, cancel ``work`` and return ``None``."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await cancel_and_wait(waiting, working)


async def cancellable(call: Awaitable[T]) -> T:
    """Await ``call``. If the task was cancelled meanwhile, raise CancelledError even if ``call`` did not.

    Before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that arrives together with its result; clients use it.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class UnexpectedCancellation(Exception):
    """A call raised CancelledError, although its task was not cancelled."""


async def detect_unexpected_cancellation(call: Awaitable[T]) -> T:
    """Await ``call``, and replace a CancelledError by an error if the current task was not cancelled.

    A TaskGroup ignores the CancelledError of a task, so the group would end as if the task had done its work.

    :raises UnexpectedCancellation: the current task was not cancelled; ``call`` has awaited another task that was cancelled.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnexpectedCancellation().with_traceback(error.__traceback__) from error


def _retrieve(task: asyncio.Task[Any]) -> None:
    # Retrieve the exception. Otherwise asyncio logs that it was never retrieved.
    if not task.cancelled():
        task.exception()
