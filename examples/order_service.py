"""A service that reacts to orders: a handler for each kind of change, called with an object of a class of your own.

export DATABASE_URL=postgresql://user@host/database
aiorepl models --dsn "$DATABASE_URL" --publication shop        # prints such classes for your tables
python order_service.py
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from decimal import Decimal

from aiorepl import Delete, Insert, Pipeline, Router, Source, Update

router = Router()


@dataclass(frozen=True)
class Order:
    """The columns of public.orders that this service reads."""

    id: int
    customer: str
    total: Decimal
    state: str


@dataclass(frozen=True)
class OrderKey:
    """The columns of a deleted order that the server sends."""

    id: int


@router.on("public.orders", kind="insert", into=Order)
async def placed(order: Order, change: Insert) -> None:
    print(f"order {order.id}: pack it for {order.customer}, {order.total}", flush=True)


@router.on("public.orders", kind="update", into=Order)
async def altered(order: Order, change: Update) -> None:
    if order.state == "cancelled":
        print(f"order {order.id}: refund {order.total} to {order.customer}", flush=True)


@router.on("public.orders", kind="delete", into=OrderKey)
async def deleted(order: OrderKey, change: Delete) -> None:
    print(f"order {order.id}: forget it", flush=True)


async def main() -> None:
    """Handle changes until Ctrl-C or SIGTERM. A change whose handler has not returned is handled again at the next start."""
    source = Source(os.environ["DATABASE_URL"], slot="order_service", publication="shop", create_slot=True)
    pipeline = Pipeline(source, {"orders": router})
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, pipeline.stop)
    await pipeline.run()


if __name__ == "__main__":
    asyncio.run(main())
