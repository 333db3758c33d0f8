"""The outbox pattern without an outbox table: a message commits with its data, or not at all.

The writer emits a message within its transaction; PostgreSQL writes it to the WAL only:

    BEGIN;
    INSERT INTO orders VALUES (1, 'ada');
    SELECT pg_logical_emit_message(true, 'order.placed', '{"id": 1}');
    COMMIT;

This program calls a handler for each message, by its prefix:

    psql "$DATABASE_URL" -c 'CREATE PUBLICATION outbox'        # without tables: messages need none
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
    """Calls the handler of each message's prefix, in commit order.

    At least once: after a crash unconfirmed messages are delivered again with the same ID. A handler that must act only once
    remembers these IDs, or passes them on as idempotency keys.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def write(self, batch: aiorepl.Batch) -> None:
        rejected = []
        for change in batch.changes:
            if not isinstance(change, aiorepl.Message) or change.transaction is None:
                continue
            handler = self._handlers.get(change.prefix)
            if handler is None:
                rejected.append(change)
            else:
                await handler(f"{change.transaction.commit_lsn}-{change.ordinal}", json.loads(change.content))
        if rejected:
            # Only at the end, because it means that all other changes are accepted.
            raise aiorepl.PermanentError(f"{len(rejected)} messages have no handler", rejected=rejected)


async def order_placed(event_id: str, order: Any) -> None:
    """Send an email, or call a service. Raise aiorepl.TransientError to be called again later."""
    print("placed", event_id, order["id"], flush=True)


async def order_cancelled(event_id: str, order: Any) -> None:
    print("cancelled", event_id, order["id"], flush=True)


async def main() -> None:
    outbox = Outbox({"order.placed": order_placed, "order.cancelled": order_cancelled})
    pipeline = aiorepl.Pipeline(
        aiorepl.Source(
            os.environ["DATABASE_URL"], slot="outbox", publication="outbox", create_slot=True, messages=True
        ),
        # A message without a handler becomes a dead letter (`aiorepl dlq`), and does not block others.
        {"outbox": aiorepl.Delivery(outbox, on_error="dead_letter", dead_letters="refused")},
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, pipeline.stop)
    await pipeline.run()


if __name__ == "__main__":
    asyncio.run(main())
