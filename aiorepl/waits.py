"""Tells what something waits for on a server, as long as it waits: in the log, and in a status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import asyncpg

from aiorepl.errors import AioreplError

SESSION: Final = (
    "a.pid, a.usename::text AS role, a.application_name AS application, a.state, "
    "pg_catalog.substring(a.query, '^\\s*(\\w+)') AS command"
)
"""The columns of ``session``, of pg_stat_activity as ``a``. Of a command only the first word, because the rest may quote rows."""


@contextlib.contextmanager
def telling(
    look: Callable[[], Awaitable[str | None]],
    tell: Callable[[str | None], None],
    name: str,
    *,
    first: float,
    seconds: float,
) -> Iterator[None]:
    """While the block waits, find out for what, and tell it.

    :param look: returns what the block waits for; ``None`` if it waits for nothing. Its errors do not matter.
    :param tell: called with each result, and at last with ``None``.
    :param name: of the task.
    :param first: seconds until the first look.
    :param seconds: between two looks.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    def begin() -> None:
        tasks.append(loop.create_task(_tell(look, tell, seconds), name=name))

    # Most blocks end before the first look, and a timer costs less than a task.
    timer = loop.call_later(first, begin)
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            # Not awaited: a cancellation of this await would lose the result of the block.
            task.cancel()
            tell(None)


async def _tell(
    look: Callable[[], Awaitable[str | None]], tell: Callable[[str | None], None], seconds: float
) -> None:
    while True:
        with contextlib.suppress(AioreplError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            tell(await look())
        await asyncio.sleep(seconds)


def session(row: Any) -> str:
    """Describe a session by the columns ``SESSION`` and ``age``, the age of its transaction."""
    does = (
        " ".join(filter(None, (row["state"], row["command"])))
        or "its command is visible to pg_read_all_stats only"
    )
    return (
        f"process {row['pid']} ({does}), role {row['role']!r}, application {row['application']!r}, "
        f"begun {row['age']} ago"
    )
