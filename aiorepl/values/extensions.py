"""Types of PostgreSQL's own extensions, known by name, since their oids differ from database to database.

citext (``str``), hstore (``dict`` of ``str`` to ``str`` or ``None``), ltree, lquery and ltxtquery (``str``).
Other extension types read as text; their binary form is refused.

Source: contrib/hstore/hstore_io.c (``hstore_out``, ``hstore_send``), contrib/ltree/ltree_io.c.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from aiorepl.values.codec import TEXT, Malformed, codec
from aiorepl.values.strings import VERSIONED

_INT: Final = struct.Struct("!i")
_PAIR: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"=>(?:"((?:[^"\\]++|\\.)*+)"|NULL)', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_TO_ESCAPE: Final = re.compile(r'(["\\])')


def _read_hstore(raw: bytes) -> dict[str, str | None]:
    text = str(raw, "utf-8")
    values: dict[str, str | None] = {}
    position = 0
    while position < len(text):
        if position:
            if not text.startswith(", ", position):
                raise Malformed("two pairs without a comma")
            position += 2
        pair = _PAIR.match(text, position)
        if pair is None:
            raise Malformed("no pair where one should be")
        key, value = pair.groups()
        values[_ESCAPE.sub(r"\1", key)] = None if value is None else _ESCAPE.sub(r"\1", value)
        position = pair.end()
    return values


def _pairs(raw: bytes) -> Iterator[tuple[str, str | None]]:
    """Yield the pairs: a count, then keys and values, each preceded by its length, which is -1 for NULL."""
    (count,) = _INT.unpack_from(raw)
    if not 0 <= count * 2 * _INT.size <= len(raw) - _INT.size:
        raise Malformed("fewer pairs than it says")
    position = _INT.size
    for _ in range(count):
        key, position = _take(raw, position)
        value, position = _take(raw, position)
        if key is None:
            raise Malformed("a key that is NULL")
        yield key, value
    if position != len(raw):
        raise Malformed("its pairs do not fill its bytes")


def _take(raw: bytes, position: int) -> tuple[str | None, int]:
    (length,) = _INT.unpack_from(raw, position)
    start = position + _INT.size
    if length == -1:
        return None, start
    if not 0 <= length <= len(raw) - start:
        raise Malformed("a length that does not fit")
    return str(raw[start : start + length], "utf-8"), start + length


def _read_hstore_binary(raw: bytes) -> dict[str, str | None]:
    return dict(_pairs(raw))


def _print_hstore(raw: bytes) -> str:
    return ", ".join(
        [f"{_quote(key)}=>{'NULL' if value is None else _quote(value)}" for key, value in _pairs(raw)]
    )


def _quote(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(r"\\\1", text) + '"'


CODECS: Final = {
    "citext": TEXT,
    "hstore": codec(_read_hstore, _read_hstore_binary, _print_hstore),
    "ltree": VERSIONED,
    "lquery": VERSIONED,
    "ltxtquery": VERSIONED,
}
