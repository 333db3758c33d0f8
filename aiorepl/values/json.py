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

import orjson

from aiorepl import byteops
from aiorepl.values import forms
from aiorepl.values.codec import Malformed, form_codec
from aiorepl.values.forms import Binary, Form
from aiorepl.values.strings import VERSIONED

_loads: Final = orjson.loads
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


def read_json(raw: bytes) -> Any:
    """The value of a document."""
    # orjson's values are json's, in a sixth of the time, but for integers beyond 64 bits, which it makes floats of. What
    # it refuses (numbers beyond a float, halves of surrogate pairs, 1,024 levels) is for json to decide.
    if not byteops.has_long_number(raw):
        try:
            return _loads(raw)
        except ValueError:
            pass
    text = raw.decode()
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
    """The document as sent, on one line.

    :raises UnicodeDecodeError: it is not UTF-8.
    """
    if not raw.isascii():
        raw.decode()
    if _LF in raw or _CR in raw:  # a number is looked for seven times as fast as a string of one byte
        return raw.translate(_LINE_ENDS)
    return raw


class Document(Binary):
    """json and jsonb, the latter behind a version byte, which is 1."""

    def __init__(self, *, versioned: bool) -> None:
        self._start = int(versioned)

    def body(self, raw: bytes) -> bytes:
        """The document alone."""
        if not self._start:
            return raw
        if not raw:
            raise ValueError
        if raw[0] != 1:
            raise Malformed(f"version {raw[0]} of the binary form is not known")
        data: Any = raw  # a pointer in the compiled form
        return byteops.cut(data, 1, len(raw))

    def read(self, raw: bytes) -> Any:
        return read_json(self.body(raw))

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, self.body(raw))

    def put_string(self, out: bytearray, raw: bytes) -> None:
        forms.put_string(out, self.body(raw))

    def put_json(self, out: bytearray, raw: bytes) -> None:
        document = self.body(raw)
        data: Any = document  # a pointer in the compiled form
        byteops.put(out, document if byteops.is_one_line(data, 0, len(document)) else one_line(document))


class DocumentText(Form):
    """json and jsonb as text."""

    def read(self, raw: bytes) -> Any:
        return read_json(raw)


_DOCUMENT_TEXT: Final = DocumentText()
CODECS: Final = {
    "json": form_codec(_DOCUMENT_TEXT, Document(versioned=False), one_line),
    "jsonb": form_codec(_DOCUMENT_TEXT, Document(versioned=True), one_line),
    "jsonpath": VERSIONED,
}
