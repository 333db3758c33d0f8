"""The few steps on bytes that the hot path is made of. Pure vocabulary: imports nothing of the project.

Compiled modules use ``byteops.pxd`` beside this file instead: the same names as inline C on pointers. Neither checks its
arguments; whoever calls has compared lengths.
"""

from __future__ import annotations

import re
import struct
from binascii import unhexlify
from typing import Final

Octets = bytes | bytearray | memoryview
uint32_layout: Final = struct.Struct(">I").unpack_from
int64_layout: Final = struct.Struct(">q").unpack_from
uint64_layout: Final = struct.Struct(">Q").unpack_from
uint32_bytes: Final = struct.Struct(">I").pack
int16_layout: Final = struct.Struct(">h").unpack_from
int32_layout: Final = struct.Struct(">i").unpack_from
float32_layout: Final = struct.Struct(">f").unpack_from
float64_layout: Final = struct.Struct(">d").unpack_from
_SINGLE: Final = struct.Struct(">f")
_BITS: Final = struct.Struct(">I")
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")


def uint16(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    return data[at] << 8 | data[at + 1]


def uint32(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    number: int = uint32_layout(data, at)[0]
    return number


def uint64(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    number: int = uint64_layout(data, at)[0]
    return number


def uint128(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    return int.from_bytes(data[at : at + 16], "big")


def int64(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    number: int = int64_layout(data, at)[0]
    return number


def int16(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    number: int = int16_layout(data, at)[0]
    return number


def int32(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    number: int = int32_layout(data, at)[0]
    return number


def float32(data: Octets, at: int) -> float:
    """The big-endian float4 at ``at``."""
    number: float = float32_layout(data, at)[0]
    return number


def float64(data: Octets, at: int) -> float:
    """The big-endian float8 at ``at``."""
    number: float = float64_layout(data, at)[0]
    return number


def single(value: float) -> float:
    """The nearest float4.

    :raises OverflowError: when it would be infinite, and ``value`` is not.
    """
    number: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    return number


def single_beside(value: float, step: int) -> float:
    """Of a positive float4 the neighbour: above for a ``step`` of 1, below for -1."""
    (bits,) = _BITS.unpack(_SINGLE.pack(value))
    number: float = _SINGLE.unpack(_BITS.pack(bits + step))[0]
    return number


def integer(data: bytes) -> int:
    """The integer that this text is.

    :raises ValueError: when it is none.
    """
    return int(data)


def integer_in(data: bytes, start: int, end: int) -> int:
    """The integer that a stretch of text is.

    :raises ValueError: when it is none.
    """
    return int(data[start:end])


def hex128(data: bytes) -> int:
    """The integer that 32 hexadecimal digits say, wherever there are hyphens between them.

    :raises ValueError: when these are others.
    """
    digits = data.replace(b"-", b"")
    if len(digits) != 32:
        raise ValueError
    return int.from_bytes(unhexlify(digits), "big")


def decimal(data: bytes, start: int, end: int) -> float:
    """The float8 that a stretch of text is.

    :raises ValueError: when it is none.
    """
    return float(data[start:end])


def magnitude(number: int) -> int:
    """The number without its sign."""
    return abs(number)


def has_long_number(data: bytes) -> bool:
    """Whether there are 19 digits or more without anything between them."""
    return _LONG_NUMBER.search(data) is not None


def has_at(data: bytes, at: int, part: bytes) -> bool:
    """Whether ``part`` stands at ``at``."""
    return data.startswith(part, at)


def zero_at(data: bytes, start: int) -> int:
    """Where the next zero byte is, or -1."""
    return data.find(0, start)


def only_bits(data: bytes) -> bool:
    """Whether there is nothing but the digits 0 and 1."""
    return not data.strip(b"01")


def cut(data: Octets, start: int, end: int) -> bytes:
    """A copy of a stretch."""
    return bytes(data[start:end])


def blank(size: int) -> bytearray:
    """So many bytes to be set, which ``done`` makes immutable."""
    return bytearray(size)


def done(blank: bytearray) -> bytes:
    """What a ``blank`` was filled with."""
    return bytes(blank)


def buffer() -> bytearray:
    """An empty one, to append to."""
    return bytearray()


def text_in(data: bytes, start: int, end: int) -> str:
    """A stretch of UTF-8."""
    return data[start:end].decode()


def text(out: bytearray) -> str:
    """All that was appended, which is UTF-8."""
    return out.decode()


def put(out: bytearray, data: bytes) -> None:
    """Append."""
    out += data


def put_part(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append a stretch."""
    out += data[start:end]


def put_framed(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append what is left of ``data`` without a stretch, behind its length in four bytes, big-endian; all or nothing."""
    left = data[:start] + data[end:] if end else data
    out += b"%b%b" % (uint32_bytes(len(left)), left)


def enclose(out: bytearray, start: int) -> None:
    """Put double quotes around what was appended from ``start`` on."""
    out[start:] = b'"%b"' % bytes(out[start:])


def put_quoted(out: bytearray, data: bytes) -> None:
    """Append between double quotes."""
    out += b'"%b"' % data


def put_quoted_in(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append a stretch between double quotes."""
    out += b'"%b"' % data[start:end]


def put_number(out: bytearray, number: int) -> None:
    """Append in decimal."""
    out += b"%d" % number


def put_unsigned(out: bytearray, number: int) -> None:
    """Append in decimal what is not negative, and may take all of 64 bits."""
    out += b"%d" % number


def put_padded(out: bytearray, number: int, width: int) -> None:
    """Append in decimal, with zeros before it."""
    out += b"%0*d" % (width, number)


def put_hex(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append a stretch in hexadecimal."""
    out += data[start:end].hex().encode()


def put_hex_apart(out: bytearray, data: bytes) -> None:
    """Append in hexadecimal, with a colon between two bytes."""
    out += data.hex(":").encode()


def put_hex_number(out: bytearray, number: int, ten: int) -> None:
    """Append what is not negative in hexadecimal, as short as it is.

    :param ten: the letter for 10, which is ``a`` or ``A``.
    """
    out += (b"%x" if ten == 0x61 else b"%X") % number


def put_bits(out: bytearray, data: bytes, start: int, count: int) -> None:
    """Append so many bits as 0 and 1, those of the byte at ``start`` first."""
    size = (count + 7) // 8
    if count:
        number = int.from_bytes(data[start : start + size], "big")
        out += f"{number:0{size * 8}b}"[:count].encode()


def unhex(data: bytes, start: int) -> bytes:
    """What these hexadecimal digits say, from ``start`` to the end.

    :raises ValueError: when some are none, or one is left over.
    """
    return unhexlify(data[start:])


def put_short(out: bytearray, value: float) -> bool:
    """Append the shortest digits that read back as ``value``, if they are few and take no exponent; says whether it did.
    Never in Python, where trying takes longer than to ask for any float's.
    """
    return False


def is_plain(data: bytes) -> bool:
    """Whether this is ASCII of which a JSON string escapes nothing, as far as it is known: looking takes longer in Python
    than to have the JSON encoder do it, so it never is.
    """
    return False


def is_plain_in(data: bytes | bytearray, start: int, end: int) -> bool:
    """The same of a stretch."""
    return False


def is_one_line(data: bytes, start: int, end: int) -> bool:
    """Whether a stretch is UTF-8 and has no line end."""
    return (
        (data.isascii() or is_utf8(data, start, end))
        and data.find(b"\n", start, end) < 0
        and data.find(b"\r", start, end) < 0
    )


def is_utf8(data: bytes, start: int, end: int) -> bool:
    """Whether a stretch is UTF-8."""
    try:
        data[start:end].decode()
    except UnicodeDecodeError:
        return False
    return True
