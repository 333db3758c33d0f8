"""The proxy that loses answers: the server does what it is asked, and the client is cut off."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl.testing import LossyProxy


@pytest.fixture
async def server():
    """Answers each line in two pieces, and remembers it; with the proxy in front."""
    lines, answering = [], set()

    async def answer(reader, writer):
        answering.add(asyncio.current_task())
        while line := await reader.readline():
            lines.append(line)
            for piece in (b"do", b"ne\n"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = LossyProxy(listening.sockets[0].getsockname(), answer=b"done")
    yield proxy, lines
    proxy.close()
    listening.close()
    await asyncio.wait(answering)


async def test_answers_are_lost_when_told_so(server):
    """A lost answer breaks its connection once the server has done its work; before and after it everything passes."""
    proxy, lines = server
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"heard\n")
        assert await reader.readline() == b"done\n"
        with proxy.losing():
            writer.write(b"unheard\n")
            assert b"done" not in await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"again\n")
        assert await reader.readline() == b"done\n"
        writer.close()
    assert [b"heard\n", b"unheard\n", b"again\n"] == lines
    assert 1 == proxy.lost


async def test_connections_are_cut(server):
    """Open connections end, and new ones work."""
    proxy, _ = server
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"heard\n")
        assert await reader.readline() == b"done\n"
        assert proxy.cut() == 1
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"again\n")
        assert await reader.readline() == b"done\n"
        writer.close()
