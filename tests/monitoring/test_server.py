"""The server of the status page: how many connections and which names it accepts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from aiorepl.cancellation import cancel_and_wait
from aiorepl.errors import ConfigurationError
from aiorepl.monitoring import server
from aiorepl.monitoring.server import listen, serve

MOST = 5
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(request: Request) -> Response:
    """Answer at once."""
    return PlainTextResponse("fine")


async def endless(request: Request) -> Response:
    """Begin to answer."""

    async def stream() -> Any:
        yield b"begun"
        await asyncio.Event().wait()

    return StreamingResponse(stream())


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Serve two routes to few connections, under one additional name."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", MOST)
    bound = listen("127.0.0.1:0")
    number = bound.getsockname()[1]
    app = Starlette(routes=[Route("/", answer), Route("/endless", endless)])
    task = asyncio.create_task(serve(app, bound, ("", "Known.Example")))
    yield number
    await cancel_and_wait(task)


async def send(port: int, text: str) -> Opened:
    """Open a connection, and send text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode())
    return reader, writer


async def ended(opened: Opened) -> bytes:
    """Read until the server closes the connection."""
    reader, writer = opened
    received = b""
    try:
        async with asyncio.timeout(60):
            received = await reader.read()
    except ConnectionResetError:
        pass
    writer.close()
    return received


async def get(port: int, *headers: str, version: str = "1.1") -> int:
    """Return the status of an answer."""
    lines = [f"GET / HTTP/{version}", *headers, "Connection: close", "", ""]
    return int((await ended(await send(port, "\r\n".join(lines)))).split()[1])


@pytest.mark.both_loops
async def test_half_open_requests(port: int) -> None:
    """Clients that do not finish their requests are cut, the oldest first; others are answered."""
    held = [await send(port, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") for _ in range(4 * MOST)]
    assert 200 == await get(port, "Host: localhost")
    assert [b""] * (3 * MOST) == [await ended(each) for each in held[: 3 * MOST]]
    for _, writer in held:
        writer.close()


@pytest.mark.both_loops
async def test_endless_answers(port: int) -> None:
    """A client without a request gives way first, then the oldest answer."""
    begun = [await send(port, "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(MOST - 1)]
    for reader, _ in begun:
        await reader.readuntil(b"begun")
    idle = await send(port, "GET")
    begun.append(await send(port, "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    await begun[-1][0].readuntil(b"begun")
    assert b"" == await ended(idle)
    assert 200 == await get(port, "Host: localhost")
    await ended(begun[0])
    for reader, writer in begun[1:]:
        assert not reader.at_eof()
        writer.close()


async def test_requests_that_take_too_long(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is cut without a complete request in time, also after a response."""
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.2)
    assert b"" == await ended(await send(port, "GET / HTTP/1.1\r\nHost: localhost\r\n"))
    both = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\n"
    assert 1 == (await ended(await send(port, both))).count(b"200 OK")


@pytest.mark.parametrize("descriptors", [16, 256])
async def test_descriptors(descriptors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections take an eighth of the descriptors, and at least one."""
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert descriptors // 8 == server._limit()


async def test_names(port: int) -> None:
    """Addresses, loopback names and given names are answered; a name that another site may have is not."""
    for good in (
        ["Host: localhost:1"],
        ["Host: LOCALHOST."],
        ["Host: app.localhost"],
        ["Host: 127.0.0.1"],
        ["Host: [::1]:8080"],
        ["Host: 10.0.0.7:8080"],
        ["Host: known.example:80"],
        ["Host: localhost", "Origin: https://known.example"],
    ):
        assert (good, 200) == (good, await get(port, *good))
    assert 200 == await get(port, version="1.0")
    for bad in (
        ["Host: evil.example"],
        ["Host: "],
        ["Host: 127.0.0.1.evil.example"],
        ["Host: localhost.evil.example:80"],
        ["Host: [::1"],
        ["Host: evillocalhost"],
        ["Host: localhost", "Origin: http://evil.example"],
        ["Host: localhost", "Origin: null"],
    ):
        assert (bad, 421) == (bad, await get(port, *bad))


def test_an_address_that_cannot_be_used():
    """The error says what to do."""
    bound = listen("127.0.0.1:0")
    with (
        bound,
        pytest.raises(
            ConfigurationError, match="in use: stop the program that listens there, or choose another"
        ),
    ):
        listen(f"127.0.0.1:{bound.getsockname()[1]}")
    with pytest.raises(ConfigurationError, match="give an address of this machine"):
        listen("192.0.2.1:0")
