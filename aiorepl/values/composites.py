"""Composite types: a row inside a column.

Python value: a ``dict`` by field name. The JSON is a string of PostgreSQL's text: the text form does not tell the types of
its fields, and both forms must give the same JSON.

Source: ``record_out``, ``record_send``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import delimiters
from aiorepl.values.codec import Codec, Malformed, binary_form, form_codec, require_escapable, string
from aiorepl.values.delimiters import Marks
from aiorepl.values.forms import Binary, Container, Form, form_of

# C constants in the compiled form.
_OPEN, _CLOSE, _COMMA, _QUOTE = b'(),"'
_COUNT, _HEAD = 4, 8  # bytes: the number of fields takes 4, the type and length of a field take 8
_QUOTED: Final = delimiters.any_of(b'"\\')
_ENDS: Final = delimiters.any_of(b'(),"\\')
_NEEDS_QUOTES: Final = delimiters.any_of(b'"\\(), \t\n\v\f\r')


def field_end(raw: bytes, start: int, end: int, ends: Marks) -> int:
    """Return where the field that begins at ``start`` ends, quotes included."""
    data: Any = raw  # a pointer in the compiled form
    if start >= end or data[start] != _QUOTE:
        return delimiters.find(data, start, end, ends)
    start = delimiters.closing(data, start + 1, end, True)
    if start < 0:
        raise Malformed("a quote or a backslash out of place")
    return start + 1


def read_field(form: Form, raw: bytes, start: int, end: int) -> Any:
    """Return the value of a field: no text is ``None``, empty quotes are the empty string."""
    if start == end:
        return None
    data: Any = raw  # a pointer in the compiled form
    if data[start] != _QUOTE:
        return form.read_in(raw, start, end)
    start, end = start + 1, end - 1
    if delimiters.find(data, start, end, _QUOTED) < end:
        return form.read(delimiters.unescaped(raw, start, end))
    return form.read_in(raw, start, end)


def put_field(out: bytearray, form: Binary, raw: bytes, needs_quotes: Marks) -> None:
    """Append a field's text as ``record_out`` does: quoted if necessary, with quotes and backslashes doubled."""
    start = len(out)
    form.put(out, raw)
    size = len(out)
    data: Any = out  # a pointer in the compiled form
    if delimiters.find(data, start, size, _QUOTED) < size:
        require_escapable(out, start)
        text = bytes(out[start:]).replace(b"\\", b"\\\\").replace(b'"', b'""')
        del out[start:]
        byteops.put_quoted(out, text)
    elif size == start or delimiters.find(data, start, size, needs_quotes) < size:
        byteops.enclose(out, start)


class CompositeText(Form):
    """Fields in parentheses."""

    def __init__(self, names: Sequence[str], forms: Sequence[Form]) -> None:
        self._names = list(names)
        self._forms = list(forms)

    def read(self, raw: bytes) -> Any:
        end = len(raw) - 1
        if end < 1 or raw[0] != _OPEN or raw[end] != _CLOSE:
            raise Malformed("no parentheses around the fields")
        ends = _fields(raw, end)
        # A composite without fields and one whose only field is NULL have the same text.
        count = len(ends) if self._names or end > 1 else 0
        _expect(count, len(self._names))
        values = {}
        start = 1
        for index in range(count):
            after = ends[index]
            values[self._names[index]] = read_field(self._forms[index], raw, start, after)
            start = after + 1
        return values


def _fields(raw: bytes, end: int) -> list[int]:
    """Return where each field ends."""
    ends = []
    at = 1
    while True:
        at = field_end(raw, at, end, _ENDS)
        ends.append(at)
        if at == end:
            return ends
        if raw[at] != _COMMA:
            raise Malformed("two fields without a comma")
        at += 1


def _expect(count: int, known: int) -> None:
    if count != known:
        raise Malformed(f"{count} fields where the catalog has {known}; the type has changed")


class Composite(Container):
    """A count, then the fields, each preceded by its type and its length."""

    def __init__(self, names: Sequence[str], oids: Sequence[int], forms: Sequence[Binary]) -> None:
        self._names = list(names)
        self._oids = list(oids)
        self._forms = list(forms)

    def read(self, raw: bytes) -> Any:
        data: Any = raw  # a pointer in the compiled form
        self._check(raw)
        values: dict[str, Any] = {}
        at = _COUNT
        for index in range(len(self._names)):
            length = byteops.int32(data, at + 4)
            at += _HEAD
            if length < 0:
                values[self._names[index]] = None
                continue
            form: Binary = self._forms[index]
            values[self._names[index]] = form.read_in(raw, at, at + length)
            at += length
        return values

    def put(self, out: bytearray, raw: bytes) -> None:
        data: Any = raw  # a pointer in the compiled form
        self._check(raw)
        byteops.put(out, b"(")
        at = _COUNT
        for index in range(len(self._names)):
            if index:
                byteops.put(out, b",")
            length = byteops.int32(data, at + 4)
            at += _HEAD
            if length >= 0:
                put_field(out, self._forms[index], byteops.cut(data, at, at + length), _NEEDS_QUOTES)
                at += length
        byteops.put(out, b")")

    def expands(self) -> bool:
        for index in range(len(self._forms)):
            form: Binary = self._forms[index]
            if form.expands():
                return True
        return False

    def expansion(self, raw: bytes, start: int, end: int) -> int:
        data: Any = raw  # a pointer in the compiled form
        total = 0
        at = start + _COUNT
        for index in range(len(self._forms)):
            if end - at < _HEAD:
                break
            length = byteops.int32(data, at + 4)
            at += _HEAD
            if length > end - at:
                break
            if length > 0:
                form: Binary = self._forms[index]
                total += form.expansion(raw, at, at + length)
                at += length
        return total

    def _check(self, raw: bytes) -> None:
        """Verify that the bytes hold exactly the fields of these types."""
        data: Any = raw  # a pointer in the compiled form
        size = len(raw)
        count = byteops.int32(data, 0) if size >= _COUNT else -1
        if not 0 <= count * _HEAD <= size - _COUNT:
            raise Malformed("fewer fields than it says")
        at = _COUNT
        same = True
        for index in range(count):
            if at + _HEAD > size:
                raise Malformed("its fields do not fill its bytes")
            if index < len(self._oids) and self._oids[index] != byteops.uint32(data, at):
                same = False
            length = byteops.int32(data, at + 4)
            at += _HEAD
            if length > size - at:
                raise Malformed("its fields do not fill its bytes")
            if length > 0:
                at += length
        if at != size:
            raise Malformed("its fields do not fill its bytes")
        _expect(count, len(self._oids))
        if not same:
            raise Malformed("a field of another type than the catalog has; the type has changed")


def composite(fields: Sequence[tuple[str, int]], codecs: Sequence[Codec]) -> Codec:
    """Build the codec of a composite type from the ``codecs`` of its fields."""
    names = [name for name, _ in fields]
    text = CompositeText(names, [form_of(each.read_text) for each in codecs])
    binary = Composite(names, [oid for _, oid in fields], [binary_form(each) for each in codecs])
    return form_codec(text, binary, string)
