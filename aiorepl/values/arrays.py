"""Arrays of any element type, and the vectors of the system catalogs (int2vector, oidvector).

Python value: a ``list``, nested for more dimensions; NULL is ``None``; custom lower bounds are lost. JSON is
a list of the elements' JSON. The text keeps the bounds (``[0:1]={a,b}``).

``array_text`` reads the text form.

Source: ``array_out``, ``array_send``, ``int2vectorout``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import delimiters
from aiorepl.values.array_text import ArrayText, Tree
from aiorepl.values.codec import Codec, Malformed, binary_form, form_codec, require_escapable, string
from aiorepl.values.forms import AsSent, Binary, Container, FunctionForm, form_of
from aiorepl.values.styles import Style

# C constants in the compiled form.
_MAX_DIMENSIONS = 6
_HEADER, _DIMENSION, _LENGTH = 12, 8, 4  # sizes
_QUOTED: Final = delimiters.any_of(b'"\\')


class Array(Container):
    """Dimensions, each a size and a lower bound; then the elements, each preceded by its length."""

    def __init__(self, element: Binary, delimiter: str) -> None:
        self._element = element
        self._delimiter = delimiter.encode()
        self._needs_quotes = delimiters.any_of(b'"\\{} \t\n\v\f\r' + self._delimiter)

    def read(self, raw: bytes) -> Any:
        values: Tree = []
        if _count(raw):
            _whole(raw, self._read_level(raw, _first(raw), 0, values))
        return values

    def put(self, out: bytearray, raw: bytes) -> None:
        if _count(raw):
            _put_bounds(out, raw)
            _whole(raw, self._put_level(out, raw, _first(raw), 0, False))
        else:
            byteops.put(out, b"{}")

    def put_json(self, out: bytearray, raw: bytes) -> None:
        if _count(raw):
            _whole(raw, self._put_level(out, raw, _first(raw), 0, True))
        else:
            byteops.put(out, b"[]")

    def expands(self) -> bool:
        return self._element.expands()

    def expansion(self, raw: bytes, start: int, end: int) -> int:
        if end - start < _HEADER:
            return 0
        data: Any = raw  # a pointer in the compiled form
        dimensions = byteops.int32(data, start)
        if not 0 <= dimensions <= _MAX_DIMENSIONS:
            return 0
        at = start + _HEADER + _DIMENSION * dimensions
        total = 0
        while end - at >= _LENGTH:
            length = byteops.int32(data, at)
            at += _LENGTH
            if length > end - at:
                break
            if length > 0:
                total += self._element.expansion(raw, at, at + length)
                at += length
        return total

    def _read_level(self, raw: bytes, at: int, level: int, values: Tree) -> int:
        """Read the elements of a dimension from ``at``, and return where they end."""
        data: Any = raw  # a pointer in the compiled form
        inmost = level + 1 == byteops.int32(data, 0)
        for _ in range(byteops.int32(data, _HEADER + _DIMENSION * level)):
            if not inmost:
                inner: Tree = []
                values.append(inner)
                at = self._read_level(raw, at, level + 1, inner)
                continue
            length = _length(raw, at)
            at += _LENGTH
            if length < 0:
                values.append(None)
                continue
            values.append(self._element.read_in(raw, at, at + length))
            at += length
        return at

    def _put_level(self, out: bytearray, raw: bytes, at: int, level: int, json: bool) -> int:
        """Append the elements of a dimension as JSON or text, and return where they end."""
        data: Any = raw  # a pointer in the compiled form
        inmost = level + 1 == byteops.int32(data, 0)
        byteops.put(out, b"[" if json else b"{")
        for index in range(byteops.int32(data, _HEADER + _DIMENSION * level)):
            if index:
                byteops.put(out, b"," if json else self._delimiter)
            if not inmost:
                at = self._put_level(out, raw, at, level + 1, json)
                continue
            length = _length(raw, at)
            at += _LENGTH
            if length < 0:
                byteops.put(out, b"null" if json else b"NULL")
                continue
            if json:
                self._element.put_json_in(out, raw, at, at + length)
            else:
                self._put_element(out, byteops.cut(data, at, at + length))
            at += length
        byteops.put(out, b"]" if json else b"}")
        return at

    def _put_element(self, out: bytearray, raw: bytes) -> None:
        """Append an element, quoted and escaped if necessary."""
        start = len(out)
        self._element.put(out, raw)
        data: Any = out  # a pointer in the compiled form
        size = len(out)
        if delimiters.find(data, start, size, _QUOTED) < size:
            require_escapable(out, start)
            text = bytes(out[start:]).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            del out[start:]
            byteops.put_quoted(out, text)
        elif delimiters.find(data, start, size, self._needs_quotes) < size or _looks_special(out, start):
            byteops.enclose(out, start)


def _looks_special(out: bytearray, start: int) -> bool:
    """Return whether the text from ``start`` on needs quotes: it is empty, NULL, or has special characters."""
    size = len(out) - start
    return not size or (size == 4 and out[start:].upper() == b"NULL")


def _count(raw: bytes) -> int:
    """Return the number of elements, after verifying the dimensions against the number of bytes."""
    if len(raw) < _HEADER:
        raise Malformed("its header is cut short")
    data: Any = raw  # a pointer in the compiled form
    dimensions = byteops.int32(data, 0)
    if not 0 <= dimensions <= _MAX_DIMENSIONS:
        raise Malformed(f"{dimensions} dimensions")
    rest = len(raw) - _first(raw)
    if rest < 0:
        raise Malformed("its dimensions are cut short")
    # Each element takes at least the four bytes of its length, so the bytes bound the number of elements.
    most = rest // _LENGTH
    total = 1 if dimensions else 0
    none = False
    for level in range(dimensions):
        size = byteops.int32(data, _HEADER + _DIMENSION * level)
        if size < 0:
            raise Malformed("a dimension of negative size")
        none = none or not size
        if total <= most:
            total *= size
    if none:
        total = 0
    if total > most:
        raise Malformed("fewer elements than its dimensions say")
    if not total and rest:
        raise Malformed("its elements do not fill its bytes")
    return total


def _first(raw: bytes) -> int:
    """Return where the elements begin."""
    data: Any = raw  # a pointer in the compiled form
    return _HEADER + _DIMENSION * byteops.int32(data, 0)


def _length(raw: bytes, at: int) -> int:
    """Return the length of the element at ``at``; -1 for NULL."""
    data: Any = raw  # a pointer in the compiled form
    rest = len(raw) - at - _LENGTH
    length = byteops.int32(data, at) if rest >= 0 else 0
    if rest < 0 or length > rest:
        raise Malformed("its elements do not fill its bytes")
    return max(length, -1)


def _whole(raw: bytes, end: int) -> None:
    if end != len(raw):
        raise Malformed("its elements do not fill its bytes")


def _put_bounds(out: bytearray, raw: bytes) -> None:
    """Append the bounds (``[0:1][5:6]=``) if a dimension does not begin with 1."""
    data: Any = raw  # a pointer in the compiled form
    dimensions = byteops.int32(data, 0)
    bounds = [
        (byteops.int32(data, at), byteops.int32(data, at + 4))
        for at in range(_HEADER, _HEADER + _DIMENSION * dimensions, _DIMENSION)
    ]
    if all(lower == 1 for _, lower in bounds):
        return
    for size, lower in bounds:
        byteops.put(out, b"[%d:%d]" % (lower, lower + size - 1))
    byteops.put(out, b"=")


class VectorText(AsSent):
    """Integers separated by spaces."""

    def read(self, raw: bytes) -> Any:
        return [byteops.integer(part) for part in raw.split()]

    def put_json(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, b"[%b]" % b",".join(raw.split()))


class Vector(Array):
    """A one-dimensional array without NULLs, whose text is integers separated by spaces."""

    def put(self, out: bytearray, raw: bytes) -> None:
        for index, value in enumerate(self.read(raw)):
            if not isinstance(value, int):
                raise Malformed("a NULL element, or more than one dimension")
            if index:
                byteops.put(out, b" ")
            byteops.put_number(out, value)


def array(element: Codec, delimiter: str, style: Style) -> Codec:
    """Build the codec of an array type; ``style`` is the shortcut for the element's JSON."""
    text = ArrayText(form_of(element.read_text), delimiter, style, element.json_text)
    return form_codec(text, Array(binary_form(element), delimiter), text.json)


def vector(element: Codec) -> Codec:
    """Build the codec of int2vector or oidvector."""
    text = VectorText()
    return form_codec(text, Vector(binary_form(element), " "), text.json)


@lru_cache(maxsize=8)
def _cutter(delimiter: str) -> ArrayText:
    return ArrayText(FunctionForm(bytes), delimiter, Style.CALL, string)


def parse(raw: bytes, delimiter: str) -> Tree:
    """Split array text into the bytes of its elements, nested as the braces are; ``None`` for NULL."""
    return _cutter(delimiter).read(raw)  # type: ignore[no-any-return]
