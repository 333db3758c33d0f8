"""Network addresses: inet, cidr, macaddr, macaddr8.

Python values: ``ipaddress.IPv4Interface`` or ``IPv6Interface`` for inet, with or without a mask in its text;
``IPv4Network`` or ``IPv6Network`` for cidr; ``str`` for hardware addresses.

Source: ``network_send``, ``network_out``; the text of IPv6 is that of ``pg_inet_net_ntop`` (inet_net_ntop.c).
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_interface, ip_network
from typing import Final

from aiorepl.values.codec import Malformed, codec, quoted

# The family numbers are PostgreSQL's own (PGSQL_AF_INET, PGSQL_AF_INET6): address bytes and bits.
_FAMILIES: Final = {2: (4, 32), 3: (16, 128)}
_WORDS: Final = struct.Struct("!8H")
_MAPPED: Final = 0xFFFF


def _split(raw: bytes) -> tuple[bytes, int, int]:
    """Address, length of the mask, and the mask length of a single host."""
    family, mask, _, count = raw[:4]
    if family not in _FAMILIES:
        raise Malformed(f"unknown address family {family}")
    size, bits = _FAMILIES[family]
    if count != size or len(raw) != 4 + size or mask > bits:
        raise Malformed("an address or mask of the wrong length")
    return raw[4:], mask, bits


def _print_address(address: bytes) -> str:
    if len(address) == 4:
        return ".".join(map(str, address))
    words = _WORDS.unpack(address)
    start, length = _longest_zeros(words)
    if start == 0 and (length == 6 or (length == 5 and words[5] == _MAPPED)):
        return ("::ffff:" if length == 5 else "::") + ".".join(map(str, address[12:]))
    if length < 2:
        return ":".join([f"{word:x}" for word in words])
    before = ":".join([f"{word:x}" for word in words[:start]])
    behind = ":".join([f"{word:x}" for word in words[start + length :]])
    return f"{before}::{behind}"


def _longest_zeros(words: tuple[int, ...]) -> tuple[int, int]:
    """Where the longest run of zero words starts, the first of equals, and its length."""
    best, best_length, length = 0, 0, 0
    for place, word in enumerate(words):
        length = 0 if word else length + 1
        if length > best_length:
            best, best_length = place - length + 1, length
    return best, best_length


def _print_inet(raw: bytes) -> str:
    address, mask, bits = _split(raw)
    text = _print_address(address)
    return text if mask == bits else f"{text}/{mask}"


def _print_cidr(raw: bytes) -> str:
    address, mask, _ = _split(raw)
    return f"{_print_address(address)}/{mask}"


def _read_inet(raw: bytes) -> IPv4Interface | IPv6Interface:
    return ip_interface(str(raw, "ascii"))


def _read_cidr(raw: bytes) -> IPv4Network | IPv6Network:
    return ip_network(str(raw, "ascii"))


def _read_inet_binary(raw: bytes) -> IPv4Interface | IPv6Interface:
    address, mask, _ = _split(raw)
    return ip_interface((address, mask))


def _read_cidr_binary(raw: bytes) -> IPv4Network | IPv6Network:
    address, mask, _ = _split(raw)
    return ip_network((address, mask))


def _print_macaddr(raw: bytes) -> str:
    if len(raw) != 6:
        raise Malformed(f"{len(raw)} bytes where an address has 6")
    return raw.hex(":")


def _print_macaddr8(raw: bytes) -> str:
    if len(raw) != 8:
        raise Malformed(f"{len(raw)} bytes where an address has 8")
    return raw.hex(":")


CODECS: Final = {
    "inet": codec(_read_inet, _read_inet_binary, _print_inet, quoted),
    "cidr": codec(_read_cidr, _read_cidr_binary, _print_cidr, quoted),
    "macaddr": codec(bytes.decode, _print_macaddr, _print_macaddr, quoted),
    "macaddr8": codec(bytes.decode, _print_macaddr8, _print_macaddr8, quoted),
}
