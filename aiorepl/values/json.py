"""json, jsonb and jsonpath.

Python values are the results of ``json.loads``, with two exceptions for documents that ``json.loads`` refuses. An integer with more digits
than ``sys.get_int_max_str_digits()`` (4,300) is a ``Decimal``. A document nested deeper than Python's recursion limit is
the ``str``. A JSON null is ``None``, as NULL is.

The JSON is the bytes the server sent: digits, duplicate keys and the order of keys are kept. The type json keeps line
ends as written; they cannot occur inside strings, so they are replaced by spaces.

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
# Calls Python for each integer, so it is used only after the plain decoder has failed.
_LONG_INTEGER_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer)


def read_json(raw: bytes) -> Any:
    """Return the value of a document."""
    # orjson gives json's values in a sixth of the time, except that integers beyond 64 bits become floats. Documents that it
    # refuses (numbers beyond a float, unpaired surrogates, more than 1,024 levels) are left to json.
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
    """Return the document as sent, on one line.

    :raises UnicodeDecodeError: the document is not UTF-8.
    """
    if not raw.isascii():
        raw.decode()
    if _LF in raw or _CR in raw:  # searching an int is seven times as fast as searching a one-byte string
        return raw.translate(_LINE_ENDS)
    return raw


class Document(Binary):
    """json and jsonb; jsonb is preceded by a version byte, 1."""

    def __init__(self, *, versioned: bool) -> None:
        self._start = int(versioned)

    def body(self, raw: bytes) -> bytes:
        """Return the document without the version byte."""
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
