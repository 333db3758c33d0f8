"""Arrays of any element type, and the vectors of the system catalogs (int2vector, oidvector).

Python value: a ``list``, of lists where there are more dimensions; NULL is ``None``; custom lower bounds are
lost. JSON likewise, of the elements' own JSON. The text keeps the bounds (``[0:1]={a,b}``).

Text is cut up as bytes, which UTF-8 allows: no byte of a longer character looks like a brace or a quote.

Source: ``array_out``, ``array_send``, ``int2vectorout``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from aiorepl.values.codec import Codec, Malformed, Printer, codec

# A value, bytes or NULL, or a list of these: an array before its elements are read.
Tree = list[Any]

_MAX_DIMENSIONS: Final = 6
_HEADER: Final = struct.Struct("!iiI")
_DIMENSION: Final = struct.Struct("!ii")
_LENGTH: Final = struct.Struct("!i")
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_TO_ESCAPE: Final = re.compile(r'(["\\])')

_BACKSLASH: Final = 0x5C


@lru_cache(maxsize=8)
def _tokens(delimiter: str) -> re.Pattern[bytes]:
    """An element, quoted or plain, or none, and the brace or delimiter behind it."""
    stop = re.escape(delimiter).encode()
    return re.compile(
        rb'(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^{}"\\' + stop + rb"]+))?([{}" + stop + rb"])", re.DOTALL
    )


@lru_cache(maxsize=8)
def _needs_quotes(delimiter: str) -> re.Pattern[str]:
    return re.compile(r'\A\Z|["\\{}\s' + re.escape(delimiter) + r"]|\A[nN][uU][lL][lL]\Z", re.ASCII)


def parse(raw: bytes, delimiter: str) -> Tree:
    """Cut array text into the bytes of its elements, ``None`` for NULL, nested as the braces are."""
    if raw[:1] == b"[":
        raw = raw[raw.index(b"=") + 1 :]
    if raw[:1] != b"{" or raw[-1:] != b"}":
        raise Malformed("no braces around the elements")
    # One dimension and no quotes: nothing to delete but the outer braces.
    if len(raw.translate(None, b'{}"\\')) == len(raw) - 2:
        if len(raw) == 2:
            return []
        parts = raw[1:-1].split(delimiter.encode())
        if b"" in parts:
            raise Malformed("a delimiter out of place")
        return [None if part == b"NULL" else part for part in parts]
    return _parse_nested(raw, _tokens(delimiter))


def _parse_nested(raw: bytes, tokens: re.Pattern[bytes]) -> Tree:
    outer: list[Tree] = []
    here: Tree | None = None
    wanted = True  # an element or an opening brace, not a delimiter
    position, size = 0, len(raw)
    while position < size:
        token = tokens.match(raw, position)
        if token is None:
            raise Malformed("a quote or a backslash out of place")
        position = token.end()
        quoted, plain, mark = token.groups()
        if quoted is not None or plain is not None:
            if not wanted or here is None:
                raise Malformed("two elements without a delimiter")
            if quoted is None:
                here.append(None if plain == b"NULL" else plain)
            else:
                here.append(_ESCAPE.sub(rb"\1", quoted) if _BACKSLASH in quoted else quoted)
            wanted = False
        if mark == b"{":
            if not wanted or len(outer) == _MAX_DIMENSIONS - 1:
                raise Malformed("a brace out of place")
            inner: Tree = []
            if here is not None:
                here.append(inner)
                outer.append(here)
            here = inner
        elif mark == b"}":
            if here is None or (wanted and here):
                raise Malformed("a brace out of place")
            if not outer:
                if position != size:
                    raise Malformed("something follows the last brace")
                return here
            here, wanted = outer.pop(), False
        elif wanted:
            raise Malformed("a delimiter out of place")
        else:
            wanted = True
    raise Malformed("a brace is missing")


def split(raw: bytes) -> tuple[list[tuple[int, int]], list[bytes | None]]:
    """Cut the binary form into its dimensions, each a size and a lower bound, and its elements in a row."""
    count, _, _ = _HEADER.unpack_from(raw)
    if not 0 <= count <= _MAX_DIMENSIONS:
        raise Malformed(f"{count} dimensions")
    position = _HEADER.size
    dimensions = []
    total = 1 if count else 0
    for _ in range(count):
        size, lower = _DIMENSION.unpack_from(raw, position)
        position += _DIMENSION.size
        if size < 0:
            raise Malformed("a dimension of negative size")
        dimensions.append((size, lower))
        total *= size
    # Each element has a length at least, so the bytes that are there bound the loop, not the claim.
    if total * _LENGTH.size > len(raw) - position:
        raise Malformed("fewer elements than its dimensions say")
    elements: list[bytes | None] = []
    for _ in range(total):
        (length,) = _LENGTH.unpack_from(raw, position)
        position += _LENGTH.size
        if length < 0:
            elements.append(None)
            continue
        elements.append(raw[position : position + length])
        position += length
    if position != len(raw):
        raise Malformed("its elements do not fill its bytes")
    return dimensions, elements


def _nest(raw: bytes) -> Tree:
    """The binary form as the tree that ``parse`` makes of the text."""
    dimensions, leaves = split(raw)
    tree: Tree = leaves
    for size, _ in reversed(dimensions[1:]):
        tree = [tree[start : start + size] for start in range(0, len(tree), size)] if size else []
    return tree


def _read(tree: Tree, read: Callable[[bytes], Any]) -> list[Any]:
    return [
        None if item is None else read(item) if type(item) is bytes else _read(item, read) for item in tree
    ]


def _json(tree: Tree, encode: Callable[[bytes], bytes]) -> bytes:
    parts = [
        b"null" if item is None else encode(item) if type(item) is bytes else _json(item, encode)
        for item in tree
    ]
    return b"[" + b",".join(parts) + b"]"


def _printer(print_element: Printer, delimiter: str) -> Printer:
    needs_quotes = _needs_quotes(delimiter).search

    def element(raw: bytes | None) -> str:
        if raw is None:
            return "NULL"
        text = print_element(raw)
        if needs_quotes(text):
            return '"' + _TO_ESCAPE.sub(r"\\\1", text) + '"'
        return text

    def print_array(raw: bytes) -> str:
        dimensions, leaves = split(raw)
        if not leaves:
            return "{}"
        parts = [element(leaf) for leaf in leaves]
        for size, _ in reversed(dimensions):
            parts = [
                "{" + delimiter.join(parts[start : start + size]) + "}"
                for start in range(0, len(parts), size)
            ]
        if all(lower == 1 for _, lower in dimensions):
            return parts[0]
        return "".join(f"[{lower}:{lower + size - 1}]" for size, lower in dimensions) + "=" + parts[0]

    return print_array


def array(element: Codec, delimiter: str) -> Codec:
    """The codec of an array type."""
    return codec(
        lambda raw: _read(parse(raw, delimiter), element.read_text),
        lambda raw: _read(_nest(raw), element.read_binary),
        _printer(element.print_binary, delimiter),
        lambda raw: _json(parse(raw, delimiter), element.json_text),
        lambda raw: _json(_nest(raw), element.json_binary),
    )


def vector(element: Codec) -> Codec:
    """The codec of int2vector and oidvector: an array in all but its text, the elements with spaces between."""

    def printed_elements(raw: bytes) -> Iterator[str]:
        for item in split(raw)[1]:
            if item is None:
                raise Malformed("a NULL element")
            yield element.print_binary(item)

    return codec(
        lambda raw: _read(raw.split(), element.read_text),
        lambda raw: _read(_nest(raw), element.read_binary),
        lambda raw: " ".join(printed_elements(raw)),
        lambda raw: _json(raw.split(), element.json_text),
        lambda raw: _json(_nest(raw), element.json_binary),
    )
