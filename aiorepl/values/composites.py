"""Composite types: a row inside a column.

Python value: a ``dict`` by field name. As JSON a composite is a string of PostgreSQL's text, for in text form the
types of its fields cannot be told apart by the bytes alone, and both forms must say the same.

Source: ``record_out``, ``record_send``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, Final

from aiorepl.values.codec import Codec, Malformed, codec

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_COUNT: Final = struct.Struct("!i")
_FIELD: Final = struct.Struct("!Ii")

# One field, quoted or plain; nothing at all is NULL, and quotes around nothing the empty string.
FIELD: Final = rb'"((?:[^"\\]++|""|\\.)*+)"|([^,()"\\]*+)'
_FIELD_TEXT: Final = re.compile(FIELD, re.DOTALL)
_ESCAPE: Final = re.compile(rb'\\(.)|""', re.DOTALL)
_TO_DOUBLE: Final = re.compile(r'(["\\])')
_NEEDS_QUOTES: Final = re.compile(r'\A\Z|["\\(),\s]', re.ASCII)


def unquote(raw: bytes) -> bytes:
    """What stands between the quotes of a field, without its escapes."""
    if _QUOTE in raw or _BACKSLASH in raw:
        return _ESCAPE.sub(lambda match: match[1] or b'"', raw)
    return raw


def quote(text: str, needs_quotes: re.Pattern[str] = _NEEDS_QUOTES) -> str:
    """A field as ``record_out`` writes it: in quotes if need be, quotes and backslashes doubled."""
    if needs_quotes.search(text):
        return '"' + _TO_DOUBLE.sub(r"\1\1", text) + '"'
    return text


def parse(raw: bytes) -> list[bytes | None]:
    """Cut a composite's text into the bytes of its fields, ``None`` for NULL."""
    if raw[:1] != b"(" or raw[-1:] != b")" or len(raw) < 2:
        raise Malformed("no parentheses around the fields")
    fields: list[bytes | None] = []
    position, end = 1, len(raw) - 1
    while True:
        match = _FIELD_TEXT.match(raw, position, end)
        if match is None:
            raise Malformed("a quote or a backslash out of place")
        fields.append((match[2] or None) if match[1] is None else unquote(match[1]))
        position = match.end()
        if position == end:
            return fields
        if raw[position] != 0x2C:
            raise Malformed("two fields without a comma")
        position += 1


def split(raw: bytes) -> list[tuple[int, bytes | None]]:
    """Cut the binary form into its fields, each with its type's oid."""
    (count,) = _COUNT.unpack_from(raw)
    if not 0 <= count * _FIELD.size <= len(raw) - _COUNT.size:
        raise Malformed("fewer fields than it says")
    fields: list[tuple[int, bytes | None]] = []
    position = _COUNT.size
    for _ in range(count):
        oid, length = _FIELD.unpack_from(raw, position)
        position += _FIELD.size
        if length < 0:
            fields.append((oid, None))
            continue
        fields.append((oid, raw[position : position + length]))
        position += length
    if position != len(raw):
        raise Malformed("its fields do not fill its bytes")
    return fields


def composite(fields: Sequence[tuple[str, int]], codecs: Sequence[Codec]) -> Codec:
    """The codec of a composite type with these fields; ``codecs`` are those of their types."""
    names = [name for name, _ in fields]
    oids = [oid for _, oid in fields]

    def expect(count: int) -> None:
        if count != len(fields):
            raise Malformed(f"{count} fields where the catalog has {len(fields)}; the type has changed")

    def columns(raw: bytes) -> list[bytes | None]:
        parts = split(raw)
        expect(len(parts))
        if [oid for oid, _ in parts] != oids:
            raise Malformed("a field of another type than the catalog has; the type has changed")
        return [value for _, value in parts]

    def read_text(raw: bytes) -> dict[str, Any]:
        # No field and one that is NULL look the same.
        values = parse(raw) if fields or raw != b"()" else []
        expect(len(values))
        return {
            name: None if value is None else field.read_text(value)
            for name, field, value in zip(names, codecs, values, strict=True)
        }

    def read_binary(raw: bytes) -> dict[str, Any]:
        return {
            name: None if value is None else field.read_binary(value)
            for name, field, value in zip(names, codecs, columns(raw), strict=True)
        }

    def print_binary(raw: bytes) -> str:
        parts = [
            "" if value is None else quote(field.print_binary(value))
            for field, value in zip(codecs, columns(raw), strict=True)
        ]
        return f"({','.join(parts)})"

    return codec(read_text, read_binary, print_binary)
