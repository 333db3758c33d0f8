"""Text in pieces, so that a large column is written straight from its message. Pure.

Without pieces, each sink would copy a row of 100 MB before it writes the row.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Final

import orjson

from aiorepl.pgoutput.tuples import LargeColumn

Piece = bytes | bytearray | memoryview
# Columns are escaped in parts of this size.
_ESCAPED_BYTES: Final = 256 * 1024
# A UTF-8 character has at most four bytes. All of them but the first begin with the bits 10.
_CONTINUATION_BYTES: Final = 3


class Pieces:
    """A buffer, and the large columns that belong between its bytes. Iterating over this object yields the pieces, any number of times.

    :ivar out: the buffer. Append bytes to it, and add a column at its end with ``insert``.
    """

    def __init__(self) -> None:
        self.out = bytearray()
        self._columns: list[tuple[int, LargeColumn, bool]] = []

    def insert(self, column: LargeColumn, *, escape: bool) -> None:
        """Add a column after the bytes that the buffer has now.

        :param escape: whether to escape the column as the content of a JSON string; the column must be UTF-8 then.
        """
        self._columns.append((len(self.out), column, escape))

    @property
    def least(self) -> int:
        """The size of the text without the characters that escapes add."""
        return len(self.out) + sum(column.end - column.start for _, column, _ in self._columns)

    @property
    def contiguous(self) -> bool:
        """Whether the buffer is the whole text."""
        return not self._columns

    def __iter__(self) -> Iterator[Piece]:
        at, out = 0, memoryview(self.out)
        for end, column, escape in self._columns:
            yield out[at:end]
            at = end
            if escape:
                yield from map(_escaped, _characters(column))
            else:
                yield column.view()
        yield out[at:]


def joined(pieces: Iterable[Piece], least: int) -> bytes:
    """Join pieces, without a second copy of the text.

    :param least: a lower bound of the whole size, in bytes, for the buffer's first allocation. A buffer that grows from empty leaves
        up to 32 MiB in the heap.
    """
    whole = io.BytesIO()
    whole.seek(max(0, least - 1))
    whole.write(b"\0")
    whole.seek(0)
    for piece in pieces:
        whole.write(piece)
    whole.truncate()
    return whole.getvalue()  # shares the memory of ``whole``


def is_utf8(column: LargeColumn) -> bool:
    """Return whether a column is UTF-8."""
    try:
        for part in _characters(column):
            str(part, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _characters(column: LargeColumn) -> Iterator[memoryview]:
    """Cut UTF-8 into parts of whole characters."""
    payload, at = memoryview(column.payload), column.start
    while at < column.end:
        end = min(at + _ESCAPED_BYTES, column.end)
        first = end
        while first < column.end and first > end - _CONTINUATION_BYTES and payload[first] & 0xC0 == 0x80:
            first -= 1
        yield payload[at:first]
        at = first


def _escaped(part: memoryview) -> bytes:
    """Return the content of a JSON string."""
    return orjson.dumps(str(part, "utf-8"))[1:-1]
