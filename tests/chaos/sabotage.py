"""Bugs that the suite must find: ``--sabotage NAME`` puts one into the process under test.

They show that the suite finds bugs. docs/faults.md lists which of them it finds, and how soon.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any


def no_fsync() -> None:
    """Files are never synced, so a power failure loses confirmed data. Only the action ``power`` can show this."""
    from aiorepl import durable

    durable.fsync = lambda descriptor: None


def confirm_accepted() -> None:
    """The slot is confirmed up to the accepted position, before the sinks have flushed."""
    from aiorepl.source.ledger import Ledger

    Ledger.confirm = lambda ledger: ledger.accepted


def lose_a_change() -> None:
    """Every hundredth row of a sink is lost."""
    from destinations import UnsyncedLines

    write, number = UnsyncedLines._put, count(1)

    def put(self: Any, file: Any, lines: bytes | bytearray) -> None:
        kept = [line for line in lines.splitlines(keepends=True) if next(number) % 100]
        write(self, file, b"".join(kept))

    UnsyncedLines._put = put


def cursor_ahead() -> None:
    """A sink's cursor in the journal moves before its data is durable."""
    from aiorepl.delivery.worker import SinkWorker

    accept = SinkWorker._accept

    async def ahead(self: Any, batch: Any) -> None:
        await accept(self, batch)
        if batch.end_lsn is not None:
            await self._progress.durable(batch.end_lsn)

    SinkWorker._accept = ahead


def forget_savepoints() -> None:
    """Streamed changes of a savepoint that was rolled back are delivered."""
    from aiorepl.transactions.in_progress import InProgress

    abort = InProgress.stream_abort

    def whole(self: Any, message: Any) -> None:
        if message.xid == message.subxid:
            abort(self, message)

    InProgress.stream_abort = whole


SABOTAGES: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", " "): function
    for function in (no_fsync, confirm_accepted, lose_a_change, cursor_ahead, forget_savepoints)
}
