"""Tuples in text format, converted from binary format if necessary. Pure."""

from __future__ import annotations

from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import BINARY, TupleData
from aiorepl.transactions.rows import Raw
from aiorepl.values.registry import Types


class Texts:
    """The tuples of one relation.

    :param binary: whether columns may be in binary format.
    """

    def __init__(self, relation: Relation, types: Types, *, binary: bool) -> None:
        self.printed = 0
        """The number of bytes of text converted from binary values."""
        self._relation = relation
        self._printers = (
            [types.text(column.type_oid, BINARY) for column in relation.columns] if binary else None
        )

    def split(self, row: TupleData) -> list[Raw]:
        """Split a tuple into its columns.

        :raises DataError: a binary value does not match its type; the error names relation and column.
        """
        return self.of(row.split(), None if self._printers is None else row.kinds())

    def of(self, columns: list[Raw], kinds: bytes | None) -> list[Raw]:
        """Convert columns that are already split; return a new list if some column is binary.

        :raises DataError: as ``split``.
        """
        if self._printers is None or kinds is None or BINARY not in kinds:
            return columns
        texts = list(columns)
        for index, kind in enumerate(kinds):
            raw = columns[index]
            if kind == BINARY and isinstance(raw, bytes):
                try:
                    text = texts[index] = self._printers[index](raw).encode()
                except ValueError as error:
                    raise self._relation.column_error(index, error) from None
                self.printed += len(text)
        return texts
