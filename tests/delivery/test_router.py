"""A router calls the handlers of a change by table, kind and message prefix."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass

import pytest

from aiorepl import Batch, ConfigurationError, DataError, PermanentError, Router, TransientError
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.values import Types

ORDER, ITEM = 7, 8


@dataclass
class Order:
    id: int
    note: str | None


@dataclass
class Key:
    id: int


def batch(*messages: bytes) -> Batch:
    """A batch of one transaction with these messages about the tables orders and items."""
    decoder, assembler = Decoder(), Assembler(Types(), messages=True)
    columns = [build.column("id", 23, key=True), build.column("note")]
    payloads = [
        build.relation(oid=ORDER, name="orders", columns=columns),
        build.relation(oid=ITEM, namespace="shop", name="items", columns=columns),
        build.begin(final_lsn=16, xid=3),
        *messages,
        build.commit(commit_lsn=16, end_lsn=32),
    ]
    return Batch(assembler.feed([decoder.decode(payload) for payload in payloads]))


EACH = (
    build.insert(relation=ORDER, new=["1", "a"]),
    build.update(relation=ORDER, new=["1", "b"]),
    build.delete(relation=ORDER, old=["1", None]),
    build.insert(relation=ITEM, new=["2", "c"]),
    build.truncate(relations=[ORDER, ITEM]),
    build.message(lsn=15, prefix="mail", content=b"hello", transactional=True),
)


async def test_every_handler_of_a_change_is_called_in_order():
    router, seen = Router(), []

    @router.on("public.orders", kind="insert", into=Order)
    async def placed(order, change):
        seen.append(("placed", order, change.kind))

    @router.on("*.*")
    async def audit(change):
        seen.append(("audit", change.table, change.kind))

    @router.on("public.orders", kind=("update", "delete"), into=Key)
    async def key(order, change):
        seen.append(("key", order, change.kind))

    @router.on("shop.*", kind="truncate")
    async def emptied(change):
        seen.append(("emptied", [each.name for each in change.relations]))

    @router.on_message("mail")
    async def mail(message):
        seen.append(("mail", message.content))

    @router.on_message("other")
    async def other(message):
        raise AssertionError

    await router.write(batch(*EACH))
    assert seen == [
        ("placed", Order(1, "a"), "insert"),
        ("audit", "orders", "insert"),
        ("audit", "orders", "update"),
        ("key", Key(1), "update"),
        ("audit", "orders", "delete"),
        ("key", Key(1), "delete"),
        ("audit", "items", "insert"),
        ("emptied", ["orders", "items"]),
        ("mail", b"hello"),
    ]


async def test_a_handler_that_is_added_later_is_called():
    router, seen = Router(), []
    await router.write(batch(*EACH))

    @router.on("public.orders")
    async def late(change):
        seen.append(change.kind)

    await router.write(batch(*EACH))
    assert ["insert", "update", "delete"] == seen


async def test_tables_without_end_need_no_memory_without_end():
    """A stream may have a new partition each day."""
    router, seen = Router(), []

    @router.on("public.day_*")
    async def count(change):
        seen.append(change.table)

    columns = [build.column("id", 23, key=True)]
    for day in range(3000):
        relation = build.relation(oid=20000 + day, name=f"day_{day}", columns=columns)
        await router.write(batch(relation, build.insert(relation=20000 + day, new=["1"])))
    assert [f"day_{day}" for day in range(3000)] == seen
    assert len(router._found) <= 1024


async def test_a_handler_stays_a_function():
    """The decorator returns the function, so that tests can call it."""
    router = Router()

    async def placed(order, change):
        return None

    assert router.on("public.orders", kind="insert", into=Order)(placed) is placed
    assert router.on_message("mail")(placed) is placed
    assert repr(router) == "<Router of 2 handlers>"


@pytest.mark.parametrize("error", [TransientError("busy"), ZeroDivisionError("x")], ids=["transient", "own"])
async def test_an_error_of_a_handler_is_the_batchs(error):
    router, seen = Router(), []

    @router.on("public.orders")
    async def failing(change):
        seen.append(change.kind)
        if change.kind == "update":
            raise error

    with pytest.raises(type(error)):
        await router.write(batch(*EACH))
    assert seen == ["insert", "update"]


async def test_a_row_that_does_not_fit():
    """A batch is rejected; ``handle`` alone raises what ``into`` raises. Neither has a value."""
    router = Router()

    @router.on("public.orders", kind="delete", into=Order)
    async def deleted(order, change):
        raise AssertionError

    found = batch(EACH[2])
    with pytest.raises(PermanentError, match=r"public\.orders: Order needs column note, which the old row"):
        await router.write(found)
    with pytest.raises(DataError, match="column note"):
        await router.handle(found.changes[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": "orders"}, "tables: 'orders' is not a valid pattern"),
        ({"tables": "public.orders", "kind": "inserted"}, "no kind 'inserted': did you mean insert"),
        ({"tables": "public.orders", "kind": ("insert", "message")}, "no kind 'message'"),
        ({"tables": "public.orders", "kind": "truncate", "into": Order}, "a truncate has no row"),
        ({"tables": "public.orders", "into": object}, "object is no model"),
        ({"tables": 5}, "on takes the name of a table"),
        ({"tables": "public.orders", "kind": ()}, "a tuple of words"),
        ({"tables": "public.orders", "kind": ["insert"]}, "a tuple of words"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Router().on(**arguments)


async def test_check_finds_a_handler_without_a_table():
    router = Router()
    for tables in ("public.orders", "shop.*", "later.on?"):
        router.on(tables)(nothing)
    await router.check([("public", "orders"), ("shop", "items")])
    router.on("public.order")(nothing)
    with pytest.raises(
        PermanentError, match=r"public\.order matches no published table: did you mean public\.orders"
    ):
        await router.check([("public", "orders"), ("shop", "items")])


async def nothing(change):
    """Handle nothing."""


def test_a_handler_is_a_coroutine_function():
    """Otherwise its first change would be handled before the error."""
    for add in (Router().on("public.orders"), Router().on_message("mail")):
        with pytest.raises(ConfigurationError, match="write async def"):
            add(print)
        add(functools.partial(nothing))


@pytest.mark.parametrize("names", [True, False])
async def test_a_handler_that_names_rejected_changes(names):
    """The router removes ``rejected`` from a handler's error, because the handler cannot accept the other changes of the batch."""
    router, seen = Router(), []

    @router.on("public.orders")
    async def picky(change):
        seen.append(change.kind)
        if change.kind == "update":
            raise PermanentError("not this one", rejected=[change] if names else ())

    with pytest.raises(PermanentError, match="not this one") as found:
        await router.write(batch(*EACH))
    assert not found.value.rejected
    assert ["insert", "update"] == seen


async def test_a_cancelled_batch_is_cancelled():
    """The cancellation of a batch cancels its handler, and is not an error of the batch."""
    router, begun = Router(), asyncio.Event()

    @router.on("public.orders", kind="insert")
    async def waits(change):
        begun.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(router.write(batch(*EACH)))
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
