"""The outbox pattern without an outbox table: messages that commit with the data they are about, or not at all.

The writer emits a message within its transaction; PostgreSQL puts it into the WAL, and nowhere else:

    BEGIN;
    INSERT INTO orders VALUES (1, 'ada');
    SELECT pg_logical_emit_message(true, 'order.placed', '{"id": 1}');
    COMMIT;

This program gives each to the handler of its prefix:

    psql "$DATABASE_URL" -c 'CREATE PUBLICATION outbox'        -- of no table: messages need none
    python outbox.py
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiorepl

Handler = Callable[[str, Any], Awaitable[None]]


class Outbox(aiorepl.Sink):
    """Calls the handler of each message's prefix, in the order of commits.

    At least once: after a crash what was not confirmed comes again, with the same id. A handler that must not act
    twice remembers the ids it has seen, or hands them on as idempotency keys.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def write(self, batch: aiorepl.Batch) -> None:
        refused = []
        for change in batch.changes:
            if not isinstance(change, aiorepl.Message) or change.transaction is None:
                continue
            handler = self._handlers.get(change.prefix)
            if handler is None:
                refused.append(change)
            else:
                await handler(f"{change.transaction.commit_lsn}-{change.ordinal}", json.loads(change.content))
        if refused:
            # Last, for it means that all others were taken.
            raise aiorepl.PermanentError(f"{len(refused)} messages have no handler", refused=refused)


async def order_placed(event_id: str, order: Any) -> None:
    """Send an email, call a service, …: raise aiorepl.TransientError to be called again later."""
    print("placed", event_id, order["id"], flush=True)


async def order_cancelled(event_id: str, order: Any) -> None:
    print("cancelled", event_id, order["id"], flush=True)


async def main() -> None:
    outbox = Outbox({"order.placed": order_placed, "order.cancelled": order_cancelled})
    pipeline = aiorepl.Pipeline(
        aiorepl.Source(
            os.environ["DATABASE_URL"], slot="outbox", publication="outbox", create_slot=True, messages=True
        ),
        # A message that nobody handles is put aside (`aiorepl dlq`), and holds up no other.
        {"outbox": aiorepl.Delivery(outbox, on_error="dead_letter", dead_letters="refused")},
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, pipeline.stop)
    await pipeline.run()


if __name__ == "__main__":
    asyncio.run(main())
