"""json, jsonb and jsonpath.

Python values: what ``json.loads`` gives, with two exceptions, both documents that Python would refuse. An integer
of more digits than ``sys.get_int_max_str_digits()`` (4,300) is a ``Decimal``, and a document nested deeper than
Python's recursion limit stays ``str``. A JSON null is ``None``, like NULL.

As JSON a document is the bytes the server sent: digits, duplicate keys and the order of keys are kept. The type
json also keeps the writer's line ends; inside of strings they cannot stand, so outside they become spaces.

Source: ``json_send``, ``jsonb_send``, ``jsonpath_send`` (the latter two: a version byte before the text).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final, NoReturn

from aiorepl.values.codec import codec, versioned

_LF, _CR = b"\n\r"
_LINE_ENDS: Final = bytes.maketrans(b"\n\r", b"  ")


def _integer(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)
# A Python call for each integer; so it is only tried when the plain decoder has failed.
_LONG_INTEGER_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer)


def _read_json(raw: bytes) -> Any:
    text = str(raw, "utf-8")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        return text
    except ValueError:
        pass
    try:
        return _LONG_INTEGER_DECODER.decode(text)
    except RecursionError:
        return text


def one_line(raw: bytes) -> bytes:
    """The document as sent, on one line."""
    if _LF in raw or _CR in raw:  # a number is looked for seven times as fast as a string of one byte
        return raw.translate(_LINE_ENDS)
    return raw


CODECS: Final = {
    "json": codec(_read_json, _read_json, bytes.decode, one_line, one_line),
    "jsonb": versioned(_read_json, bytes.decode, one_line),
    "jsonpath": versioned(bytes.decode, bytes.decode),
}
