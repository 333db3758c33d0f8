"""Which names a client may call the status page by.

A web page can let its own name resolve to a loopback or private address (DNS rebinding). A browser then takes the status page for
a part of that site, and shows it to the site's scripts. The request's Host header still has the site's name.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_LOOPBACK: Final = "localhost"
_REFUSED: Final = (
    "The status page is not served under this name. Use an IP address, or start it with --http-host NAME.\n"
)


class CheckedHosts:
    """Refuses requests whose Host or Origin header has an unknown name.

    IP addresses are known, because no other site can have one as its name, and so are ``localhost`` and the machine's own name.
    Prometheus and the probes of Kubernetes use IP addresses, unless they were given a name.

    :param names: more known names, without ports.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        own = (_LOOPBACK, socket.gethostname(), *names)
        self._names = frozenset(name.lower().removesuffix(".") for name in own if name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer 421."""
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            # A client of HTTP/1.0 sends no Host. Browsers send an Origin if another site makes the request.
            addresses = [f"//{host}" for host in headers.getlist("host")] + headers.getlist("origin")
            if not all(map(self._knows, addresses)):
                app = PlainTextResponse(_REFUSED, 421)
        await app(scope, receive, send)

    def _knows(self, address: str) -> bool:
        try:
            name = (urlsplit(address).hostname or "").removesuffix(".")
        except ValueError:
            return False
        if name in self._names or name.endswith(f".{_LOOPBACK}"):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True
