"""Receivers: real HTTP servers in threads, which verify signatures, record requests and respond as configured."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count

import pytest
import uvicorn
from hypercorn.asyncio import serve
from hypercorn.config import Config
from standardwebhooks import Webhook as Verifier

SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSB0ZXN0cywgMzIgYnl0ZXMhISE="


@dataclass
class Received:
    """A request as received, and its response."""

    headers: dict[str, str]
    body: bytes
    http_version: str
    path: str
    client: tuple[str, int]
    status: int
    arrived: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def events(self) -> list[dict]:
        """Its events, from any of the bodies."""
        if self.headers["content-type"].endswith("x-ndjson"):
            return [json.loads(line) for line in self.body.splitlines()]
        events = json.loads(self.body)
        return events if isinstance(events, list) else [events]

    @property
    def ids(self) -> list[int]:
        """The ids of the rows."""
        return [event["new"]["id"] for event in self.events]


class Receiver:
    """An ASGI application.

    ``answers`` are used up a request each: a status, or a status and headers; then it is 204, but for bodies larger
    than ``limit`` and for those with ``poison`` in them.
    """

    url = ""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.answers: deque[int | tuple[int, dict[str, str]]] = deque()
        self.answer_body = b""
        self.limit: int | None = None
        self.poison: bytes | None = None
        self.away = False
        self.checked: dict[str, str] = {}
        self.verifier: Verifier | None = None
        self.before: Callable[[], Awaitable[None]] | None = None
        self._changed = threading.Condition()
        self._arrivals = count()

    @property
    def accepted(self) -> list[Received]:
        """The requests that were answered with 2xx."""
        return [request for request in self.requests if 200 <= request.status < 300]

    @property
    def events(self) -> list[dict]:
        """The events of those."""
        return [event for request in self.accepted for event in request.events]

    @property
    def ids(self) -> list[int]:
        """The ids of their rows."""
        return [event["new"]["id"] for event in self.events]

    @property
    def statuses(self) -> list[int]:
        """The statuses of the responses, in order."""
        return [request.status for request in self.requests]

    async def until(self, holds: Callable[[], bool], seconds: float = 90) -> None:
        """Wait for a request after which this holds."""
        assert await asyncio.to_thread(self.wait, holds, seconds), f"{len(self.requests)} requests"

    def wait(self, holds: Callable[[], bool], seconds: float = 90) -> bool:
        """Wait in a blocking call."""
        with self._changed:
            return self._changed.wait_for(holds, seconds)

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            return
        if scope["method"] == "OPTIONS":
            self.checked = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
            status = self.answers.popleft() if self.answers else 405
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        plain = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        arrived = next(self._arrivals)
        if self.before is not None:
            await self.before()
        status, extra = self._judge(plain, headers)
        path = scope["path"] + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        received = Received(
            headers, plain, scope["http_version"], path, tuple(scope["client"]), status, arrived
        )
        with self._changed:
            self.requests.append(received)
            self._changed.notify_all()
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in extra.items()],
            }
        )
        await send({"type": "http.response.body", "body": self.answer_body if status != 204 else b""})

    def _judge(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        if self.verifier is not None:
            self.verifier.verify(body, headers, json_parse=False)
        if self.away:
            return 503, {}
        if self.answers:
            answer = self.answers.popleft()
            return answer if isinstance(answer, tuple) else (answer, {})
        if self.limit is not None and len(body) > self.limit:
            return 413, {}
        if self.poison is not None and self.poison in body:
            return 422, {}
        return 204, {}


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A socket on a free port; connections wait in its queue until there is a server."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield listener


@contextmanager
def in_thread(serving: Callable[[asyncio.Event], Awaitable[None]]) -> Iterator[None]:
    """Serve in a loop of another thread until the end of the block."""
    begun, ended = threading.Event(), []

    async def main() -> None:
        stop = asyncio.Event()
        ended.append((asyncio.get_running_loop(), stop))
        begun.set()
        await serving(stop)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        loop, stop = ended[0]
        loop.call_soon_threadsafe(stop.set)
        # A server that does not stop must not keep the tests from ending.
        thread.join(60)


class Current:
    """The application of the test that runs now, so that one server serves all tests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.receiver: Receiver | None = None

    async def __call__(self, scope, receive, send) -> None:
        if self.receiver is not None:
            await self.receiver(scope, receive, send)

    def new(self) -> Receiver:
        """A receiver for another test."""
        self.receiver = Receiver()
        self.receiver.url = self.url
        return self.receiver


@pytest.fixture(scope="session")
def http_server() -> Iterator[Current]:
    """HTTP/1.1, by uvicorn."""
    with listening() as listener:
        current = Current(f"http://127.0.0.1:{listener.getsockname()[1]}/hook")
        config = uvicorn.Config(
            current,
            log_level="error",
            lifespan="off",
            ws="none",
            loop="asyncio",
            timeout_keep_alive=300,
            # From Python 3.12 on, a closed server otherwise waits for requests without an answer, even if it has to exit.
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)

        async def serving(stop: asyncio.Event) -> None:
            async def watch() -> None:
                await stop.wait()
                server.should_exit = True
                server.force_exit = True

            async with asyncio.TaskGroup() as group:
                group.create_task(watch())
                group.create_task(server.serve(sockets=[listener]))

        with in_thread(serving):
            yield current


@pytest.fixture
def receiver(http_server: Current) -> Receiver:
    """A receiver of HTTP/1.1 of this test's own."""
    return http_server.new()


@pytest.fixture
def tls_receiver(certificates) -> Iterator[Receiver]:
    """HTTP/2 and HTTP/1.1 over TLS, by hypercorn."""
    receiver = Receiver()
    with listening() as listener:
        receiver.url = f"https://localhost:{listener.getsockname()[1]}/hook"
        config = Config()
        config.bind = [f"fd://{listener.detach()}"]  # hypercorn closes it
        config.certfile = str(certificates / "server.pem")
        config.keyfile = str(certificates / "server.key")
        config.alpn_protocols = ["h2", "http/1.1"]
        config.loglevel = "CRITICAL"
        config.graceful_timeout = 0.1
        # Here and not in the thread, because pytest goes through all loggers while the thread starts.
        assert config.log is not None
        with in_thread(lambda stop: serve(receiver, config, shutdown_trigger=stop.wait)):
            yield receiver


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def raw_server():
    """A server whose connections are handled by the test, within ``async with``."""

    @asynccontextmanager
    async def serving(handler: Handler, context: ssl.SSLContext | None = None):
        handling: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handling[asyncio.current_task()] = writer
            try:
                await handler(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        finally:
            server.close()
            for writer in handling.values():
                writer.transport.abort()
            await asyncio.gather(*handling)
            await asyncio.gather(
                *(writer.wait_closed() for writer in handling.values()), return_exceptions=True
            )

    return serving


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """A whole request of HTTP/1.1."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    return head + await reader.readexactly(length)


@pytest.fixture
def whole_request() -> Callable[[asyncio.StreamReader], Awaitable[bytes]]:
    """Return a function that reads one request from a connection."""
    return read_request


@pytest.fixture
def secret() -> str:
    """A secret of Standard Webhooks."""
    return SECRET


@pytest.fixture
def clock() -> Callable[[], float]:
    """Seconds, for tests of how long something took."""
    return time.monotonic
