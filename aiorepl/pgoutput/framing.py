"""Messages with a length prefix of four bytes, big-endian, as the spool and the journal's blocks hold them. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_LENGTH: Final = struct.Struct(">I")

frame_length: Final = _LENGTH.pack
"""Pack a message's size into its length prefix."""


def framed(payload: bytes) -> bytes:
    """Return a message with its length prefix."""
    return frame_length(len(payload)) + payload


def unframed(data: bytes) -> Iterator[bytes]:
    """Yield the messages, in order.

    :raises ValueError: the last message is cut short.
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
