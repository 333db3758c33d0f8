"""The few steps on bytes that the hot path is made of. Pure vocabulary: imports nothing of the project.

Compiled modules use ``octets.pxd`` beside this file instead: the same names as inline C on pointers. Neither checks its
arguments; whoever calls has compared lengths.
"""

from __future__ import annotations

import struct
from typing import Final

Octets = bytes | bytearray | memoryview
uint32_layout: Final = struct.Struct(">I").unpack_from
int64_layout: Final = struct.Struct(">q").unpack_from
uint64_layout: Final = struct.Struct(">Q").unpack_from


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


def int64(data: Octets, at: int) -> int:
    """The big-endian integer at ``at``."""
    number: int = int64_layout(data, at)[0]
    return number


def cut(data: Octets, start: int, end: int) -> bytes:
    """A copy of a stretch."""
    return bytes(data[start:end])


def put(out: bytearray, data: bytes) -> None:
    """Append."""
    out += data


def put_quoted(out: bytearray, data: bytes) -> None:
    """Append between double quotes."""
    out += b'"%b"' % data


def put_number(out: bytearray, number: int) -> None:
    """Append in decimal."""
    out += b"%d" % number


def is_plain(data: bytes) -> bool:
    """Whether this is ASCII of which a JSON string escapes nothing, as far as it is known: looking takes longer in Python
    than to have the JSON encoder do it, so it never is.
    """
    return False
