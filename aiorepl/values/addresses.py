"""Fast construction of ``ipaddress`` objects from a number and a prefix length.

The constructors of ``ipaddress`` take 1 to 5 µs, most of it for the network of an interface, which is rarely used. The
subclasses here have the same names and compute the network on demand; they pickle as the standard library's classes.

They set private attributes of the standard library's classes. If a Python version names them differently, ``KNOWN`` is
false and the constructors are used.
"""

from __future__ import annotations

import ipaddress
from functools import cached_property
from typing import Any, Final

from aiorepl.values.objects import bare, set_field


class _Interface:
    __slots__ = ()

    @cached_property
    def netmask(self: Any) -> Any:
        return self.network.netmask


class IPv4Interface(_Interface, ipaddress.IPv4Interface):  # type: ignore[override]
    """An address and its prefix length."""

    __slots__ = ("_prefixlen",)

    @cached_property
    def network(self) -> ipaddress.IPv4Network:  # type: ignore[override]
        return ipaddress.IPv4Network((self._ip, self._prefixlen), strict=False)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return ipaddress.IPv4Interface, (str(self),)


class IPv6Interface(_Interface, ipaddress.IPv6Interface):  # type: ignore[override]
    """An address and its prefix length."""

    __slots__ = ("_prefixlen",)

    @cached_property
    def network(self) -> ipaddress.IPv6Network:  # type: ignore[override]
        return ipaddress.IPv6Network((self._ip, self._prefixlen), strict=False)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return ipaddress.IPv6Interface, (str(self),)


class _Network:
    __slots__ = ()

    @cached_property
    def netmask(self: Any) -> Any:
        return _own(self).netmask

    def hosts(self: Any) -> Any:
        return _own(self).hosts()


class IPv4Network(_Network, ipaddress.IPv4Network):  # type: ignore[override]
    """A network, made from the number of its address and the prefix length."""

    __slots__ = ("_number", "_prefixlen")

    @cached_property
    def network_address(self) -> ipaddress.IPv4Address:  # type: ignore[override]
        return ipaddress.IPv4Address(self._number)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return ipaddress.IPv4Network, (str(self),)


class IPv6Network(_Network, ipaddress.IPv6Network):  # type: ignore[override]
    """A network, made from the number of its address and the prefix length."""

    __slots__ = ("_number", "_prefixlen")

    @cached_property
    def network_address(self) -> ipaddress.IPv6Address:  # type: ignore[override]
        return ipaddress.IPv6Address(self._number)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return ipaddress.IPv6Network, (str(self),)


def _own(network: Any) -> Any:
    """Return the standard library's network. Its constructor replaces the method ``hosts`` for some prefix lengths."""
    made = ipaddress.IPv4Network if network.version == 4 else ipaddress.IPv6Network
    return made((int(network.network_address), network.prefixlen))


def interface(family: type, number: int, mask: int) -> Any:
    """Return the interface that the constructor of ``family`` would return."""
    value = bare(family)
    set_field(value, "_ip", number)
    set_field(value, "_prefixlen", mask)
    if family is IPv6Interface:
        set_field(value, "_scope_id", None)
    return value


def network(family: type, number: int, mask: int) -> Any:
    """Return the network that the constructor of ``family`` would return; the host bits of ``number`` are zero."""
    value = bare(family)
    set_field(value, "_number", number)
    set_field(value, "_prefixlen", mask)
    return value


def _is_known() -> bool:
    """Return whether the standard library has the private attributes that are set here."""
    try:
        interfaces: Any = (
            (interface(IPv4Interface, 0x01020304, 24), ipaddress.IPv4Interface("1.2.3.4/24")),
            (interface(IPv6Interface, 1 << 112, 64), ipaddress.IPv6Interface("1::/64")),
        )
        networks: Any = (
            (network(IPv4Network, 0x01020300, 24), ipaddress.IPv4Network("1.2.3.0/24")),
            (network(IPv6Network, 1 << 112, 64), ipaddress.IPv6Network("1::/64")),
            *((value.network, own.network) for value, own in interfaces),
        )
        return all(
            (value, hash(value), repr(value), value.netmask) == (own, hash(own), repr(own), own.netmask)
            for value, own in (*interfaces, *networks)
        )
    except (AttributeError, TypeError, ValueError):
        return False


KNOWN: Final = _is_known()
