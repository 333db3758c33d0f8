"""Extended statistics, as found in copies of pg_statistic_ext_data: pg_ndistinct, pg_dependencies, pg_mcv_list.

Python value: ``str``, PostgreSQL's text. The binary form is the server's memory, in the byte order of its machine, which
the magic number at its head tells. The pg_brin_* summaries occur in indexes only; their binary form is refused.

PostgreSQL 19 prints pg_ndistinct and pg_dependencies as arrays of JSON. From binary, the text is that of earlier versions,
because a binary value does not tell the server's version.

Source: ``pg_ndistinct_out``, ``pg_dependencies_out``, ``pg_mcv_list_out`` (src/backend/statistics/).
"""

from __future__ import annotations

import struct
from typing import Final

from aiorepl.values.codec import Malformed, codec
from aiorepl.values.forms import AS_TEXT
from aiorepl.values.strings import BYTEA

_NDISTINCT_MAGIC: Final = 0xA352BFA4
_DEPENDENCIES_MAGIC: Final = 0xB4549A2C
_TYPE_BASIC: Final = 1
_MAX_COLUMNS: Final = 8


def _items(raw: bytes, magic: int, count_format: str) -> list[tuple[float, tuple[int, ...]]]:
    """Return the items after the header: each is a number and the columns it describes."""
    order = next((order for order in "<>" if struct.unpack_from(f"{order}I", raw)[0] == magic), None)
    if order is None:
        raise Malformed("unknown magic number")
    _, kind, count = struct.unpack_from(f"{order}III", raw)
    if kind != _TYPE_BASIC:
        raise Malformed(f"unknown kind of statistics {kind}")
    head = struct.Struct(f"{order}d{count_format}")
    if count * head.size > len(raw) - 12:
        raise Malformed("fewer items than it says")
    position = 12
    items = []
    for _ in range(count):
        number, columns = head.unpack_from(raw, position)
        if not 2 <= columns <= _MAX_COLUMNS:
            raise Malformed(f"an item about {columns} columns")
        items.append((number, struct.unpack_from(f"{order}{columns}h", raw, position + head.size)))
        position += head.size + 2 * columns
    if position != len(raw):
        raise Malformed("its items do not fill its bytes")
    return items


def _print_ndistinct(raw: bytes) -> str:
    items = _items(raw, _NDISTINCT_MAGIC, "i")
    return (
        "{"
        + ", ".join([f'"{", ".join(map(str, columns))}": {int(number)}' for number, columns in items])
        + "}"
    )


def _print_dependencies(raw: bytes) -> str:
    items = _items(raw, _DEPENDENCIES_MAGIC, "h")
    return (
        "{"
        + ", ".join(
            [
                f'"{", ".join(map(str, columns[:-1]))} => {columns[-1]}": {number:f}'
                for number, columns in items
            ]
        )
        + "}"
    )


CODECS: Final = {
    "pg_ndistinct": codec(AS_TEXT.read, _print_ndistinct, _print_ndistinct),
    "pg_dependencies": codec(AS_TEXT.read, _print_dependencies, _print_dependencies),
    "pg_mcv_list": codec(AS_TEXT.read, BYTEA.text, BYTEA.text),
}
