"""TupleData: the columns of one row as the server sent them, without their types.

Most rows are forwarded, filtered or merged, so the decoder only validates a tuple (``skip``). The columns are split when
they are needed: a column is bytes, ``None`` or ``UNCHANGED``.

Source: "Logical Replication Message Formats", TupleData; ``logicalrep_read_tuple`` in PostgreSQL's proto.c.
"""

from __future__ import annotations

import enum
import sys
from typing import Any, Final

from aiorepl import byteops
from aiorepl.errors import ProtocolError


class Unchanged(enum.Enum):
    """The type of ``UNCHANGED``, which stands for a TOASTed column that did not change and was not sent.

    It is neither NULL nor a value. Test for it with ``is``.
    """

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __bool__(self) -> bool:
        return False


UNCHANGED: Final = Unchanged.UNCHANGED
"""Stands for a large (TOASTed) value that did not change, so that the server did not send it. It is never NULL: test with ``is``."""

NULL: Final = ord("n")
TOAST: Final = ord("u")
TEXT: Final = ord("t")
BINARY: Final = ord("b")
# Names for the loops below; in the compiled form they are C numbers.
_NULL, _TOAST, _TEXT, _BINARY = NULL, TOAST, TEXT, BINARY


def skip(payload: bytes, position: int, message: str, columns: int | None) -> int:
    """Validate the tuple at ``position``, and return the offset of its end.

    :param columns: the number of columns of the relation; ``None`` if it is not known.
    :raises ProtocolError: a length, a kind or the number of columns is wrong.
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


class LargeColumn:
    """A column that stays within the bytes of its message: ``payload[start:end]``."""

    __slots__ = ("end", "payload", "start")

    def __init__(self, payload: bytes, start: int, end: int) -> None:
        self.payload = payload
        self.start = start
        self.end = end

    def view(self) -> memoryview:
        """Return the bytes without copying them."""
        return memoryview(self.payload)[self.start : self.end]

    def __repr__(self) -> str:
        return f"<LargeColumn of {self.end - self.start} bytes>"


def columns_of(payload: bytes, position: int, most: int = sys.maxsize) -> list[Any]:
    """Return the columns of the tuple at ``position``: the bytes sent, ``None`` for NULL, or ``UNCHANGED``.

    :param most: a longer column is not copied, but returned as a ``LargeColumn``; in bytes.
    :raises ProtocolError: the tuple ends early. The decoder has validated its tuples, but other callers pass bytes that nobody
        has validated.
    """
    size = len(payload)
    if position < 0 or position + 2 > size:
        raise _torn()
    data: Any = payload  # a pointer in the compiled form
    count = byteops.uint16(data, position)
    position += 2
    columns: list[Any] = []
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
            if position - start > most:
                columns.append(LargeColumn(payload, start, position))
            else:
                columns.append(byteops.cut(data, start, position))
        else:
            columns.append(None if kind == _NULL else UNCHANGED)
            position += 1
    return columns


def kinds_of(payload: bytes, position: int) -> bytes:
    """Return the kind byte of each column of the tuple at ``position``.

    :raises ProtocolError: the tuple ends early.
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


def encoded_columns(payload: bytes, position: int) -> list[bytes]:
    """Return the columns of the tuple at ``position`` as they were sent, kind and length included.

    :raises ProtocolError: the tuple ends early.
    """
    size = len(payload)
    if position < 0 or position + 2 > size:
        raise _torn()
    data: Any = payload  # a pointer in the compiled form
    count = byteops.uint16(data, position)
    position += 2
    columns: list[bytes] = []
    for _ in range(count):
        start = position
        if start >= size:
            raise _torn()
        kind = data[start]
        position += 1
        if kind == _TEXT or kind == _BINARY:
            if start + 5 > size:
                raise _torn()
            position = start + 5 + byteops.uint32(data, start + 1)
            if position > size:
                raise _torn()
        columns.append(byteops.cut(data, start, position))
    return columns


def _torn() -> ProtocolError:
    return ProtocolError("ends before its last column", field="TupleData")


def any_unchanged(columns: list[bytes | Unchanged | None]) -> bool:
    """Whether any column was not sent. Compares by identity, because ``in`` would compare bytes."""
    for column in columns:  # noqa: SIM110 - a generator costs more
        if column is UNCHANGED:
            return True
    return False


class TupleData:
    """A row within the bytes of its message. Immutable."""

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
