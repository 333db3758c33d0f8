"""The frames of COPY … TO STDOUT: the data without its frames, whatever the boundaries of reads."""

from __future__ import annotations

import struct

import pytest

from aiorepl import ProtocolError
from aiorepl.wire.copy_frames import CopyFrames
from aiorepl.wire.frames import LARGEST_MESSAGE


def frame(kind: bytes, body: bytes) -> bytes:
    """A frame."""
    return kind + struct.pack(">I", len(body) + 4) + body


def feed(data: bytes, size: int) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Read data in pieces of ``size``; return the content of CopyData, and the other frames."""
    found, others = CopyFrames(), []
    while data:
        space = found.space()
        count = min(size, len(space), len(data))
        space[:count] = data[:count]
        del space
        others += found.advance(count)
        data = data[count:]
    return bytes(found.data), [(other.kind, other.body) for other in others]


@pytest.mark.parametrize("size", [2, 5, 100, 1 << 20])
def test_data_and_other_frames(size):
    """The content of CopyData is gathered in order, and every other frame comes once."""
    rows = [b"", b"a" * 10, b"b" * 30_000, b"c"]
    data = frame(b"H", b"\1") + b"".join(frame(b"d", row) for row in rows[:2]) + frame(b"N", b"SNOTICE\0\0")
    data += b"".join(frame(b"d", row) for row in rows[2:]) + frame(b"c", b"") + frame(b"Z", b"I")
    assert (
        b"".join(rows),
        [("H", b"\1"), ("N", b"SNOTICE\0\0"), ("c", b""), ("Z", b"I")],
    ) == feed(data, size)


def test_a_long_error_is_cut():
    """It may quote a value of any size; what follows it is read."""
    data = frame(b"E", b"M" + b"x" * 3 * LARGEST_MESSAGE) + frame(b"Z", b"E")
    _, ((kind, body), ready) = feed(data, 1000)
    assert ("E", LARGEST_MESSAGE) == (kind, len(body))
    assert ("Z", b"E") == ready


@pytest.mark.parametrize(
    "data", [b"d\0\0\0\3", b"d\x7f\xff\xff\xff", frame(b"T", b"x" * (LARGEST_MESSAGE + 2))]
)
def test_invalid_lengths(data):
    """A frame that cannot be true ends the connection."""
    with pytest.raises(ProtocolError, match="claims"):
        feed(data, 1000)
