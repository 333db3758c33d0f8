"""``until``: waits in a test for a condition."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import pytest

Found = TypeVar("Found")

DEADLINE: Final = 240.0
"""Seconds after which a wait has failed, even on a busy machine."""


async def until(
    look: Callable[[], Awaitable[Found] | Found],
    good: Callable[[Found], object] = bool,
    *,
    seconds: float = DEADLINE,
) -> Found:
    """Call ``look`` until ``good`` accepts its result, and return this result.

    :param look: returns the result, or an awaitable of it.
    :param good: returns whether a result is accepted; by default, any true result is.
    :param seconds: the test fails after this time.
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
                pause = min(2 * pause, 0.05)  # frequent queries slow the server down
    except TimeoutError:
        pytest.fail(f"still {found!r} after {seconds} s")
