"""The text form of arrays: elements in braces, separated by a delimiter, quoted where necessary.

The text is split as bytes, which is safe in UTF-8: no byte of a multibyte character equals a brace or a quote.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import delimiters
from aiorepl.values.codec import Encoder, Malformed
from aiorepl.values.forms import AsSent, Form
from aiorepl.values.styles import Style, put_styled

# An array before its elements are decoded: bytes, NULL, or a nested list of both.
Tree = list[Any]

# C constants in the compiled form.
_MAX_DIMENSIONS = 6
_OPEN, _CLOSE, _QUOTE, _BOUNDS = b'{}"['
_QUOTED: Final = delimiters.any_of(b'"\\')


class ArrayText(AsSent):
    """Elements in braces.

    :param style: the shortcut for the element's JSON; ``encode`` is used for elements that have no shortcut.
    """

    def __init__(self, element: Form, delimiter: str, style: Style, encode: Encoder) -> None:
        self._element = element
        self._delimiter = delimiter.encode()[0]
        self._style = int(style)
        self._encode = encode
        self._ends = delimiters.any_of(b'{}"\\' + delimiter.encode())

    def read(self, raw: bytes) -> Any:
        values: Tree = []
        self._whole(raw, values, None)
        return values

    def put_json(self, out: bytearray, raw: bytes) -> None:
        self._whole(raw, None, out)

    # The methods below append elements to ``values``, or their JSON to ``out``.

    def _whole(self, raw: bytes, values: Tree | None, out: bytearray | None) -> None:
        at = raw.index(b"=") + 1 if raw and raw[0] == _BOUNDS else 0
        if at >= len(raw) or raw[at] != _OPEN:
            raise Malformed("no braces around the elements")
        if self._list(raw, at + 1, 1, values, out) != len(raw):
            raise Malformed("there is text after the last brace")

    def _list(self, raw: bytes, at: int, depth: int, values: Tree | None, out: bytearray | None) -> int:
        """Read a list from after its opening brace; return the position after its closing brace."""
        data: Any = raw  # a pointer in the compiled form
        size = len(raw)
        if out is not None:
            byteops.put(out, b"[")
        if at < size and data[at] == _CLOSE:
            at += 1
        else:
            while True:
                at = self._item(raw, at, depth, values, out)
                if at >= size:
                    raise Malformed("a brace is missing")
                mark = data[at]
                at += 1
                if mark == _CLOSE:
                    break
                if mark != self._delimiter:
                    raise Malformed("two elements without a delimiter")
                if out is not None:
                    byteops.put(out, b",")
        if out is not None:
            byteops.put(out, b"]")
        return at

    def _item(self, raw: bytes, at: int, depth: int, values: Tree | None, out: bytearray | None) -> int:
        """Read an element or a nested list, and return where it ends."""
        data: Any = raw  # a pointer in the compiled form
        size = len(raw)
        mark = data[at] if at < size else 0
        if mark == _OPEN:
            if depth == _MAX_DIMENSIONS:
                raise Malformed("a brace out of place")
            inner: Tree | None = None
            if values is not None:
                inner = []
                values.append(inner)
            return self._list(raw, at + 1, depth + 1, inner, out)
        if mark == _QUOTE:
            at += 1
            end = delimiters.closing(data, at, size, False)
            if end < 0:
                raise Malformed("a quote or a backslash out of place")
            if delimiters.find(data, at, end, _QUOTED) < end:
                element = delimiters.unescaped(raw, at, end)
                self._element_in(element, 0, len(element), values, out)
            else:
                self._element_in(raw, at, end, values, out)
            return end + 1
        end = delimiters.find(data, at, size, self._ends)
        if end == at:
            raise Malformed("a delimiter, a brace or a quote out of place")
        if end - at == 4 and _is_null(data, at):
            if values is not None:
                values.append(None)
            if out is not None:
                byteops.put(out, b"null")
        else:
            self._element_in(raw, at, end, values, out)
        return end

    def _element_in(
        self, raw: bytes, start: int, end: int, values: Tree | None, out: bytearray | None
    ) -> None:
        if values is not None:
            values.append(self._element.read_in(raw, start, end))
        elif out is not None and not put_styled(out, raw, start, end, self._style):
            byteops.put(out, self._encode(raw[start:end]))


def _is_null(data: bytes, at: int) -> bool:
    return data[at] == 0x4E and data[at + 1] == 0x55 and data[at + 2] == 0x4C and data[at + 3] == 0x4C
