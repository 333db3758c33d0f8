"""Messages that are kept, one after the other, each behind its length: four bytes, big-endian. Pure.

Spool files and the journal's blocks are made of these.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_LENGTH: Final = struct.Struct(">I")

frame_length: Final = _LENGTH.pack
"""What stands before a message of so many bytes."""


def framed(payload: bytes) -> bytes:
    """A message behind its length."""
    return frame_length(len(payload)) + payload


def unframed(data: bytes) -> Iterator[bytes]:
    """The messages, in order.

    :raises ValueError: when the lengths do not add up.
    """
    at, size, unpack = 0, len(data), _LENGTH.unpack_from
    while at < size:
        start = at + 4
        if start > size:
            break
        at = start + unpack(data, at)[0]
        if at > size:
            break
        yield data[start:at]
    if at != size:
        raise ValueError("the last message is cut short")
