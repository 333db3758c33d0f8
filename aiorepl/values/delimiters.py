"""The marks between values and around them, in the text of arrays, ranges and composites: where they are, and where there
must be some.

Compiled modules use ``delimiters.pxd`` beside this file instead, as with ``byteops``.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(rb'\\(.)|""', re.DOTALL)
Marks = re.Pattern[bytes]


def any_of(characters: bytes) -> Marks:
    """What to look for: a table in the compiled form."""
    return re.compile(b"[" + re.escape(characters) + b"]")


def find(data: bytes | bytearray, start: int, end: int, marks: Marks) -> int:
    """Where the first of them is in a stretch, or its end."""
    found = marks.search(data, start, end)
    return found.start() if found else end


def closing(data: bytes, start: int, end: int, doubled: bool) -> int:
    """Where the quote is that closes what begins at ``start``, behind the quote that opened it; -1: nowhere before ``end``.

    :param doubled: whether two quotes are one that belongs to the text, as a backslash makes any character.
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
    """A quoted stretch as it was before backslashes and more quotes were put into it."""
    return _ESCAPE.sub(lambda match: match[1] or b'"', data[start:end])


_QUOTED: Final = any_of(b'"\\')
