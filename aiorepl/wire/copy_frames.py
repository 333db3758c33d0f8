"""Splits the bytes of a connection that runs COPY … TO STDOUT: the copied data, and all other frames. Pure.

The content of CopyData frames is gathered in one buffer as it arrives, even before a frame is complete: frame boundaries mean
nothing to the format of the data.

Source: "COPY Operations" and "Message Formats" in the PostgreSQL documents.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl import byteops
from aiorepl.errors import ProtocolError
from aiorepl.wire.frames import LARGEST_FRAME, LARGEST_MESSAGE, Frame

_MEMORY: Final = 256 * 1024
_COPY_DATA: Final = ord("d")
_MESSAGES: Final = (ord("E"), ord("N"))
# A C number in the compiled form: it is compared for each row.
_LARGEST: Final = LARGEST_FRAME


class CopyFrames:
    """A read buffer. ``data`` is the copied data that arrived; the consumer removes from its beginning."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._memory = bytearray(_MEMORY)
        # The number of bytes in memory of an incomplete frame that is not CopyData.
        self._end = 0
        # How many bytes are missing of the current CopyData frame, and of a message that was cut at its limit.
        self._left = 0
        self._surplus = 0

    def space(self) -> memoryview:
        """Return the memory to read into."""
        return memoryview(self._memory)[self._end :]

    def advance(self, count: int) -> list[Frame]:
        """Process ``count`` more bytes, and return the frames that are not CopyData.

        :raises ProtocolError: a frame has an invalid length.
        """
        memory, out = self._memory, self.data
        data: Any = memory  # a pointer in the compiled form
        at, end = 0, self._end + count
        # Data is appended once per read, because growing the buffer for each row costs as much as finding the row.
        filled = byteops.extend(out, end)
        target: Any = out  # a pointer, too
        frames: list[Frame] = []
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                byteops.copy_into(target, filled, data, at, at + size)
                filled += size
                at += size
                self._left -= size
                continue
            if self._surplus:
                size = min(self._surplus, end - at)
                at += size
                self._surplus -= size
                continue
            if at + 5 > end:
                break
            length = byteops.uint32(data, at + 1)
            if length < 4 or length > _LARGEST:
                raise _invalid(data[at], length)
            if data[at] == _COPY_DATA:
                self._left = length - 4
                at += 5
                continue
            size = 1 + length
            if size > 5 + LARGEST_MESSAGE:
                if data[at] not in _MESSAGES:
                    raise _invalid(data[at], length)
                # An error may quote a value of any size; the rest of its text is dropped.
                size = 5 + LARGEST_MESSAGE
            if at + size > end:
                break
            frames.append(Frame(chr(data[at]), byteops.cut(data, at + 5, at + size)))
            self._surplus = 1 + length - size
            at += size
        byteops.shorten(out, filled)
        self._end = end - at
        if self._end:
            memory[: self._end] = memory[at:end]
        return frames


def _invalid(kind: int, length: int) -> ProtocolError:
    letter = chr(kind) if 32 < kind < 127 else f"{kind:#04x}"
    return ProtocolError(f"claims {length} bytes", message=f"frame {letter}", field="length")
