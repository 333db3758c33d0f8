"""Creating a slot so that a cancellation cancels it on the server, too.

CREATE_REPLICATION_SLOT waits for the end of transactions that are in progress. Meanwhile the server does not notice that
its client has gone, keeps WAL, and may complete the slot in the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from anyio import CancelScope

from aiorepl.errors import AioreplError
from aiorepl.wire.opening import connect_sql, translated
from aiorepl.wire.routes import CreatedSlot

_log = logging.getLogger("aiorepl.wire")

_PATIENCE: Final = 30.0


async def created(
    creating: Coroutine[Any, Any, CreatedSlot],
    *,
    cancel: Callable[[], Awaitable[None]],
    drop: Callable[[CreatedSlot], Awaitable[None]],
) -> CreatedSlot:
    """What ``creating`` returns. If this is cancelled, no slot is left.

    :param cancel: has the server cancel the command.
    :param drop: drops the slot, if the command was faster.
    """
    task = asyncio.ensure_future(creating)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with CancelScope(shield=True):
            try:
                async with asyncio.timeout(_PATIENCE):
                    if not task.done():
                        await cancel()
                        await asyncio.wait({task})
                    if not task.cancelled() and task.exception() is None:
                        await drop(task.result())
            except (AioreplError, OSError) as error:  # a TimeoutError is an OSError
                task.cancel()
                await asyncio.wait({task})
                _log.warning(
                    "a slot was being created when it was cancelled, and may be left: %s",
                    str(error) or type(error).__name__,
                )
        raise


async def cancel_backend(pid: int, dsn: str | None, **kwargs: Any) -> None:
    """Cancel what the server process ``pid`` does, by a connection of its own. ``kwargs`` go to ``asyncpg.connect``.

    :raises ConnectionFailed, ConnectionLost, ServerError: it could not be asked.
    """
    connection = await connect_sql(dsn, **kwargs)
    try:
        await connection.execute("SELECT pg_catalog.pg_cancel_backend($1)", pid)
    except Exception as error:  # noqa: BLE001 - translated or raised as it is
        raise translated(error) from None
    finally:
        connection.terminate()
