"""Creates slots so that a cancellation also cancels the command on the server.

CREATE_REPLICATION_SLOT waits until the transactions in progress have ended. Meanwhile the server does not notice that its
client is gone, keeps WAL, and may complete the slot later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from aiorepl.cancellation import uninterrupted
from aiorepl.errors import AioreplError, ConnectionLost, ServerError, SlotError
from aiorepl.loggers import logger
from aiorepl.wire.interface import CreatedSlot
from aiorepl.wire.opening import connect_sql, translated

_log = logger("aiorepl.wire")

_PATIENCE: Final = 30.0
_CANCELLED: Final = "57014"
_CANCEL_USER: Final = "SELECT pg_catalog.pg_cancel_backend(active_pid) FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND active_pid = $2"


async def cancellable_create(
    creating: Coroutine[Any, Any, CreatedSlot],
    *,
    cancel: Callable[[], Awaitable[None]],
    cancel_lost: Callable[[], Awaitable[None]],
    drop: Callable[[], Awaitable[None]],
) -> CreatedSlot:
    """Await ``creating`` and return its result. If the call is cancelled, or the connection is lost, no slot is left.

    :param cancel: cancels the command on the server.
    :param cancel_lost: cancels the command on the server once the connection is lost.
    :param drop: drops the slot if the command completed first; raises SlotError if there is no slot.
    """
    task = asyncio.ensure_future(creating)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await uninterrupted(_cancel_or_drop(task, cancel, drop))
        raise
    except ConnectionLost:
        # Without a cancel, the server's process would keep the slot until the transactions have ended, and no attempt could
        # create the slot.
        with contextlib.suppress(AioreplError, OSError):
            async with asyncio.timeout(_PATIENCE):
                await cancel_lost()
        raise


async def _cancel_or_drop(
    task: asyncio.Future[CreatedSlot],
    cancel: Callable[[], Awaitable[None]],
    drop: Callable[[], Awaitable[None]],
) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            if not task.done():
                await cancel()
                await asyncio.wait({task})
            if not task.cancelled() and _slot_may_exist(task.exception()):
                try:
                    await drop()
                except SlotError as error:
                    if error.busy:
                        raise
    except (AioreplError, OSError) as error:  # also catches TimeoutError
        task.cancel()
        await asyncio.wait({task})
        _log.warning(
            "the creation of a slot was cancelled, and the slot may be left: %s",
            str(error) or type(error).__name__,
        )


def _slot_may_exist(error: BaseException | None) -> bool:
    """Return whether the slot may exist: also after a cancellation, because the command may have completed first."""
    return error is None or (isinstance(error, ServerError) and error.sqlstate == _CANCELLED)


async def cancel_backend(pid: int, dsn: str | None, slot: str | None = None, **kwargs: Any) -> None:
    """Cancel the command of the server process ``pid``, on a new connection. ``kwargs`` go to ``asyncpg.connect``.

    :param slot: cancel only if the process uses this slot, because another process may have got the pid of a lost connection.
    :raises ConnectionFailed, ConnectionLost, ServerError: the cancel request failed.
    """
    connection = await connect_sql(dsn, **kwargs)
    try:
        if slot is None:
            await connection.execute("SELECT pg_catalog.pg_cancel_backend($1)", pid)
        else:
            await connection.execute(_CANCEL_USER, slot, pid)
    except Exception as error:  # noqa: BLE001 - translated or raised as it is
        raise translated(error) from None
    finally:
        connection.terminate()
