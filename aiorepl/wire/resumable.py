"""A call that continues when its waiter is cancelled, for what takes longer than a consumer's time-out.

A call that waits for a server in several steps cannot consume what it has read and be cancelled between two of them.
Here the steps run in a task of their own: whoever waits may be cancelled, and the next call waits for the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Resumable(Generic[T]):
    """Calls ``work`` once at a time, and gives each result to one waiter. One task may use it at a time."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], name: str) -> None:
        self._work = work
        self._name = name
        self._task: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """The result of the call that is under way, or of a new one; what it raises is raised here."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=self._name)
        task = self._task
        if not task.done():
            await asyncio.wait({task})
        self._task = None
        return task.result()

    async def stop(self) -> None:
        """Cancel the call that is under way and wait for its end."""
        if (task := self.cancel()) is not None:
            await asyncio.wait({task})

    def cancel(self) -> asyncio.Task[T] | None:
        """Cancel the call that is under way, and return its task; what it raises then is nobody's concern."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            task.add_done_callback(_retrieve)
        return task


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
