"""The connections of the sink ``webhook``: the receiver's URL, the connection pool, and which addresses are allowed.

The pool is the one that httpx2's client uses. The client itself would log URLs with their queries, keep cookies, follow
redirects, and take proxies and passwords from the environment.
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

# Less than the five idle seconds after which many servers close a connection, so that no request meets a closed one.
_IDLE_SECONDS: Final = 4.0
# From IANA's registries of special-purpose addresses. ``ipaddress.is_global`` differs between versions of Python.
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
# In this order: protocol assignments (among them Teredo), documentation, 6to4, and again documentation.
_IPV6_NOT_PUBLIC: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Target:
    """The receiver.

    :param host: the value of the Host header.
    :param shown: the URL without its secret parts, for messages.
    """

    url: httpcore2.URL = field(repr=False)
    host: bytes
    shown: str


def parse_url(url: str) -> Target:
    """Parse the receiver's URL.

    :raises ConfigurationError: if it is invalid; the message does not quote it.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise ConfigurationError("webhook: url is invalid: it is https://host/path") from None
    if parsed.scheme not in ("https", "http") or not parsed.host:
        raise ConfigurationError("webhook: url is not an HTTP URL: it is https://host/path")
    if parsed.userinfo:
        raise ConfigurationError("webhook: url contains a user or password: use bearer or headers instead")
    raw = httpcore2.URL(
        scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
    )
    return Target(raw, parsed.netloc, shown(url))


def shown(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return "…"
    host = parsed.netloc.decode("ascii")
    return f"{parsed.scheme}://{host}{parsed.path}" if host else parsed.path


class PrivateAddressError(Exception):
    """The receiver's name resolves to no public address."""


class Network(httpcore2.AsyncNetworkBackend):
    """Connects to any address, or to public addresses only.

    It resolves the name itself and connects to the address that it has checked, so a DNS answer that changes in between has
    no effect.

    :param private: whether to connect to addresses that are not public.
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

        :raises PrivateAddressError: no address is public.
        """
        addresses = [host]
        if not self._private:
            addresses = list(filter(is_public, await _resolve(host, port, timeout)))
            if not addresses:
                raise PrivateAddressError
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
    """A connection that closes when its TLS handshake is cancelled; the library's own leaks."""

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
    """Whether an address is public, and does not map to an IPv4 address that is not."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        if mapped is None and address in _NAT64:
            mapped = IPv4Address(int(address) & 0xFFFFFFFF)
        if mapped is None:
            # All other IPv6 networks are local or reserved.
            return address in _IPV6 and not any(address in network for network in _IPV6_NOT_PUBLIC)
        address = mapped
    return not any(address in network for network in _IPV4_NOT_PUBLIC)


def tls_context(ca: str | Path | None) -> ssl.SSLContext:
    """Make the TLS context.

    :param ca: a PEM file with the CAs to trust instead of the system's.
    :raises ConfigurationError: if the file is missing or invalid.
    """
    return httpx2.create_ssl_context() if ca is None else tls.context("webhook", str(ca), None, None, None)


def pool(
    context: ssl.SSLContext, *, connections: int, http2: bool, private: bool
) -> httpcore2.AsyncConnectionPool:
    """Make a connection pool.

    :param connections: the largest number of open connections.
    :param private: whether to connect to addresses that are not public.
    """
    return httpcore2.AsyncConnectionPool(
        ssl_context=context,
        max_connections=connections,
        keepalive_expiry=_IDLE_SECONDS,
        http2=http2,
        network_backend=Network(private=private),
    )


def reason(error: BaseException) -> str:
    """Return why a request has no response. Messages of the libraries may quote the response, so they are not used."""
    found = error
    while (deeper := found.__cause__ or found.__context__) is not None:
        found = deeper
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is invalid: {found.verify_message}"
        if isinstance(found, ssl.SSLError):
            # An SSLError's errno is OpenSSL's, so ``os.strerror`` does not apply.
            return f"TLS failed: {found.reason or type(found).__name__}"
        if isinstance(found, socket.gaierror):
            return f"its name cannot be resolved: {found.strerror}"
        if isinstance(found, OSError) and found.errno:
            return os.strerror(found.errno)
    reasons: dict[type[BaseException], str] = {
        httpcore2.ConnectTimeout: "connecting timed out",
        httpcore2.WriteTimeout: "it stopped reading the request",
        httpcore2.ReadTimeout: "no response in time",
        httpcore2.PoolTimeout: "no connection became free",
        httpcore2.ConnectError: "cannot connect",
        httpcore2.RemoteProtocolError: "it closed the connection, or its response is not HTTP",
    }
    return reasons.get(type(error), "the connection was lost")
