"""``until``: waits in a test until something holds."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import pytest

Found = TypeVar("Found")

DEADLINE: Final = 240.0
"""Seconds after which what a test waits for hangs, also on a busy machine."""


async def until(
    look: Callable[[], Awaitable[Found] | Found],
    good: Callable[[Found], object] = bool,
    *,
    seconds: float = DEADLINE,
) -> Found:
    """Look again and again until ``good`` accepts what was found, and return that.

    :param look: a function, or one that returns an awaitable, such as a query's.
    """
    found, pause = None, 0.002
    try:
        async with asyncio.timeout(seconds):
            while True:
                looked = look()
                found = await looked if inspect.isawaitable(looked) else looked
                if good(found):
                    return found
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.05)  # asking costs the server as much as what it is asked about
    except TimeoutError:
        pytest.fail(f"still {found!r} after {seconds} s")
