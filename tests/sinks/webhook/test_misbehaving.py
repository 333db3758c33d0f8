"""Receivers that are slow, break off, answer nonsense or are not there: the batch may succeed later, and later it does."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aiorepl import TransientError
from aiorepl_sinks.webhook import WebhookSink

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Once:
    """Call ``misbehave`` for the first request, and respond to each later one."""

    def __init__(self, whole_request, misbehave):
        self._whole_request = whole_request
        self._misbehave = misbehave
        self.requests = 0

    async def __call__(self, reader, writer):
        while True:
            if self.requests == 0:
                self.requests += 1
                await self._misbehave(reader, writer)
                return
            await self._whole_request(reader)
            self.requests += 1
            writer.write(ANSWER)
            await writer.drain()


async def reset(writer):
    """Close with a RST."""
    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def resets_at_once(reader, writer):
    await reset(writer)


async def resets_after_the_request(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    await reset(writer)


async def closes_at_once(reader, writer):
    writer.close()


async def says_nothing_and_closes(reader, writer):
    await reader.read(10)


async def half_a_head(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    await writer.drain()


async def half_a_body(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await writer.drain()


async def half_a_chunk(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf")
    await writer.drain()


async def no_http(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"220 s3cr3t.example ESMTP\r\n")
    await writer.drain()


async def an_endless_head(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n")
    try:
        while True:
            writer.write(b"x: " + b"y" * 60_000 + b"\r\n")
            await writer.drain()
    except ConnectionError:
        pass


BREAKING_OFF = [
    resets_at_once,
    resets_after_the_request,
    closes_at_once,
    says_nothing_and_closes,
    half_a_head,
    half_a_body,
    half_a_chunk,
    no_http,
    an_endless_head,
]


@pytest.mark.both_loops
@pytest.mark.parametrize("misbehave", BREAKING_OFF, ids=lambda misbehave: misbehave.__name__)
async def test_breaking_off(source, raw_server, whole_request, misbehave):
    """An incomplete response counts as none: the batch is sent again, and the error quotes nothing of it."""
    handler = Once(whole_request, misbehave)
    async with raw_server(handler) as url:
        sink = WebhookSink(url)
        await sink.open(source.context)
        batch = source.batch([1, 2])
        with pytest.raises(TransientError) as failed:
            await sink.write(batch)
        assert str(failed.value).startswith(f"webhook: {url}: ")
        assert "s3cr3t" not in str(failed.value)
        assert failed.value.__cause__ is None
        async with asyncio.timeout(60):
            await sink.write(batch)
        await sink.close()
    assert 2 == handler.requests


async def silent(reader, writer):
    await reader.read()


async def drips(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    try:
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)
    except ConnectionError:
        pass


async def never_reads(reader, writer):
    writer.transport.pause_reading()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("misbehave", "options", "problem"),
    [
        (silent, {"read_timeout": 0.2}, "no response in time"),
        (silent, {"request_timeout": 0.2}, "no complete response within 0.2 s"),
        (drips, {"request_timeout": 0.3}, "no complete response within 0.3 s"),
        (never_reads, {"write_timeout": 0.2}, "it stopped reading the request"),
    ],
)
async def test_slowness(source, raw_server, whole_request, misbehave, options, problem):
    """Each timeout ends its part of a request, and the next attempt has a new connection."""
    handler = Once(whole_request, misbehave)
    async with raw_server(handler) as url:
        sink = WebhookSink(url, **options, connections=1, request_bytes=64 << 20)
        await sink.open(source.context)
        # Larger than what the two sockets between them hold.
        batch = source.batch(list(range(1000)), note="x" * 20_000 if misbehave is never_reads else "x")
        with pytest.raises(TransientError) as failed:
            async with asyncio.timeout(60):
                await sink.write(batch)
        assert f"webhook: {url}: {problem}" == str(failed.value)
        await sink.close()


async def test_nobody_listens(source):
    """The error contains the system's reason."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/hook"
    sink = WebhookSink(url)
    await sink.open(source.context)
    with pytest.raises(TransientError) as failed:
        await sink.write(source.batch([1]))
    await sink.close()
    assert f"webhook: {url}: Connection refused" == str(failed.value)


async def test_nobody_answers_to_the_name(source):
    """A name that does not resolve may do so later."""
    sink = WebhookSink("http://nowhere.invalid/hook")
    await sink.open(source.context)
    with pytest.raises(
        TransientError, match=r"^webhook: http://nowhere\.invalid/hook: its name cannot be resolved: "
    ):
        await sink.write(source.batch([1]))
    await sink.close()


async def test_an_early_answer(source, raw_server):
    """A response that arrives before the body is sent counts."""

    async def refuses(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 9\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read(1)

    async with raw_server(refuses) as url:
        sink = WebhookSink(url)
        await sink.open(source.context)
        with pytest.raises(TransientError, match="503") as failed:
            await sink.write(source.batch([1]))
        await sink.close()
    assert 9 == failed.value.retry_after
