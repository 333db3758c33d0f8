"""Serves an application beside a pipeline or a query, for ``--http``.

Clients cannot take the pipeline's file descriptors: the number of connections and the time of a request are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import resource
import socket
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from aiorepl.errors import ConfigurationError
from aiorepl.monitoring.hosts import CheckedHosts

_MOST_CONNECTIONS: Final = 64
_DESCRIPTORS_PER_CONNECTION: Final = 8
"""There is at most one connection for so many descriptors that the process may open."""
_REQUEST_SECONDS: Final = 10.0
"""The time for a request after the connection or the last response."""
_BACKLOG: Final = 8
"""The event loop accepts all connections of the backlog before it can close one."""


_ADVICE: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.EADDRINUSE: "stop the program that listens there, or choose another port",
        errno.EACCES: "choose a port from 1024 on",
    }
)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the command."""
        yield


class _Connection(H11Protocol):
    """A connection that is closed if no request arrives in time, or if there are too many connections and a new one arrives.

    uvicorn's ``limit_concurrency`` counts complete requests, and its ``timeout_keep_alive`` begins after a response. The oldest
    connection gives way, those without a request first, so that health checks are answered whatever other clients do.
    """

    _deadline: asyncio.TimerHandle | None = None
    _numbers = itertools.count(1)
    _number = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._number = next(self._numbers)
        self._expect_request()
        others = [
            each
            for each in self.connections
            if isinstance(each, _Connection) and not each.transport.is_closing()
        ]
        if len(others) > _limit():
            min(others, key=lambda each: (each is self, each.answers(), each._number)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def answers(self) -> bool:
        """Whether the response to a request is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_request(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(_REQUEST_SECONDS, self._close_unless_it_answers)

    def _close_unless_it_answers(self) -> None:
        if not self.answers():
            self.transport.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


def _limit() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, descriptors // _DESCRIPTORS_PER_CONNECTION))


def listen(address: str) -> socket.socket:
    """Bind to ``host:port``, ``[::1]:port``, or ``:port``, which is the loopback address.

    :raises ConfigurationError: the address has another form, or cannot be used.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"--http {address!r} is not HOST:PORT, such as 127.0.0.1:8080")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, int(port)))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        advice = _ADVICE.get(error.errno or 0, "give an address of this machine")
        raise ConfigurationError(f"--http cannot listen on {address}: {error.strerror}: {advice}") from None
    return bound


async def serve(app: Starlette, bound: socket.socket, names: Iterable[str] = ()) -> None:
    """Answer requests until this is cancelled.

    :param names: names that clients may use besides IP addresses, ``localhost`` and the machine's name.
    """
    config = uvicorn.Config(
        CheckedHosts(app, names),
        http=_Connection,
        ws="none",
        backlog=_BACKLOG,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server = _Server(config)
    try:
        async with app.router.lifespan_context(app):
            await server.serve(sockets=[bound])
    finally:
        # uvicorn closes nothing if it is cancelled, and a loop of uvloop with an open listener does not close.
        for listener in getattr(server, "servers", ()):
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        bound.close()
