"""User code as type checkers see it: each ``ignore`` marks a mistake that mypy and pyright must report.

``test_typing`` and ``documents/test_types`` run them on this file; both report an ``ignore`` that has nothing to ignore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from pyspark.sql import SparkSession

import aiorepl
from aiorepl import Sorce  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
from aiorepl.transactions import rows

Sorce()
print(aiorepl.spark.local_sesion)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
print(aiorepl.conect)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
assert_type(aiorepl.__version__, str)


def print_status(change: aiorepl.Change) -> None:
    """Narrow a change to its class, then read its rows."""
    if isinstance(change, aiorepl.RowChange):
        change.new["status"]  # type: ignore[index]  # pyright: ignore[reportOptionalSubscript]
        change.old["status"]  # type: ignore[index]  # pyright: ignore[reportOptionalSubscript]
    if isinstance(change, aiorepl.Insert):
        assert_type(change.new, rows.Row)
        print(change.new["status"])
    elif isinstance(change, aiorepl.Update):
        assert_type(change.new, rows.Row)
        assert_type(change.old, rows.Row | None)
    elif isinstance(change, aiorepl.Delete):
        assert_type(change.old, rows.Row)


async def consume(dsn: str) -> None:
    """``connect`` and everything it yields are typed."""
    async with aiorepl.connect(dsn, slot="orders", publication="shop") as stream:
        assert_type(stream, aiorepl.ReplicationStream)
        async for transaction in stream:
            assert_type(transaction.commit_lsn, aiorepl.LSN | None)
            async for change in transaction:
                assert_type(change, aiorepl.Change)
            await stream.ack(transaction)


@dataclass
class Order:
    """A model of a table."""

    id: int


def handle(router: aiorepl.Router) -> None:
    """Handlers are checked by their table's model and by the kind of change."""

    @router.on("public.orders", kind="insert", into=Order)
    async def placed(order: Order, change: aiorepl.Insert) -> None:
        assert_type(change.into(Order), Order)

    @router.on("public.orders", kind=("update", "delete"))
    async def changed(change: aiorepl.RowChange) -> None:
        pass

    router.on("public.orders", kind="inserted")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    router.on("public.orders", kind="delete", into=Order)(placed)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    router.on("public.orders", kind="insert", into=int)(placed)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def deliver(dsn: str) -> aiorepl.Pipeline:
    """Packages are reachable from ``aiorepl``; a wrong option is an error."""
    with aiorepl.testing.EmbeddedServer() as server:
        assert_type(server.dsn, str)
    print(aiorepl.spark.register)
    aiorepl.formats.named("debezium")
    aiorepl.Pipeline(aiorepl.Source(dsn, slot="a", publication="b"), [], memory=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    return aiorepl.Pipeline(aiorepl.Source(dsn, slot="a", publication="b"), [aiorepl.testing.MemorySink()])


def mistakes(dsn: str, spark: SparkSession, change: aiorepl.Change, batch: aiorepl.Batch) -> None:
    """Each line has one mistake in the use of the public names."""
    aiorepl.connect(dsn, slot="s", publication="p", create_slots=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    aiorepl.connect(dsn, slot="s", publication="p", temporary="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    aiorepl.connect(dsn, publication="p")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    aiorepl.connect(dsn, slot="s", publication="p", until="later")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    aiorepl.Source(dsn, slot="s", publication="p", streaming="onn")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.Source(dsn, slot="s", publication="p", interface="walsendr")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    source = aiorepl.Source(dsn, slot="s", publication="p", origin="non")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sink = aiorepl.testing.MemorySink()
    aiorepl.Pipeline(source, [sink], until="later")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.Pipeline(source, [sink], shutdown_timeout=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.Pipeline(source, sink)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.Delivery(sink, order="keys")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.Delivery(sink, on_error="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.BatchPolicy(max_byte=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aiorepl.Selection(tables="public.*")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.spark.mirror(spark, "/j", ["public.*"], "/lake", mode="currnt")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aiorepl.spark.mirror(spark, "/j", ["public.*"], "/lake", modes="current")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aiorepl.spark.mirror(spark, "/j", "public.*", "/lake")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(change.kind == "inserted")  # type: ignore[comparison-overlap] # pyright infers str
    print(batch.chages)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
