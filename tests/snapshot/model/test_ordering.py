"""The order of chunks that are read at the same time, and the limit of what waits."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl.snapshot.initial.ordering import ChunkOrder


async def settle() -> None:
    """Let all tasks go as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def taken(order: ChunkOrder, number: int) -> list[bytes]:
    """All rows of a chunk."""
    found = [data async for data, _ in order.release(number)]
    await order.pass_by(number)
    return found


async def test_chunks_are_released_in_order():
    """A chunk that was read first waits for those before it."""
    order = ChunkOrder(100, 0)
    await order.add(1, (b"b", 1))
    await order.end(1)
    await order.add(0, (b"a", 1))
    await order.add(0, (b"c", 2))
    assert 3 == order.received(0)
    await order.end(0)
    assert [[b"a", b"c"], [b"b"]] == [await taken(order, 0), await taken(order, 1)]


async def test_a_chunk_is_released_once_it_was_read():
    """Nothing is released of a chunk whose reading fails."""
    order = ChunkOrder(100, 0)
    releasing = asyncio.create_task(taken(order, 0))
    await order.add(0, (b"a", 1))
    await settle()
    assert not releasing.done()
    assert not order.begun(0)
    await order.end(0, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await releasing


async def test_a_chunk_larger_than_the_limit_is_released_while_it_is_read():
    """Its reader waits for room, and so does the reader of the next one."""
    order = ChunkOrder(10, 0)
    await order.add(1, (b"1" * 9, 1))
    reading = asyncio.create_task(order.add(1, (b"2" * 9, 1)))
    await order.add(0, (b"a" * 9, 1))
    large = asyncio.create_task(order.add(0, (b"b" * 9, 1)))
    await settle()
    assert [False, False] == [reading.done(), large.done()]
    parts = order.release(0)
    assert (b"a" * 9, 1) == await anext(parts)
    await large
    assert order.begun(0)
    assert (b"b" * 9, 1) == await anext(parts)
    await order.end(0)
    assert [] == [part async for part in parts]
    await order.pass_by(0)
    releasing = asyncio.create_task(taken(order, 1))
    await reading
    await order.end(1)
    assert 2 == len(await releasing)


async def test_a_chunk_that_is_read_again():
    """The rows of the first attempt are dropped, and make room."""
    order = ChunkOrder(10, 0)
    await order.add(0, (b"a" * 10, 4))
    await order.restart(0)
    assert 0 == order.received(0)
    await order.add(0, (b"b" * 10, 4))
    await order.end(0)
    assert [b"b" * 10] == await taken(order, 0)


async def test_a_chunk_that_is_not_wanted():
    """A chunk that is not wanted makes room, and its reader never waits."""
    order = ChunkOrder(10, 0)
    await order.add(1, (b"a" * 10, 1))
    waiting = asyncio.create_task(order.add(1, (b"b" * 10, 1)))
    await settle()
    await order.pass_by(0)
    await order.pass_by(1)
    await waiting
    assert not order.wanted(1)
    await order.add(2, (b"c" * 10, 1))
