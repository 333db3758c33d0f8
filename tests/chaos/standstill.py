"""Time limits that are a sign of a hang, and not of a machine that has other work.

The time counts only in the share of the processors that a process can get, and it begins again with each sign of progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

# Seconds between two looks at the signs.
_PAUSE = 0.25
_NOTHING = object()


class Budget:
    """Seconds without progress that are left.

    :param seconds: the seconds, on a machine without other work.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds
        self._seen: object = _NOTHING

    def spend(self, seconds: float, slowdown: float, sign: object) -> bool:
        """Count the time since the last call.

        :param slowdown: how many times longer work takes than on a machine without other work.
        :param sign: the state of the observed work: if it has changed, the time begins again.
        :returns: whether anything is left.
        """
        if sign != self._seen:
            self._seen, self._left = sign, self._seconds
        else:
            self._left -= seconds / max(1.0, slowdown)
        return self._left > 0


def load() -> str:
    """Return the text of ``/proc/loadavg``."""
    return Path("/proc/loadavg").read_text()


def slowdown(load: str, processors: int) -> float:
    """Return how many times longer work takes than on a machine without other work.

    :param load: see ``load``. It has the mean of a minute, which counts waits for a disk, too, and the runnable threads of this moment.
    """
    fields = load.split()
    runnable = int(fields[3].partition("/")[0])
    return max(1.0, float(fields[0]) / processors, runnable / processors)


@contextlib.asynccontextmanager
async def standstill(
    seconds: float, signs: Callable[[], object] = lambda: None, *, pause: float = _PAUSE
) -> AsyncIterator[None]:
    """Cancel the block after a time without progress.

    :param seconds: the time, on a machine without other work.
    :param signs: returns the state of the observed work. Without it, only other work of the machine makes the time longer.
    :raises TimeoutError: as ``asyncio.timeout`` does.
    """
    async with asyncio.timeout(None) as limit:
        ticking = asyncio.create_task(_tick(limit, Budget(seconds), signs, min(pause, seconds / 4)))
        try:
            yield
        finally:
            ticking.cancel()


async def _tick(limit: asyncio.Timeout, budget: Budget, signs: Callable[[], object], pause: float) -> None:
    processors = os.cpu_count() or 1
    # A pause counts as it was asked for: it is longer if this process does not get a processor.
    while budget.spend(pause, slowdown(load(), processors), signs()):
        await asyncio.sleep(pause)
    limit.reschedule(asyncio.get_running_loop().time())
