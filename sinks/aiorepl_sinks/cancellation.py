"""Cancellation that a client library swallows.

Before Python 3.12 ``asyncio.wait_for`` does, when it strikes together with what is waited for; clients use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def cancellable(call: Awaitable[_T]) -> _T:
    """Await ``call``; if the task was cancelled meanwhile, that comes out whatever the call made of it."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError
