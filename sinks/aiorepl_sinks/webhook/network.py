"""How the webhook sink reaches its receiver: the connections, and which addresses they may lead to.

The pool is the one beneath httpx2's client. The client itself would log URLs with their queries, keep the receiver's
cookies, follow redirects where it is told to, and take proxies and passwords from its surroundings.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any, Final

import anyio
import httpcore2
import httpx2

from aiorepl import ConfigurationError
from aiorepl_sinks import tls

# Shorter than the five seconds after which many servers close a connection, so that they seldom close ours just now.
_IDLE_SECONDS: Final = 4.0
# From IANA's registries of special-purpose addresses; what ``ipaddress`` calls global depends on the version of Python.
_IPV4_NOT_PUBLIC: Final = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
_IPV6: Final = IPv6Network("2000::/3")
# Protocol assignments with Teredo, documentation, 6to4, documentation.
_IPV6_NOT_PUBLIC: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    :param host: the value of the Host header.
    :param shown: what may be shown of the URL.
    """

    url: httpcore2.URL = field(repr=False)
    host: bytes
    shown: str


def target(url: str) -> Target:
    """Read a URL.

    :raises ConfigurationError: when nothing can be sent to it; shows nothing of it.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise ConfigurationError("url cannot be read: it is https://host/path") from None
    if parsed.scheme not in ("https", "http") or not parsed.host:
        raise ConfigurationError("url is not one of HTTP: it is https://host/path")
    if parsed.userinfo:
        raise ConfigurationError("url has a user or password in it: use bearer, or headers")
    raw = httpcore2.URL(
        scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
    )
    return Target(raw, parsed.netloc, shown(url))


def shown(url: str) -> str:
    """A URL without user, password, query and fragment."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return "…"
    host = parsed.netloc.decode("ascii")
    return f"{parsed.scheme}://{host}{parsed.path}" if host else parsed.path


class PrivateAddress(Exception):
    """The receiver's name leads to no public address."""


class Network(httpcore2.AsyncNetworkBackend):
    """Connects to public addresses alone, or to any.

    A name is resolved here and the address that was checked is the one connected to, so a name that leads elsewhere a
    moment later gains nothing.

    :param private: whether addresses that are not public are good, too.
    """

    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that answers.

        :raises PrivateAddress: there is none that is public.
        """
        addresses = [host]
        if not self._private:
            addresses = list(filter(is_public, await _resolve(host, port, timeout)))
            if not addresses:
                raise PrivateAddress
        for number, address in enumerate(addresses, 1):
            try:
                return _Stream(
                    await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise AssertionError("the last address either answered or raised")


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that is closed when its TLS handshake is cancelled, which the library's own is not."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


async def _resolve(host: str, port: int, timeout: float | None) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise httpcore2.ConnectTimeout from None
    except OSError as error:
        raise httpcore2.ConnectError from error
    return [str(entry[4][0]) for entry in found]


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet, and does not stand for an IPv4 address that is not."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        carried = address.ipv4_mapped
        if carried is None and address in _NAT64:
            carried = IPv4Address(int(address) & 0xFFFFFFFF)
        if carried is None:
            # Everything else of IPv6 is local, mapped, reserved, or of a use that is still to be found.
            return address in _IPV6 and not any(address in network for network in _IPV6_NOT_PUBLIC)
        address = carried
    return not any(address in network for network in _IPV4_NOT_PUBLIC)


def trust(ca: str | Path | None) -> ssl.SSLContext:
    """Whose certificates are believed: the system's authorities, or those in a file and no others.

    :raises ConfigurationError: when the file cannot be read, or holds none.
    """
    return httpx2.create_ssl_context() if ca is None else tls.context("webhook", str(ca), None, None, None)


def pool(
    context: ssl.SSLContext, *, connections: int, http2: bool, private: bool
) -> httpcore2.AsyncConnectionPool:
    """Connections that are kept and used again.

    :param connections: how many there are at most.
    :param private: whether they may lead to addresses that are not public.
    """
    return httpcore2.AsyncConnectionPool(
        ssl_context=context,
        max_connections=connections,
        keepalive_expiry=_IDLE_SECONDS,
        http2=http2,
        network_backend=Network(private=private),
    )


def reason(error: BaseException) -> str:
    """Why a request had no answer, in words of our own: those of the libraries may quote what was received."""
    found = error
    while (deeper := found.__cause__ or found.__context__) is not None:
        found = deeper
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is not good: {found.verify_message}"
        if isinstance(found, ssl.SSLError):
            # Its errno is not the system's, but OpenSSL's.
            return f"TLS failed: {found.reason or type(found).__name__}"
        if isinstance(found, socket.gaierror):
            return f"its name leads nowhere: {found.strerror}"
        if isinstance(found, OSError) and found.errno:
            return os.strerror(found.errno)
    words: dict[type[BaseException], str] = {
        httpcore2.ConnectTimeout: "no connection in time",
        httpcore2.WriteTimeout: "it takes nothing more",
        httpcore2.ReadTimeout: "no answer in time",
        httpcore2.PoolTimeout: "no connection is free",
        httpcore2.ConnectError: "cannot connect",
        httpcore2.RemoteProtocolError: "it ended the connection, or its answer is not HTTP",
    }
    return words.get(type(error), "the connection was lost")
