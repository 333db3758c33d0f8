"""Notifies the readers of this process that a journal has grown. Readers in other processes poll.

The writer runs in a thread, and readers may run in several event loops, so each reader is woken through its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from weakref import WeakSet

_notifiers: dict[str, WeakSet[Notifier]] = {}
_lock = threading.Lock()


class Notifier:
    """Waits for growth of the journal at ``url``. Registered for as long as the object exists."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._grown = asyncio.Event()
        with _lock:
            _notifiers.setdefault(url, WeakSet()).add(self)

    def notify(self) -> None:
        """Wake the waiting task. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            self._loop.call_soon_threadsafe(self._grown.set)

    async def wait(self, seconds: float) -> None:
        """Wait for a notification since the last call, but no longer than ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._grown.wait()
        self._grown.clear()


def notify(url: str) -> None:
    """Notify the readers of the journal at ``url``."""
    with _lock:
        notifiers = list(_notifiers.get(url, ()))
        if not notifiers:
            _notifiers.pop(url, None)
    for notifier in notifiers:
        notifier.notify()
