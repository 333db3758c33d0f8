"""One stream, several sinks: each gets its own selection of changes, transformed, in whole transactions.

export DATABASE_URL=postgresql://user@host/database
export MASKS="$(openssl rand -base64 32)"        # the key of the masked addresses: keep it, or equal ones become unequal
psql "$DATABASE_URL" -c 'CREATE TABLE customers (id int PRIMARY KEY, name text, email text)' \
                         -c 'CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric, note text)' \
                         -c 'CREATE PUBLICATION shop FOR TABLE customers, orders'
python fan_out.py events/
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import asyncpg

import aiorepl
from aiorepl_sinks.jsonl import JsonLinesSink
from aiorepl_sinks.stdout import StdoutSink

DSN = os.environ["DATABASE_URL"]


class Names:
    """A transform that adds the customer's name to orders."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def __call__(self, change: aiorepl.Change) -> aiorepl.Change | None:
        if not isinstance(change, (aiorepl.Insert, aiorepl.Update)) or change.new is None:
            return change
        if change.new["note"] == "internal":
            return None  # drop it for this sink
        name = await self._pool.fetchval("SELECT name FROM customers WHERE id = $1", change.new["customer"])
        return change.with_columns({"customer_name": name})


async def main(folder: Path) -> None:
    async with asyncpg.create_pool(DSN, min_size=1) as pool:
        pipeline = aiorepl.Pipeline(
            aiorepl.Source(DSN, slot="fan_out", publication="shop", create_slot=True),
            {
                # All changes, with masked email addresses, which are unreadable but still comparable.
                "archive": aiorepl.Delivery(
                    JsonLinesSink(folder / "archive"),
                    selection=aiorepl.Selection(mask=("public.customers.email",), secret=os.environ["MASKS"]),
                ),
                # Inserted and updated orders, with names, to read along.
                "orders": aiorepl.Delivery(
                    StdoutSink(),
                    selection=aiorepl.Selection(tables=("public.orders",), kinds=("insert", "update")),
                    transform=Names(pool),
                ),
                # With a journal a slow sink does not hold back the others: Pipeline(…, journal="…").
                "deletes": aiorepl.Delivery(
                    JsonLinesSink(folder / "deletes"),
                    selection=aiorepl.Selection(kinds=("delete", "truncate")),
                ),
            },
            batches=aiorepl.BatchPolicy(flush_seconds=0.2),
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, pipeline.stop)
        await pipeline.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
