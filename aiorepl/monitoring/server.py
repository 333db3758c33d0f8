"""Serves an application beside a pipeline or a query, for ``--http``."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from aiorepl.errors import ConfigurationError


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the command."""
        yield


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
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise ConfigurationError(f"--http cannot listen on {address}: {error.strerror}") from None
    return bound


async def serve(app: Starlette, bound: socket.socket) -> None:
    """Answer requests until this is cancelled."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    with contextlib.closing(bound):
        await _Server(config).serve(sockets=[bound])
