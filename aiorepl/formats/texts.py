"""Tuples in text format, converted from binary format if necessary. Pure."""

from __future__ import annotations

from aiorepl.errors import DataError
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
        """The columns of a tuple.

        :raises DataError: when a binary value cannot be read, naming relation and column.
        """
        return self.of(row.split(), None if self._printers is None else row.kinds())

    def of(self, columns: list[Raw], kinds: bytes | None) -> list[Raw]:
        """Columns that are split already; where ``kinds`` has binary ones, in a new list.

        :raises DataError: as ``split``.
        """
        if self._printers is None or kinds is None or BINARY not in kinds:
            return columns
        texts = list(columns)
        for place, kind in enumerate(kinds):
            raw = columns[place]
            if kind == BINARY and isinstance(raw, bytes):
                try:
                    text = texts[place] = self._printers[place](raw).encode()
                except ValueError as error:
                    name = self._relation.names[place]
                    raise DataError(f"{self._relation}.{name}: {error}") from None
                self.printed += len(text)
        return texts
