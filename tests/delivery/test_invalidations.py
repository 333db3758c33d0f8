"""``Invalidations`` collects keys within a limit of memory; after a ``Resync``, everything has changed."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import LSN, ConfigurationError, Invalidated, Invalidations, Pipeline, Resync
from aiorepl.sink import Batch
from aiorepl.testing import Stream
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column

ITEMS, TAGS, LOGS = ("public", "items"), ("public", "tags"), ("public", "logs")
EVERYTHING = Invalidated(everything=True)


class Shop:
    """A stream with a table with a key of one column, one of two, and one without."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.items = self.stream.table("items", column("id", 23, key=True), column("note"))
        self.tags = self.stream.table("tags", column("item", 23, key=True), column("tag", key=True))
        self.logs = self.stream.table("logs", column("id", 23, key=True), replica_identity="f")

    def batch(self, *rows) -> Batch:
        """A transaction."""
        self.stream.transaction(*rows)
        return Batch(tuple(self.stream.slices()))


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
async def changed():
    """Return an ``Invalidations`` whose first ``take`` has happened."""
    changed = Invalidations()
    assert changed.take() == EVERYTHING
    return changed


async def test_rows_by_key(shop, changed):
    """Each key is taken once, an update of the key adds the old and the new key, and the next ``take`` is empty."""
    await changed.write(
        shop.batch(
            shop.items.insert("1", "x"),
            shop.items.update("1", "y"),
            shop.items.update("2", "y", key=["1", None]),
            shop.items.delete("3", None),
            shop.tags.insert("7", "red"),
        )
    )
    taken = changed.take()
    assert {ITEMS: {(1,), (2,), (3,)}, TAGS: {(7, "red")}} == taken.tables
    assert [{(7, "red")}, set()] == [taken.keys(*TAGS), taken.keys(*LOGS)]
    assert EVERYTHING.keys(*TAGS) is None
    nothing = changed.take()
    assert not nothing
    assert Invalidated() == nothing


async def test_whole_tables(shop, changed):
    """A table counts as changed as a whole after a TRUNCATE or without a key, until the next ``take``."""
    await changed.write(shop.batch(shop.items.insert("1", "x"), shop.tags.insert("1", "x")))
    await changed.write(shop.batch(shop.items.truncate(), shop.logs.insert("1")))
    await changed.write(shop.batch(shop.items.insert("2", "x")))
    assert {ITEMS: None, LOGS: None, TAGS: {(1, "x")}} == changed.take().tables
    await changed.write(shop.batch(shop.items.insert("3", "x")))
    assert {ITEMS: {(3,)}} == changed.take().tables


async def test_a_message_changes_no_row(shop, changed):
    """A message wakes nobody."""
    shop.stream.message("hello", b"")
    await changed.write(Batch(tuple(shop.stream.slices())))
    assert not changed.take()
    waiting = asyncio.create_task(changed.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    await changed.write(shop.batch(shop.items.insert("1", "x")))
    await waiting


async def test_after_a_resync(shop, changed):
    """After a Resync everything has changed, whatever was collected before and after."""
    await changed.write(shop.batch(shop.items.insert("1", "x")))
    changed.add(Resync(LSN(9)))
    await changed.write(shop.batch(shop.items.insert("2", "x")))
    assert EVERYTHING == changed.take()
    await changed.write(shop.batch(shop.items.insert("2", "x")))
    assert {ITEMS: {(2,)}} == changed.take().tables


async def test_bounded(shop):
    """Beyond the limit the largest table counts as a whole, and at last everything has changed; memory stays within the limit."""
    changed = Invalidations(max_bytes="20kB")
    changed.take()
    await changed.write(shop.batch(shop.tags.insert("1", "x"), shop.tags.insert("2", "x")))
    await changed.write(shop.batch(*(shop.items.insert(str(number), "x") for number in range(1000))))
    assert {ITEMS: None, TAGS: {(1, "x"), (2, "x")}} == changed.take().tables
    for number in range(1000):
        table = shop.stream.table(f"partition_{number}", column("id", 23, key=True))
        await changed.write(shop.batch(table.insert("1")))
        assert changed._total <= 20_000
    assert EVERYTHING == changed.take()
    await changed.write(shop.batch(shop.tags.insert("1", "x")))
    assert {TAGS: {(1, "x")}} == changed.take().tables


async def test_keys_that_cannot_be_used():
    """A key with a list, or with a value that cannot be decoded, stands for its table."""
    shop = Shop()
    changed = Invalidations()
    changed.take()
    lists = shop.stream.table("lists", column("id", 1007, key=True))
    await changed.write(shop.batch(lists.insert("{1,2}")))
    assert {("public", "lists"): None} == changed.take().tables
    await changed.write(shop.batch(shop.items.insert("no number", "x")))
    assert {ITEMS: None} == changed.take().tables


async def test_a_slow_consumer_is_woken_once():
    """A thousand transactions need one ``take``, and the pipeline does not wait for it."""
    shop = Shop()
    changed = Invalidations()
    source = MemorySource(stream=shop.stream, create_slot=True, temporary=True)
    assert not changed.live
    async with Pipeline(source, [changed]) as pipeline:
        assert changed.live
        end = [shop.stream.transaction(shop.items.update(str(n % 10), "x")) for n in range(1000)][-1]
        async with asyncio.timeout(60):
            await source.acknowledged(end)
        assert 1001 == pipeline.statistics().sinks["invalidations"].changes
        await changed.wait()
        assert EVERYTHING == changed.take()
        end = [shop.stream.transaction(shop.items.update(str(n % 10), "x")) for n in range(1000)][-1]
        async with asyncio.timeout(60):
            await source.acknowledged(end)
        assert {ITEMS: {(n,) for n in range(10)}} == changed.take().tables
    assert not changed.live
    assert EVERYTHING == changed.take()


def test_the_limit():
    """An invalid size is refused."""
    with pytest.raises(ConfigurationError, match="max_bytes is 0"):
        Invalidations(max_bytes=0)


@pytest.mark.parametrize(("oid", "name"), [(701, "float8"), (1700, "numeric")])
async def test_a_key_that_is_not_a_number(changed, oid, name):
    """NaN is not equal to itself, so no look-up would find it among the keys."""
    stream = Stream()
    table = stream.table(name, column("k", oid, key=True))
    stream.transaction(table.insert("1.5"), table.insert("NaN"))
    await changed.write(Batch(tuple(stream.slices())))
    assert {("public", name): None} == changed.take().tables
