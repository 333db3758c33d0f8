"""The proxy without PostgreSQL: it forwards bytes of any protocol."""

from __future__ import annotations

import asyncio

from aiorepl.testing import CuttingProxy
from aiorepl.testing.listener import Listener


async def test_redirected_connections():
    """After ``redirect``, new connections lead to the other server, and open ones stay where they are."""
    first, second = _echo(b"1"), _echo(b"2")
    await first.listen()
    await second.listen()
    async with CuttingProxy("127.0.0.1", first.port) as proxy:
        before = await _connect(proxy)
        assert b"1" == await _answer(*before)
        proxy.redirect("127.0.0.1", second.port)
        after = await _connect(proxy)
        assert (b"2", b"1") == (await _answer(*after), await _answer(*before))
        for _, writer in (before, after):
            writer.close()
            await writer.wait_closed()
    for server in (first, second):
        server.close()
        await server.closed()


async def _connect(proxy: CuttingProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


def _echo(name: bytes) -> Listener:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1):
            writer.write(name)
        writer.close()

    return Listener(serve)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"?")
    return await reader.readexactly(1)
