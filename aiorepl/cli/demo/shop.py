"""The demo's database: a small shop with difficult types, and its workload."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Final

PUBLICATION: Final = "shop"
SLOT: Final = "aiorepl_demo"
TABLES: Final = ("customers", "orders", "items")
FIRST_ROWS: Final = 2_000 + 5_000 + 15_000
LARGE: Final = 50_000

_SCHEMA: Final = """
CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'returned');
CREATE TABLE customers (
  id integer PRIMARY KEY, name text NOT NULL, tags text[], profile jsonb, biography text,
  created_at timestamptz NOT NULL DEFAULT now());
-- Stored out of line: an update of other columns does not send it.
ALTER TABLE customers ALTER biography SET STORAGE EXTERNAL;
CREATE TABLE orders (
  id integer PRIMARY KEY, customer_id integer NOT NULL, status order_status NOT NULL DEFAULT 'new',
  total numeric(12,2) NOT NULL DEFAULT 0, placed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE items (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id integer NOT NULL, sku text NOT NULL,
  quantity integer NOT NULL, price numeric(10,2) NOT NULL, attributes jsonb);

INSERT INTO customers
SELECT g, 'Customer ' || g, CASE WHEN g % 3 > 0 THEN ARRAY['loyal', NULL, 'says "hi", twice'] END,
       jsonb_build_object('score', g % 100, 'city', 'Zürich'),
       CASE WHEN g % 10 = 0 THEN repeat(md5(g::text), 150) END, now() - g * interval '1 minute'
  FROM generate_series(1, 2000) g;
INSERT INTO orders
SELECT g, 1 + g % 2000, (ARRAY['new', 'paid', 'shipped'])[1 + g % 3]::order_status, g * 1.25
  FROM generate_series(1, 5000) g;
INSERT INTO items (order_id, sku, quantity, price, attributes)
SELECT 1 + g % 5000, 'SKU-' || g % 97, 1 + g % 5, g % 1000 + 0.99, CASE WHEN g % 2 = 0 THEN '{"gift": true}'::jsonb END
  FROM generate_series(1, 15000) g;
CREATE PUBLICATION shop FOR TABLE customers, orders, items;
"""


async def set_up(connection: Any) -> None:
    """Create the tables, with rows, and the publication."""
    await connection.execute(_SCHEMA)


@dataclass(slots=True)
class Done:
    """Counts of the work so far.

    :ivar changes: the changes that the copies get: the rows of the snapshot, changed rows, and
        truncates.
    """

    transactions: int = 0
    rolled_back: int = 0
    changes: int = FIRST_ROWS
    doing: str = "opening"


class Shop:
    """The workload, on one connection.

    :param seed: for the random choices; the same seed repeats the same work.
    """

    def __init__(self, connection: Any, *, seed: int = 7) -> None:
        self.done = Done()
        self._connection = connection
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._next_order = 5001
        self._orders = list(range(1, 5001))

    async def trade(self, seconds: float) -> None:
        """Run the workload; it includes a truncate and one large transaction."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        special = [(0.35, self._truncate), (0.55, self._large)]
        while (elapsed := clock() - begin) < seconds:
            if special and elapsed > seconds * special[0][0]:
                await special.pop(0)[1]()
                continue
            self.done.doing = "trading"
            work = self._random.choices(
                (self._buy, self._pay, self._rename, self._return, self._roll_back, self._renumber),
                weights=(40, 30, 12, 8, 7, 3),
            )[0]
            await work()
            # Some hundred transactions per second: a demo, not a benchmark.
            await asyncio.sleep(0.005)
        for _, rest in special:
            await rest()
        self.done.doing = "closed"

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _buy(self) -> None:
        order, lines = self._next_order, self._random.randint(1, 12)
        self._next_order += 1
        async with self._connection.transaction():
            await self._execute(
                "INSERT INTO orders (id, customer_id, total) VALUES ($1, $2, $3::int * 0.33)",
                order,
                self._random.randint(1, 2000),
                self._random.randint(1, 10_000),
            )
            await self._execute(
                "INSERT INTO items (order_id, sku, quantity, price, attributes) SELECT $1, 'SKU-' || g, g, g * 1.01, "
                "jsonb_build_object('line', g) FROM generate_series(1, $2) g",
                order,
                lines,
            )
        self._orders.append(order)
        self._count()

    async def _pay(self) -> None:
        await self._execute(
            "UPDATE orders SET status = 'paid', total = total + 1 WHERE id = $1",
            self._random.choice(self._orders),
        )
        self._count()

    async def _rename(self) -> None:
        await self._execute(
            "UPDATE customers SET name = name || '!', profile = profile || '{\"renamed\": true}' WHERE id = $1",
            self._random.randint(1, 2000),
        )
        self._count()

    async def _return(self) -> None:
        order = self._take_order()
        async with self._connection.transaction():
            await self._execute("DELETE FROM items WHERE order_id = $1", order)
            await self._execute("DELETE FROM orders WHERE id = $1", order)
        self._count()

    async def _renumber(self) -> None:
        order = self._take_order()
        await self._execute("UPDATE orders SET id = $2 WHERE id = $1", order, self._next_order)
        self._orders.append(self._next_order)
        self._next_order += 1
        self._count()

    async def _roll_back(self) -> None:
        transaction = self._connection.transaction()
        await transaction.start()
        await self._connection.execute("DELETE FROM orders WHERE id % 10 = 3")
        await self._connection.execute(
            "INSERT INTO customers (id, name) VALUES (-1, 'must never be delivered')"
        )
        await transaction.rollback()
        self.done.rolled_back += 1

    async def _truncate(self) -> None:
        self.done.doing = "truncating items"
        await self._connection.execute("TRUNCATE items")
        self.done.changes += 1
        self._count()

    async def _large(self) -> None:
        self.done.doing = f"one transaction of {LARGE:,} rows"
        await self._execute(
            "INSERT INTO items (order_id, sku, quantity, price, attributes) SELECT 1 + g % 5000, 'BULK-' || g, g % 7, "
            "g % 9999 + 0.5, '{\"bulk\": true}' FROM generate_series(1, $1) g",
            LARGE,
        )
        self._count()

    def _take_order(self) -> int:
        index = self._random.randrange(len(self._orders))
        self._orders[index], self._orders[-1] = self._orders[-1], self._orders[index]
        return self._orders.pop()

    async def _execute(self, sql: str, *arguments: Any) -> None:
        # The command tag ends in the number of rows.
        self.done.changes += int((await self._connection.execute(sql, *arguments)).rsplit(" ", 1)[-1])

    def _count(self) -> None:
        self.done.transactions += 1
