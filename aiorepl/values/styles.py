"""How the text of a type becomes JSON where that takes no call of an encoder for each value."""

from __future__ import annotations

import enum
from typing import Any

from aiorepl import byteops


class Style(enum.IntEnum):
    """Copied, in quotes, as a string, copied unless it is no finite number, ``t`` and ``f``, on one line. ``CALL``: none of
    these.
    """

    CALL = 0
    COPY = 1
    QUOTE = 2
    STRING = 3
    NUMBER = 4
    BOOLEAN = 5
    DOCUMENT = 6


# C's own numbers in the compiled form.
_COPY, _QUOTE, _STRING = int(Style.COPY), int(Style.QUOTE), int(Style.STRING)
_NUMBER, _BOOLEAN, _DOCUMENT = int(Style.NUMBER), int(Style.BOOLEAN), int(Style.DOCUMENT)
_T, _F, _NINE = b"tf9"


def put_styled(out: bytearray, raw: bytes, start: int, end: int, style: int) -> bool:
    """Append the JSON of a stretch of text. Says whether it did: else an encoder has to be asked."""
    data: Any = raw  # a pointer in the compiled form
    if style == _STRING:
        if not byteops.is_plain_in(data, start, end):
            return False
        byteops.put_quoted_in(out, raw, start, end)
    elif style == _QUOTE:
        byteops.put_quoted_in(out, raw, start, end)
    elif (
        style == _COPY
        or (style == _NUMBER and start < end and data[end - 1] <= _NINE)
        or (style == _DOCUMENT and byteops.is_one_line(data, start, end))
    ):
        byteops.put_part(out, raw, start, end)
    elif style == _BOOLEAN and end - start == 1 and data[start] == _T:
        byteops.put(out, b"true")
    elif style == _BOOLEAN and end - start == 1 and data[start] == _F:
        byteops.put(out, b"false")
    else:
        return False
    return True
