"""Rows as PostgreSQL's own text: cut out of a change, and written for COPY or as arrays. Pure.

The target's input functions read what the source's output functions wrote, so nothing is lost or rounded on the way. What
the source sent in binary is turned into its text first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiorepl import UNCHANGED, PermanentError, RowChange

Value = Any
"""The bytes of a text, ``None`` for NULL, or ``UNCHANGED``."""
Row = list[Value]

# No text of PostgreSQL's has a NUL: it sets apart what is ours from what is a value's, so that values can be escaped a
# megabyte at a time.
_NULL: Final = b"\0N"
_COLUMN: Final = b"\0c"
_ROW: Final = b"\0r"
_ESCAPES: Final = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))
_OURS: Final = ((_COLUMN, b"\t"), (_ROW, b"\n"), (_NULL, b"\\N"))
_BINARY: Final = ord("b")


def new_row(change: RowChange) -> Row:
    """The row after the change."""
    columns = change.raw_new
    assert columns is not None
    return _texts(change, list(columns), change.new_kinds)


def old_row(change: RowChange) -> Row | None:
    """What was sent of the row before; where only its key was, the rest means nothing."""
    columns = change.raw_old
    return None if columns is None else _texts(change, list(columns), change.old_kinds)


def copied(rows: Iterable[Sequence[Value]]) -> bytes:
    """Rows in the text format of COPY."""
    lines = [_COLUMN.join([_NULL if value is None else value for value in row]) for row in rows]
    lines.append(b"")
    data = _ROW.join(lines)
    for raw, escaped in (*_ESCAPES, *_OURS):
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def arrays(rows: Sequence[Sequence[Value]], width: int) -> list[list[str | None]]:
    """The columns of rows, as arguments that are arrays of text."""
    if not rows:
        return [[] for _ in range(width)]
    return [
        [None if value is None else value.decode() for value in column] for column in zip(*rows, strict=True)
    ]


def _texts(change: RowChange, columns: Row, kinds: bytes | None) -> Row:
    if kinds is None or _BINARY not in kinds:
        return columns
    layout = change.layout
    for place, kind in enumerate(kinds):
        if kind == _BINARY:
            column = layout.relation.columns[place]
            text: Callable[[bytes], str] = layout.types.text(column.type_oid, kind)
            raw = columns[place]
            assert isinstance(raw, bytes)
            try:
                columns[place] = text(raw).encode()
            except ValueError as error:
                raise PermanentError(f"postgres: {layout.relation}.{column.name}: {error}") from None
    return columns


def complete(values: Iterable[Value]) -> bool:
    """Whether every value was sent."""
    return UNCHANGED not in values
