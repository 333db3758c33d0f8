"""Tuples as PostgreSQL's text, whatever they were sent as. Runs on executors; knows no pyspark and no Arrow."""

from __future__ import annotations

from aiorepl.errors import DataError
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import BINARY, TupleData
from aiorepl.transactions.changes import Raw
from aiorepl.values.registry import Types


class Texts:
    """The tuples of one relation.

    :param binary: whether columns may have come in binary form.
    """

    def __init__(self, relation: Relation, types: Types, *, binary: bool) -> None:
        self._relation = relation
        self._printers = (
            [types.text(column.type_oid, BINARY) for column in relation.columns] if binary else None
        )

    def split(self, row: TupleData) -> list[Raw]:
        """The columns.

        :raises DataError: when a binary value cannot be read, naming relation and column.
        """
        columns = row.split()
        if self._printers is not None:
            for place, kind in enumerate(row.kinds()):
                raw = columns[place]
                if kind == BINARY and isinstance(raw, bytes):
                    try:
                        columns[place] = self._printers[place](raw).encode()
                    except ValueError as error:
                        name = self._relation.names[place]
                        raise DataError(f"{self._relation}.{name}: {error}") from None
        return columns
