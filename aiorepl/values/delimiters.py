"""Delimiters, quotes and escapes in the text of arrays, ranges and composites.

Compiled modules use ``delimiters.pxd`` beside this file instead, as with ``byteops``.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(rb'\\(.)|""', re.DOTALL)
Marks = re.Pattern[bytes]


def any_of(characters: bytes) -> Marks:
    """Build the set of delimiters for ``find``: a lookup table in the compiled form."""
    return re.compile(b"[" + re.escape(characters) + b"]")


def find(data: bytes | bytearray, start: int, end: int, marks: Marks) -> int:
    """Return where the first delimiter in ``data[start:end]`` is; ``end`` if there is none."""
    found = marks.search(data, start, end)
    return found.start() if found else end


def closing(data: bytes, start: int, end: int, doubled: bool) -> int:
    """Return where the closing quote is; -1 if there is none before ``end``. ``start`` is after the opening quote.

    :param doubled: two quotes stand for one, besides backslash escapes.
    """
    while True:
        start = find(data, start, end, _QUOTED)
        if start >= end:
            return -1
        if data[start] == 0x5C or (doubled and data[start + 1 : start + 2] == b'"'):
            start += 2
        else:
            return start


def unescaped(data: bytes, start: int, end: int) -> bytes:
    """Return ``data[start:end]``, the inside of quotes, with escapes and doubled quotes resolved."""
    return _ESCAPE.sub(lambda match: match[1] or b'"', data[start:end])


_QUOTED: Final = any_of(b'"\\')
