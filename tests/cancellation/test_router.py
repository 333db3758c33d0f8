"""A pipeline with a router is cancelled at any await: each change is handled, or is in a dead letter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from aiorepl import BatchPolicy, DeadLetters, Delivery, Pipeline, RetryPolicy, Router, TransientError
from aiorepl.delivery.redelivery import redeliver
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from tests.today import of_today

AT_ONCE = RetryPolicy(timeout=None, wait_initial=0.0001, wait_max=0.0001)
# The ids of the rows of each transaction, in commit order. The rows of MISFITS have no note, so they do not fit the model; a handler
# fails for 7.
TRANSACTIONS = [(1,), (2, 10, 3), (4, 5), (6, 7), (8,), (20,), (9, 11)]
MISFITS = (10, 20)
BAD = [(2, 10, 3), (6, 7), (20,)]


@dataclass
class Item:
    id: int
    note: str


class Handled:
    """A router with two handlers of each row; each awaits before and after its work, and the first call for 4 raises TransientError."""

    def __init__(self) -> None:
        self.router = Router()
        self.ids: list[int] = []
        self.audited: list[int] = []
        self._busy = False
        self._failed = False
        self.router.on("public.*")(self.audit)
        self.router.on("public.items", into=Item)(self.item)

    async def audit(self, change) -> None:
        assert not self._busy
        self._busy = True
        try:
            await asyncio.sleep(0)
            self.audited.append(change.new["id"])
            await asyncio.sleep(0)
        finally:
            self._busy = False

    async def item(self, item, change) -> None:
        assert not self._busy
        self._busy = True
        try:
            await asyncio.sleep(0)
            if item.id == 4 and not self._failed:
                self._failed = True
                raise TransientError("busy")
            if item.id == 7:
                raise ZeroDivisionError
            self.ids.append(item.id)
            await asyncio.sleep(0)
        finally:
            self._busy = False


def written() -> Stream:
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True), column("note"))
    for ids in TRANSACTIONS:
        stream.transaction(*(table.insert(str(one), None if one in MISFITS else "a note") for one in ids))
    return stream


def numbers():
    """Yield the numbers of the awaits to cancel: first every number, then numbers at growing distances."""
    number = 0
    while True:
        number += 1 if number < 50 else number // 5
        yield number


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_dead_letters(tmp_path, watched, cancelling, journal):
    """Failed transactions become dead letters as a whole, all others are handled in order, and redelivery handles the dead letters."""
    good = [one for ids in TRANSACTIONS if ids not in BAD for one in ids]
    for number in of_today(numbers()):
        handled, folder = Handled(), tmp_path / f"letters {number}"
        delivery = Delivery(handled.router, on_error="dead_letter", dead_letters=folder)
        source = MemorySource(stream=written(), read_bytes=200)

        def run(delivery=delivery, source=source, number=number):
            return Pipeline(
                source,
                {"router": delivery},
                journal=tmp_path / str(number) if journal else None,
                until=source.stream.lsn,
                reconnect=AT_ONCE,
                retry=AT_ONCE,
                batches=BatchPolicy(max_rows=4, flush_seconds=0),
            ).run()

        attempt = cancelling(number, everywhere=True)
        await attempt.run(run())
        await watched.nothing_left()
        if attempt.cancelled:
            await run()
        letters = DeadLetters(folder)
        kept = [change.new["id"] for letter in letters.letters() for change in letter.batch.changes]
        assert sorted(one for ids in BAD for one in ids) == sorted({*kept})
        assert good == [one for one in dict.fromkeys(handled.ids) if one in good]
        assert {one for ids in TRANSACTIONS for one in ids} <= {*handled.audited, 11, 3}
        if not attempt.cancelled:
            break
    assert number > 30

    router, again = Router(), list[int]()

    @router.on("public.items")
    async def mended(change):
        again.append(change.new["id"])

    await redeliver("router", Delivery(router), letters)
    assert [one for ids in BAD for one in ids] == again
