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
from aiorepl.wire.server_process import ServerProcess

_log = logger("aiorepl.wire")

_PATIENCE: Final = 30.0
_CANCELLED: Final = "57014"


async def cancellable_create(
    creating: Coroutine[Any, Any, CreatedSlot],
    slot: str,
    *,
    process: ServerProcess,
    heard: Callable[[], int],
    fail: Callable[[Exception], None],
    drop: Callable[[], Awaitable[None]],
) -> CreatedSlot:
    """Await ``creating`` and return its result. If the call is cancelled, or the connection is lost, no slot is left, unless the
    connection was lost after a permanent slot was created.

    :param process: the server's process that creates the slot.
    :param heard, fail: see ``ServerProcess.watch``.
    :param drop: drops the slot if the command completed first; raises SlotError if there is no slot.
    """
    task = asyncio.ensure_future(creating)
    try:
        with process.watch(heard, fail):
            return await asyncio.shield(task)
    except asyncio.CancelledError:
        await uninterrupted(_cancel_or_drop(task, process.cancel, drop))
        raise
    except ConnectionLost:
        # Otherwise the server's process would keep the slot until open transactions have ended, and a temporary slot until the
        # server learns of the loss. Until then, no attempt could create a slot of that name.
        with contextlib.suppress(AioreplError, OSError):
            async with asyncio.timeout(_PATIENCE):
                await process.end(slot)
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
