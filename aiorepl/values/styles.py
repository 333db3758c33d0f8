"""Shortcuts from the text form of a type to JSON, without a call of its encoder for each value."""

from __future__ import annotations

import enum
from typing import Any

from aiorepl import byteops


class Style(enum.IntEnum):
    """How text becomes JSON.

    ``COPY``: verbatim. ``QUOTE``: in quotes. ``STRING``: quoted and escaped. ``NUMBER``: verbatim if finite, else quoted.
    ``BOOLEAN``: ``t`` and ``f``. ``DOCUMENT``: verbatim, on one line. ``CALL``: the encoder is called.
    """

    CALL = 0
    COPY = 1
    QUOTE = 2
    STRING = 3
    NUMBER = 4
    BOOLEAN = 5
    DOCUMENT = 6


# C constants in the compiled form.
_COPY, _QUOTE, _STRING = int(Style.COPY), int(Style.QUOTE), int(Style.STRING)
_NUMBER, _BOOLEAN, _DOCUMENT = int(Style.NUMBER), int(Style.BOOLEAN), int(Style.DOCUMENT)
_T, _F, _NINE, _MINUS, _ZERO = b"tf9-0"


def put_styled(out: bytearray, raw: bytes, start: int, end: int, style: int) -> bool:
    """Append the JSON of ``raw[start:end]`` and return true; return false if the encoder has to be called."""
    data: Any = raw  # a pointer in the compiled form
    if style == _STRING:
        if not byteops.is_plain_in(data, start, end):
            return False
        byteops.put_quoted_in(out, raw, start, end)
    elif style == _QUOTE:
        byteops.put_quoted_in(out, raw, start, end)
    elif (
        style == _COPY
        or (
            style == _NUMBER
            and start < end
            and data[end - 1] <= _NINE
            # -0 has to be -0.0
            and (data[start] != _MINUS or end - start != 2 or data[end - 1] != _ZERO)
        )
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
