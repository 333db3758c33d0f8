"""Internet addresses as the standard library's objects, made of a number and the length of a mask.

The library's constructors take 1 to 5 µs, most of it for a network that few ask an interface for. The classes here are the
library's own, by name as well, but for what is made when somebody asks for it; pickled, they are the library's.

They know under which private names the library keeps the number and the length. Where it does not any more (``KNOWN``),
its constructors are used.
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
    """An address, and the length of its network's mask."""

    __slots__ = ("_prefixlen",)

    @cached_property
    def network(self) -> ipaddress.IPv4Network:  # type: ignore[override]
        return ipaddress.IPv4Network((self._ip, self._prefixlen), strict=False)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return ipaddress.IPv4Interface, (str(self),)


class IPv6Interface(_Interface, ipaddress.IPv6Interface):  # type: ignore[override]
    """An address, and the length of its network's mask."""

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
    """A network by the number of its address."""

    __slots__ = ("_number", "_prefixlen")

    @cached_property
    def network_address(self) -> ipaddress.IPv4Address:  # type: ignore[override]
        return ipaddress.IPv4Address(self._number)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return ipaddress.IPv4Network, (str(self),)


class IPv6Network(_Network, ipaddress.IPv6Network):  # type: ignore[override]
    """A network by the number of its address."""

    __slots__ = ("_number", "_prefixlen")

    @cached_property
    def network_address(self) -> ipaddress.IPv6Address:  # type: ignore[override]
        return ipaddress.IPv6Address(self._number)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return ipaddress.IPv6Network, (str(self),)


def _own(network: Any) -> Any:
    """The library's network, for what it does differently from one length of the mask to another."""
    made = ipaddress.IPv4Network if network.version == 4 else ipaddress.IPv6Network
    return made((int(network.network_address), network.prefixlen))


def interface(family: type, number: int, mask: int) -> Any:
    """What a constructor of the interfaces above would make of these."""
    value = bare(family)
    set_field(value, "_ip", number)
    set_field(value, "_prefixlen", mask)
    if family is IPv6Interface:
        set_field(value, "_scope_id", None)
    return value


def network(family: type, number: int, mask: int) -> Any:
    """What a constructor of the networks above would make of these, whose bits behind the mask are zero."""
    value = bare(family)
    set_field(value, "_number", number)
    set_field(value, "_prefixlen", mask)
    return value


def _is_known() -> bool:
    """Whether the library keeps its parts where they are sought."""
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
