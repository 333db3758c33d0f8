"""Timeouts for a stall: they tell a hang from slow work on a loaded machine.

Only the share of the processors that one process can get counts as time, and each progress restarts the timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

# Seconds between two checks.
_PAUSE = 0.25
_NOTHING = object()


class Budget:
    """The seconds without progress that remain until the timeout.

    :param seconds: the seconds, on a machine without other work.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds
        self._seen: object = _NOTHING

    def spend(self, seconds: float, slowdown: float, progress: object) -> bool:
        """Count the time since the last call.

        :param slowdown: see ``slowdown``.
        :param progress: the state of the observed work; a new state restarts the timeout.
        :returns: whether time remains.
        """
        if progress != self._seen:
            self._seen, self._left = progress, self._seconds
        else:
            self._left -= seconds / max(1.0, slowdown)
        return self._left > 0


def load() -> str:
    """Return the text of ``/proc/loadavg``."""
    return Path("/proc/loadavg").read_text()


def slowdown(load: str, processors: int) -> float:
    """Return how many times longer work takes than on a machine without other work.

    :param load: see ``load``: the load average of the last minute, which counts waits for disks, too, and the number of runnable threads.
    """
    fields = load.split()
    runnable = int(fields[3].partition("/")[0])
    return max(1.0, float(fields[0]) / processors, runnable / processors)


@contextlib.asynccontextmanager
async def stall_timeout(
    seconds: float, progress: Callable[[], object] = lambda: None, *, pause: float = _PAUSE
) -> AsyncIterator[None]:
    """Cancel the block after some seconds without progress.

    :param seconds: the seconds, on a machine without other work.
    :param progress: returns the state of the observed work. By default, only the load of the machine extends the timeout.
    :raises TimeoutError: as ``asyncio.timeout`` does.
    """
    async with asyncio.timeout(None) as limit:
        ticking = asyncio.create_task(_tick(limit, Budget(seconds), progress, min(pause, seconds / 4)))
        try:
            yield
        finally:
            ticking.cancel()


async def _tick(limit: asyncio.Timeout, budget: Budget, progress: Callable[[], object], pause: float) -> None:
    processors = os.cpu_count() or 1
    # Count the requested pause. The real pause is longer if this process waits for a processor.
    while budget.spend(pause, slowdown(load(), processors), progress()):
        await asyncio.sleep(pause)
    limit.reschedule(asyncio.get_running_loop().time())
