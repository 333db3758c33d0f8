"""Rows as PostgreSQL's text: extracted from changes, and encoded for COPY or as arrays. Pure.

The target's input functions read the text of the source's output functions, so no value is rounded. Values that the source
sent in binary are converted to text first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiorepl import UNCHANGED, PermanentError, RowChange

Value = Any
"""A value's text as bytes, ``None`` for NULL, or ``UNCHANGED``."""
Row = list[Value]

# PostgreSQL's text contains no NUL. So NUL can separate values while a megabyte of them is escaped at once.
_NULL: Final = b"\0N"
_COLUMN: Final = b"\0c"
_ROW: Final = b"\0r"
_ESCAPES: Final = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))
_SEPARATORS: Final = ((_COLUMN, b"\t"), (_ROW, b"\n"), (_NULL, b"\\N"))
_BINARY: Final = ord("b")


def new_row(change: RowChange) -> Row:
    """Return the row after the change."""
    columns = change.raw_new
    assert columns is not None
    return _texts(change, list(columns), change.new_kinds)


def old_row(change: RowChange) -> Row | None:
    """Return the row before the change, as far as it was sent; if only its key was, the other values are undefined."""
    columns = change.raw_old
    return None if columns is None else _texts(change, list(columns), change.old_kinds)


def copy_text(rows: Iterable[Sequence[Value]]) -> bytes:
    """Encode rows in the text format of COPY."""
    lines = [_COLUMN.join([_NULL if value is None else value for value in row]) for row in rows]
    lines.append(b"")
    data = _ROW.join(lines)
    for raw, escaped in (*_ESCAPES, *_SEPARATORS):
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def arrays(rows: Sequence[Sequence[Value]], width: int) -> list[list[str | None]]:
    """Return the columns of rows as arrays of text, for a statement's parameters."""
    if not rows:
        return [[] for _ in range(width)]
    return [
        [None if value is None else value.decode() for value in column] for column in zip(*rows, strict=True)
    ]


def _texts(change: RowChange, columns: Row, kinds: bytes | None) -> Row:
    if kinds is None or _BINARY not in kinds:
        return columns
    layout = change.layout
    for index, kind in enumerate(kinds):
        if kind == _BINARY:
            column = layout.relation.columns[index]
            text: Callable[[bytes], str] = layout.types.text(column.type_oid, kind)
            raw = columns[index]
            assert isinstance(raw, bytes)
            try:
                columns[index] = text(raw).encode()
            except ValueError as error:
                raise PermanentError(f"postgres: {layout.relation}.{column.name}: {error}") from None
    return columns


def complete(values: Iterable[Value]) -> bool:
    """Whether every value was sent (none is an unchanged TOAST value)."""
    return UNCHANGED not in values
