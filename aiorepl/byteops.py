"""Operations on bytes for the hot path. Pure: imports nothing from the project.

Compiled modules use ``byteops.pxd`` instead, which has the same functions as inline C on pointers. Neither checks its
arguments: the caller has compared lengths.
"""

from __future__ import annotations

import re
import struct
from binascii import unhexlify
from typing import Final

Buffer = bytes | bytearray | memoryview
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
_INT16: Final = struct.Struct("=h")
_INT32: Final = struct.Struct("=i")
_INT64: Final = struct.Struct("=q")
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")

# Above this size, copying twice takes longer than making a memoryview.
_LARGE: Final = 64 * 1024


def uint16(data: Buffer, at: int) -> int:
    """Return the big-endian integer at ``at``."""
    return data[at] << 8 | data[at + 1]


def uint32(data: Buffer, at: int) -> int:
    """Return the big-endian integer at ``at``."""
    number: int = uint32_layout(data, at)[0]
    return number


def uint64(data: Buffer, at: int) -> int:
    """Return the big-endian integer at ``at``."""
    number: int = uint64_layout(data, at)[0]
    return number


def uint128(data: Buffer, at: int) -> int:
    """Return the big-endian integer at ``at``."""
    return int.from_bytes(data[at : at + 16], "big")


def int64(data: Buffer, at: int) -> int:
    """Return the big-endian integer at ``at``."""
    number: int = int64_layout(data, at)[0]
    return number


def int16(data: Buffer, at: int) -> int:
    """Return the big-endian integer at ``at``."""
    number: int = int16_layout(data, at)[0]
    return number


def int32(data: Buffer, at: int) -> int:
    """Return the big-endian integer at ``at``."""
    number: int = int32_layout(data, at)[0]
    return number


def float32(data: Buffer, at: int) -> float:
    """Return the big-endian float4 at ``at``."""
    number: float = float32_layout(data, at)[0]
    return number


def float64(data: Buffer, at: int) -> float:
    """Return the big-endian float8 at ``at``."""
    number: float = float64_layout(data, at)[0]
    return number


def single(value: float) -> float:
    """Return the nearest float4.

    :raises OverflowError: ``value`` is finite, and the nearest float4 is infinite.
    """
    number: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    return number


def single_beside(value: float, step: int) -> float:
    """Return the neighbour of a positive float4: above for a ``step`` of 1, below for -1."""
    (bits,) = _BITS.unpack(_SINGLE.pack(value))
    number: float = _SINGLE.unpack(_BITS.pack(bits + step))[0]
    return number


def integer(data: bytes) -> int:
    """Parse an integer.

    :raises ValueError: the text is no integer.
    """
    return int(data)


def integer_in(data: bytes, start: int, end: int) -> int:
    """Parse the integer ``data[start:end]``.

    :raises ValueError: the text is no integer.
    """
    return int(data[start:end])


def hex128(data: bytes) -> int:
    """Parse 32 hexadecimal digits, with hyphens anywhere between them.

    :raises ValueError: the text is something else.
    """
    digits = data.replace(b"-", b"")
    if len(digits) != 32:
        raise ValueError
    return int.from_bytes(unhexlify(digits), "big")


def decimal(data: bytes, start: int, end: int) -> float:
    """Parse the float8 ``data[start:end]``.

    :raises ValueError: the text is no float.
    """
    return float(data[start:end])


def magnitude(number: int) -> int:
    """Return the absolute value."""
    return abs(number)


def has_long_number(data: bytes) -> bool:
    """Return whether there is a run of 19 or more digits."""
    return _LONG_NUMBER.search(data) is not None


def has_at(data: bytes, at: int, part: bytes) -> bool:
    """Return whether ``part`` is at ``at``."""
    return data.startswith(part, at)


def zero_at(data: bytes, start: int) -> int:
    """Return where the next zero byte is; -1 if there is none."""
    return data.find(0, start)


def only_bits(data: bytes) -> bool:
    """Return whether all bytes are the digits 0 and 1."""
    return not data.strip(b"01")


def cut(data: Buffer, start: int, end: int) -> bytes:
    """Return a copy of ``data[start:end]``."""
    if end - start > _LARGE:
        return bytes(memoryview(data)[start:end])  # the slice of a bytearray would be a first copy
    return bytes(data[start:end])


def blank(size: int) -> bytearray:
    """Return ``size`` bytes to be filled; ``done`` makes them immutable."""
    return bytearray(size)


def done(blank: bytearray) -> bytes:
    """Return the content of a filled ``blank``."""
    return bytes(blank)


def buffer() -> bytearray:
    """Return an empty buffer."""
    return bytearray()


def text_in(data: bytes, start: int, end: int) -> str:
    """Decode ``data[start:end]``, which is UTF-8."""
    return data[start:end].decode()


def text(out: bytearray) -> str:
    """Decode the buffer, which is UTF-8."""
    return out.decode()


def put(out: bytearray, data: bytes) -> None:
    """Append ``data``."""
    out += data


def put_part(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append ``data[start:end]``."""
    out += data[start:end]


def put_range(out: bytearray, data: Buffer, start: int, end: int) -> None:
    """Append ``data[start:end]``, for any buffer."""
    out += data[start:end]


def extend(out: bytearray, count: int) -> int:
    """Append ``count`` bytes to be overwritten; return where they begin."""
    size = len(out)
    out += bytes(count)
    return size


def shorten(out: bytearray, size: int) -> None:
    """Keep the first ``size`` bytes."""
    del out[size:]


def set_int16(target: bytearray, at: int, number: int) -> None:
    """Write an integer at ``at``, in the byte order of this machine."""
    _INT16.pack_into(target, at, number)


def set_int32(target: bytearray, at: int, number: int) -> None:
    """Write an integer at ``at``, in the byte order of this machine."""
    _INT32.pack_into(target, at, number)


def set_int64(target: bytearray, at: int, number: int) -> None:
    """Write an integer at ``at``, in the byte order of this machine."""
    _INT64.pack_into(target, at, number)


def native_int64(data: Buffer, at: int) -> int:
    """Return the integer at ``at``, in the byte order of this machine."""
    number: int = _INT64.unpack_from(data, at)[0]
    return number


def is_same(data: Buffer, one: int, other: int, size: int) -> bool:
    """Return whether the ``size`` bytes at ``one`` and at ``other`` are equal."""
    return data[one : one + size] == data[other : other + size]


def copy_into(target: bytearray, at: int, data: Buffer, start: int, end: int) -> None:
    """Overwrite ``target`` from ``at`` on with ``data[start:end]``."""
    target[at : at + end - start] = data[start:end]


def put_framed(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append the rest of ``data`` without ``data[start:end]``, after its length in four big-endian bytes; all or nothing."""
    left = data[:start] + data[end:] if end else data
    size = len(out)
    try:
        out += uint32_bytes(len(left))
        out += left
    except MemoryError:
        del out[size:]
        raise


def enclose(out: bytearray, start: int) -> None:
    """Put double quotes around ``out[start:]``."""
    out[start:] = b'"%b"' % bytes(out[start:])


def put_quoted(out: bytearray, data: bytes) -> None:
    """Append ``data`` in double quotes."""
    out += b'"%b"' % data


def put_quoted_in(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append ``data[start:end]`` in double quotes."""
    out += b'"%b"' % data[start:end]


def put_number(out: bytearray, number: int) -> None:
    """Append a number in decimal."""
    out += b"%d" % number


def put_unsigned(out: bytearray, number: int) -> None:
    """Append an unsigned number of up to 64 bits in decimal."""
    out += b"%d" % number


def put_padded(out: bytearray, number: int, width: int) -> None:
    """Append a number in decimal, padded with zeros."""
    out += b"%0*d" % (width, number)


def put_hex(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append ``data[start:end]`` in hexadecimal."""
    out += data[start:end].hex().encode()


def put_hex_apart(out: bytearray, data: bytes) -> None:
    """Append ``data`` in hexadecimal, with a colon between two bytes."""
    out += data.hex(":").encode()


def put_hex_number(out: bytearray, number: int, ten: int) -> None:
    """Append a number that is not negative in hexadecimal, without leading zeros.

    :param ten: the digit for 10, ``a`` or ``A``.
    """
    out += (b"%x" if ten == 0x61 else b"%X") % number


def put_bits(out: bytearray, data: bytes, start: int, count: int) -> None:
    """Append ``count`` bits as 0 and 1, from the byte at ``start`` on."""
    size = (count + 7) // 8
    if count:
        number = int.from_bytes(data[start : start + size], "big")
        out += f"{number:0{size * 8}b}"[:count].encode()


def unhex(data: bytes, start: int) -> bytes:
    """Decode the hexadecimal digits from ``start`` to the end.

    :raises ValueError: a character is no digit, or the number of digits is odd.
    """
    return unhexlify(data[start:])


def put_short(out: bytearray, value: float) -> bool:
    """Append the shortest digits that read back as ``value`` if they are few and need no exponent, and return true; else
    return false. Always false in Python, where ``repr`` is faster.
    """
    return False


def is_plain(data: bytes) -> bool:
    """Return true if ``data`` is ASCII without characters to escape in a JSON string. Always false in Python, where the JSON
    encoder is faster than the check.
    """
    return False


def is_plain_in(data: bytes | bytearray, start: int, end: int) -> bool:
    """``is_plain`` for ``data[start:end]``."""
    return False


def is_one_line(data: bytes, start: int, end: int) -> bool:
    """Return whether ``data[start:end]`` is UTF-8 without line ends."""
    return (
        (data.isascii() or is_utf8(data, start, end))
        and data.find(b"\n", start, end) < 0
        and data.find(b"\r", start, end) < 0
    )


def is_ascii(data: Buffer, start: int, end: int) -> bool:
    """Return whether all of ``data[start:end]`` is below 128."""
    return bytes(data[start:end]).isascii()


def is_utf8(data: bytes, start: int, end: int) -> bool:
    """Return whether ``data[start:end]`` is UTF-8."""
    try:
        data[start:end].decode()
    except UnicodeDecodeError:
        return False
    return True
