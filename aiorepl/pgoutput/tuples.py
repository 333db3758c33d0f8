"""TupleData: the columns of one row as the server sent them, checked when received and split when asked.

Knows nothing of types: a column is bytes, ``None`` or ``UNCHANGED``. The rows of most messages are forwarded,
filtered or merged elsewhere, so receiving one only walks it; ``split`` cuts it up.

Source: "Logical Replication Message Formats", TupleData; ``logicalrep_read_tuple`` in PostgreSQL's proto.c.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from aiorepl import byteops
from aiorepl.errors import ProtocolError


class Unchanged(enum.Enum):
    """The type of ``UNCHANGED``, the value of a TOASTed column that did not change and so was not sent.

    It is neither NULL nor any value; test it with ``is``.
    """

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __bool__(self) -> bool:
        return False


UNCHANGED: Final = Unchanged.UNCHANGED

NULL: Final = ord("n")
TOAST: Final = ord("u")
TEXT: Final = ord("t")
BINARY: Final = ord("b")
# The same for the loops below; in the compiled form C's own numbers.
_NULL, _TOAST, _TEXT, _BINARY = NULL, TOAST, TEXT, BINARY


def skip(payload: bytes, position: int, message: str, columns: int | None) -> int:
    """Walk the tuple at ``position`` and return the offset behind it.

    :param columns: how many columns the relation has, ``None`` when it is not known.
    :raises ProtocolError: when a length, a kind or the count does not fit.
    """
    size = len(payload)
    if position + 2 > size:
        raise ProtocolError("the number of columns is cut short", message=message, field="TupleData")
    data: Any = payload  # a pointer in the compiled form
    count = byteops.uint16(data, position)
    if columns is not None and count != columns:
        raise ProtocolError(
            f"has {count} columns where its relation has {columns}", message=message, field="TupleData"
        )
    position += 2
    for column in range(count):
        if position >= size:
            raise ProtocolError(
                f"column {column + 1} of {count} is missing", message=message, field="TupleData"
            )
        kind = data[position]
        if kind == _TEXT or kind == _BINARY:
            start = position + 5
            if start <= size:
                position = start + byteops.uint32(data, position + 1)
            if start > size or position > size:
                raise ProtocolError(
                    f"column {column + 1} of {count} claims more bytes than the message has",
                    message=message,
                    field="TupleData",
                )
        elif kind == _NULL or kind == _TOAST:
            position += 1
        else:
            raise ProtocolError(
                f"column {column + 1} of {count} is of unknown kind {kind:#04x}",
                message=message,
                field="TupleData",
            )
    return position


def columns_of(payload: bytes, position: int) -> list[bytes | Unchanged | None]:
    """The columns of the tuple at ``position``.

    :raises ProtocolError: when there is none. (``skip`` has walked what the decoder read; a journal's was not read by it.)
    """
    size = len(payload)
    if position < 0 or position + 2 > size:
        raise _torn()
    data: Any = payload  # a pointer in the compiled form
    count = byteops.uint16(data, position)
    position += 2
    columns: list[bytes | Unchanged | None] = []
    for _ in range(count):
        if position >= size:
            raise _torn()
        kind = data[position]
        if kind == _TEXT or kind == _BINARY:
            start = position + 5
            if start > size:
                raise _torn()
            position = start + byteops.uint32(data, position + 1)
            if position > size:
                raise _torn()
            columns.append(byteops.cut(data, start, position))
        else:
            columns.append(None if kind == _NULL else UNCHANGED)
            position += 1
    return columns


def kinds_of(payload: bytes, position: int) -> bytes:
    """The kind byte of each column of the tuple at ``position``.

    :raises ProtocolError: when there is none.
    """
    size = len(payload)
    if position < 0 or position + 2 > size:
        raise _torn()
    data: Any = payload  # a pointer in the compiled form
    count = byteops.uint16(data, position)
    position += 2
    found = byteops.blank(count)
    kinds: Any = found  # a pointer, too
    for column in range(count):
        if position >= size:
            raise _torn()
        kind = kinds[column] = data[position]
        if kind == _TEXT or kind == _BINARY:
            if position + 5 > size:
                raise _torn()
            position += 5 + byteops.uint32(data, position + 1)
        else:
            position += 1
    return byteops.done(found)


def _torn() -> ProtocolError:
    return ProtocolError("ends before its last column", field="TupleData")


def any_unchanged(columns: list[bytes | Unchanged | None]) -> bool:
    """Whether one of them was not sent. ``in`` would compare the bytes of all others."""
    for column in columns:  # noqa: SIM110 - a generator costs more than the loop
        if column is UNCHANGED:
            return True
    return False


class TupleData:
    """A row within its message's bytes. Immutable; the bytes are the message's own and stay valid."""

    __slots__ = ("_at", "_payload")

    def __init__(self, payload: bytes, at: int) -> None:
        self._payload = payload
        self._at = at

    def __len__(self) -> int:
        return self._payload[self._at] << 8 | self._payload[self._at + 1]

    def __repr__(self) -> str:
        return f"<TupleData of {len(self)} columns>"

    def split(self) -> list[bytes | Unchanged | None]:
        """The columns in the relation's order: the bytes sent, ``None`` for NULL, or ``UNCHANGED``."""
        return columns_of(self._payload, self._at)

    def kinds(self) -> bytes:
        """The kind byte of each column: ``n``, ``u``, ``t`` or ``b``."""
        return kinds_of(self._payload, self._at)
