"""Puts rows of COPY's binary format into columns. Pure.

A block of rows is scanned first, which finds the place of each field; then each column takes its fields of the block at once.

Imports nothing of pyarrow, so that it compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiorepl.formats.arrow.binary_columns import Column
from aiorepl.snapshot.copy_rows import RowScanner

# The number of fields that are scanned at a time, so that their places stay in the processor's cache.
_BLOCK_FIELDS: Final = 2048
# The bytes of a field in ``RowScanner.fields``.
_FIELD: Final = 16


class ColumnFiller(RowScanner):
    """Takes the rows of one COPY as columns, while its data arrives in pieces.

    :param columns: the number of columns.
    :param make: makes the columns, with room for a number of rows.
    """

    def __init__(self, columns: int, make: Callable[[int], list[Column]]) -> None:
        super().__init__(columns)
        self._make = make
        self._block = _BLOCK_FIELDS // columns + 1 if columns else _BLOCK_FIELDS
        self.fields = bytearray(_FIELD * columns * self._block)

    def take(self, data: bytearray) -> tuple[tuple[list[Column], bytes], int]:
        """Remove all complete rows from the beginning of ``data``.

        :returns: the columns, each with the data of its refused values, and the number of rows.
        :raises ProtocolError: the data is not COPY's binary format, or has another number of columns.
        """
        # A guess: the data has about as many rows as the data of the previous call.
        columns = self._make(self.count)
        if not self.begin(data):
            return (columns, b""), 0
        octets: Any = data  # a pointer in the compiled form
        end = self.fill(columns, octets, 0, len(data), len(data), self.count)
        kept = b""
        for column in columns:
            if column.refused:
                kept = bytes(memoryview(data)[:end])
                break
        self.drop(data, end)
        return (columns, kept), self.count

    def fill(
        self, columns: list[Column], octets: Any, position: int, size: int, limit: int, room: int
    ) -> int:
        """Put up to ``limit`` rows from ``position`` on into columns; return where the last complete row ends.

        :param size: where the data ends.
        :param room: the number of rows that fit into the columns.
        """
        fields: Any = self.fields  # a pointer in the compiled form
        rows = 0
        column: Column
        while rows < limit:
            wanted = min(self._block, limit - rows)
            position = self.scan(octets, position, size, wanted)
            count = self.count
            if rows + count > room:
                room = max(2 * room, rows + count)
                for column in columns:
                    column.reserve(room)
            for index in range(len(columns)):
                column = columns[index]
                column.put_all(rows, count, octets, fields, _FIELD * index, _FIELD * self.columns)
            rows += count
            if count < wanted:
                break
        self.count = rows
        return position


def _none(rows: int) -> list[Column]:
    return []


def fill(columns: list[Column], data: bytes, position: int, rows: int) -> None:
    """Put rows into columns that have room for them.

    :param position: where the first row begins; the data was verified.
    """
    filler = ColumnFiller(len(columns), _none)
    octets: Any = data  # a pointer in the compiled form
    filler.fill(columns, octets, position, len(data), rows, rows)
