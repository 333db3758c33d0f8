"""Network addresses: inet, cidr, macaddr, macaddr8.

Python values: ``ipaddress.IPv4Interface`` or ``IPv6Interface`` for inet, with or without a mask in its text;
``IPv4Network`` or ``IPv6Network`` for cidr; ``str`` for hardware addresses.

Source: ``network_send``, ``network_out``; the text of IPv6 is that of ``pg_inet_net_ntop`` (inet_net_ntop.c).
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import objects
from aiorepl.values.addresses import KNOWN, IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from aiorepl.values.codec import Malformed, form_codec
from aiorepl.values.forms import AS_TEXT, Binary, Form

# PostgreSQL's family numbers (PGSQL_AF_INET, PGSQL_AF_INET6). C constants in the compiled form.
_IPV4, _IPV6 = 2, 3
_ZERO, _NINE, _SMALL_A, _SMALL_F = b"09af"
_DOT, _COLON, _SLASH = b".:/"
_MAPPED = 0xFFFF
_ONE: Final = 1  # a Python int, also in the compiled form


class Inet(Binary):
    """inet: family, prefix length, a flag, the number of bytes, and the address.

    :param known: ``ipaddress`` objects can be made without their constructors.
    """

    def __init__(self, *, known: bool) -> None:
        self._known = known

    def read(self, raw: bytes) -> Any:
        bits = _bits(raw)
        data: Any = raw  # a pointer in the compiled form
        number: Any = byteops.uint32(data, 4) if bits == 32 else byteops.uint128(data, 4)
        return self.value(number, data[1], bits)

    def value(self, number: Any, mask: int, bits: int) -> Any:
        """Return the Python value of an address of ``bits`` bits."""
        if not self._known:
            made = ipaddress.IPv4Interface if bits == 32 else ipaddress.IPv6Interface
            return made((number, mask))
        # As in ``addresses.interface``.
        value = objects.bare(IPv4Interface if bits == 32 else IPv6Interface)
        objects.set_field(value, "_ip", number)
        objects.set_field(value, "_prefixlen", mask)
        if bits != 32:
            objects.set_field(value, "_scope_id", None)
        return value

    def put(self, out: bytearray, raw: bytes) -> None:
        bits = _bits(raw)
        _put_address(out, raw, bits)
        data: Any = raw  # a pointer in the compiled form
        if data[1] != bits:
            byteops.put(out, b"/")
            byteops.put_number(out, data[1])


class Cidr(Inet):
    """cidr: like inet, but the prefix length is always printed."""

    def value(self, number: Any, mask: int, bits: int) -> Any:
        if not self._known or number & ((_ONE << (bits - mask)) - 1):
            made = ipaddress.IPv4Network if bits == 32 else ipaddress.IPv6Network
            return made((number, mask))  # the constructor raises for host bits
        # As ``addresses.network``.
        value = objects.bare(IPv4Network if bits == 32 else IPv6Network)
        objects.set_field(value, "_number", number)
        objects.set_field(value, "_prefixlen", mask)
        return value

    def put(self, out: bytearray, raw: bytes) -> None:
        _put_address(out, raw, _bits(raw))
        byteops.put(out, b"/")
        byteops.put_number(out, raw[1])


class AddressText(Form):
    """inet and cidr.

    :param binary: makes the values.
    :param parse: reads text that is not a plain address.
    """

    def __init__(self, binary: Inet, parse: Any) -> None:
        self._binary = binary
        self._parse = parse

    def read(self, raw: bytes) -> Any:
        size = len(raw)
        data: Any = raw  # a pointer in the compiled form
        end = size
        mask = -1
        for at in range(max(size - 4, 0), size):
            if data[at] == _SLASH:
                end = at
                mask = _decimal(data, at + 1, size, 128)
        number = _ipv4(data, 0, end)
        if number >= 0:
            if end == size:
                mask = 32
            if 0 <= mask <= 32:
                return self._binary.value(number, mask, 32)
        else:
            address = _ipv6(data, end)
            if end == size:
                mask = 128
            if address is not None and mask >= 0:
                return self._binary.value(_number(address), mask, 128)
        return self._parse(raw.decode("ascii"))


def _bits(raw: bytes) -> int:
    """Return the bits of the address family, after verifying the header."""
    size = len(raw)
    if size < 4:
        raise Malformed("an address or mask of the wrong length")
    data: Any = raw  # a pointer in the compiled form
    if data[0] != _IPV4 and data[0] != _IPV6:
        raise Malformed(f"unknown address family {data[0]}")
    bits = 32 if data[0] == _IPV4 else 128
    if data[3] * 8 != bits or size != 4 + data[3] or data[1] > bits:
        raise Malformed("an address or mask of the wrong length")
    return bits


def _decimal(data: Any, at: int, end: int, highest: int) -> int:
    """Return the number of one to three digits; -1 if it is none, or has a leading zero."""
    if not 1 <= end - at <= 3 or (data[at] == _ZERO and end - at > 1):
        return -1
    number = 0
    for index in range(at, end):
        if not _ZERO <= data[index] <= _NINE:
            return -1
        number = number * 10 + data[index] - _ZERO
    return number if number <= highest else -1


def _ipv4(data: Any, at: int, end: int) -> int:
    """Return the IPv4 address as a number; -1 if it is none."""
    address = parts = 0
    start = at
    while at <= end:
        if at == end or data[at] == _DOT:
            number = _decimal(data, start, at, 255)
            if number < 0:
                return -1
            address = address << 8 | number
            parts += 1
            if parts == 5:
                return -1
            start = at + 1
        at += 1
    return address if parts == 4 else -1


def _ipv6(data: Any, end: int) -> bytes | None:
    """Return the bytes of the IPv6 address that ends at ``end``; ``None`` if it is none."""
    made = byteops.blank(16)
    target: Any = made  # a pointer, too
    count = at = 0  # bytes and characters so far
    gap = -1  # bytes before ``::``
    if end >= 2 and data[0] == _COLON and data[1] == _COLON:
        gap, at = 0, 2
    while at < end:
        start = at
        word = 0
        while at < end and at - start < 4:
            digit = data[at]
            if _ZERO <= digit <= _NINE:
                word = word << 4 | digit - _ZERO
            elif _SMALL_A <= digit <= _SMALL_F:
                word = word << 4 | digit - _SMALL_A + 10
            else:
                break
            at += 1
        if at < end and data[at] == _DOT:
            address = _ipv4(data, start, end)
            if address < 0 or count > 12:
                return None
            for shift in range(24, -1, -8):
                target[count] = address >> shift & 0xFF
                count += 1
            at = end
            break
        if at == start or count > 14:
            return None
        target[count] = word >> 8
        target[count + 1] = word & 0xFF
        count += 2
        if at < end:
            at += 1
            if data[at - 1] != _COLON or at == end:
                return None
            if data[at] == _COLON:
                if gap >= 0:
                    return None
                gap = count
                at += 1
    if gap < 0:
        return byteops.done(made) if count == 16 else None
    if count > 14:
        return None
    # The words after ``::`` move to the end; zeros fill the gap.
    for back in range(1, 17 - gap):
        moved = back <= count - gap
        target[16 - back] = target[count - back] if moved else 0
    return byteops.done(made)


def _number(address: bytes) -> Any:
    data: Any = address  # a pointer in the compiled form
    return byteops.uint128(data, 0)


def _put_address(out: bytearray, raw: bytes, bits: int) -> None:
    data: Any = raw  # a pointer in the compiled form
    if bits == 32:
        _put_ipv4(out, data, 4)
        return
    # The longest run of zero words, the first if several are equal.
    gap = -1
    longest = 1
    length = 0
    for word in range(8):
        length = 0 if byteops.uint16(data, 4 + 2 * word) else length + 1
        if length > longest:
            longest, gap = length, word - length + 1
    if gap == 0 and (longest == 6 or (longest == 5 and byteops.uint16(data, 14) == _MAPPED)):
        byteops.put(out, b"::ffff:" if longest == 5 else b"::")
        _put_ipv4(out, data, 16)
        return
    word = 0
    while word < 8:
        if word == gap:
            byteops.put(out, b"::")
            word += longest
        else:
            byteops.put_hex_number(out, byteops.uint16(data, 4 + 2 * word), _SMALL_A)
            word += 1
            if word < 8 and word != gap:
                byteops.put(out, b":")


def _put_ipv4(out: bytearray, data: Any, at: int) -> None:
    byteops.put_number(out, data[at])
    for index in range(at + 1, at + 4):
        byteops.put(out, b".")
        byteops.put_number(out, data[index])


class MacAddress(Binary):
    """macaddr and macaddr8: 6 or 8 bytes. The Python value is the text."""

    def __init__(self, width: int) -> None:
        self._width = width

    def read(self, raw: bytes) -> Any:
        return self.text(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        if len(raw) != self._width:
            raise Malformed(f"{len(raw)} bytes where an address has {self._width}")
        byteops.put_hex_apart(out, raw)


_INET: Final = Inet(known=KNOWN)
_CIDR: Final = Cidr(known=KNOWN)

CODECS: Final = {
    "inet": form_codec(AddressText(_INET, ipaddress.ip_interface), _INET),
    "cidr": form_codec(AddressText(_CIDR, ipaddress.ip_network), _CIDR),
    "macaddr": form_codec(AS_TEXT, MacAddress(6)),
    "macaddr8": form_codec(AS_TEXT, MacAddress(8)),
}
