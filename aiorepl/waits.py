"""While a call waits for sessions of a server, reports these sessions in the log and in a status."""

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
"""The columns that ``session`` needs, from pg_stat_activity as ``a``. ``command`` is the first word of the query; other words may quote rows."""


@contextlib.contextmanager
def telling(
    look: Callable[[], Awaitable[str | None]],
    tell: Callable[[str | None], None],
    name: str,
    *,
    first: float,
    seconds: float,
) -> Iterator[None]:
    """Report the reason for which the block waits, as long as it runs.

    :param look: returns the reason; ``None`` if the block does not wait. Errors of the server or the connection are ignored.
    :param tell: called with each result of ``look``, and with ``None`` at the end.
    :param name: the name of the task that calls ``look``.
    :param first: seconds until the first call of ``look``.
    :param seconds: seconds between two calls of ``look``.
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
    # With ``track_activities = off`` the server does not show when a transaction began.
    begun = "" if row["age"] is None else f", begun {row['age']} ago"
    return f"process {row['pid']} ({does}), role {row['role']!r}, application {row['application']!r}{begun}"
