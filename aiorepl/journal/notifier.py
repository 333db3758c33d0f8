"""Who waits for a journal to grow, in this process. Others have to look.

A writer works in a thread of its own, and readers may run on several event loops, so a waiter is woken through its
own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from weakref import WeakSet

_waiting: dict[str, WeakSet[Notifier]] = {}
_lock = threading.Lock()


class Notifier:
    """Rings when the journal at ``url`` has grown, for as long as somebody has it."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        with _lock:
            _waiting.setdefault(url, WeakSet()).add(self)

    def ring(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits there
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float) -> None:
        """Until it rings, which it may have done already, but no longer than ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()


def grown(url: str) -> None:
    """Tell all who listen that the journal at ``url`` has grown."""
    with _lock:
        bells = list(_waiting.get(url, ()))
        if not bells:
            _waiting.pop(url, None)
    for bell in bells:
        bell.ring()
