"""Collects the changes of one table for a record batch. Pure.

An update of the key is a delete of the old key and an insert of the new one, with the same identity. A delete
has the key's columns, or the whole row under replica identity FULL. A truncate has no columns. An unchanged TOASTed
value is taken from the old row if that was sent; otherwise it is null, and ``_unchanged`` names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.formats.arrow.columns import Convert
from aiorepl.formats.arrow.header import Header
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.transactions.rows import Raw


class Shape:
    """Describes the conversion of a table's tuples to columns.

    :param schema: the columns of the batch: the table's columns and the metadata. An unknown column is null.
    :param names: the columns of a tuple.
    :param key: the indexes of the columns that identify a row.
    :param converters: for each column of the table, its index in a tuple and the function that converts its values
        to an array.
    """

    def __init__(
        self,
        schema: pa.Schema,
        names: Sequence[str],
        key: Sequence[int],
        converters: Mapping[str, tuple[int, Convert]],
    ) -> None:
        self.schema = schema
        self.names = names
        self.key = key
        self.converters = converters


class Rows:
    """Rows of one shape, as PostgreSQL's text."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._rows: list[list[Raw]] = []
        self._ops: list[str] = []
        self._ordinals: list[int] = []
        self._headers: list[Header] = []
        self._ends: list[int] = []
        self._header: Header | None = None
        self._unchanged: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self, header: Header) -> None:
        """Set the transaction of the following rows."""
        if header is not self._header:
            if self._header is not None:
                self._headers.append(self._header)
                self._ends.append(len(self._rows))
            self._header = header

    def insert(self, op: str, ordinal: int, new: list[Raw]) -> None:
        """Add a new row.

        :param op: ``"insert"``, or ``"read"`` for a row of a snapshot.
        """
        self._append(op, ordinal, new)

    def update(
        self, ordinal: int, new: list[Raw], old: list[Raw] | None = None, *, whole: bool = False
    ) -> None:
        """Add an updated row.

        :param old: the old row as sent: its key, or all columns if ``whole``.
        """
        if old is None:
            self._append("update", ordinal, new)
            return
        shape = self._shape
        new = list(new)
        for index in range(len(shape.names)) if whole else shape.key:
            if new[index] is UNCHANGED:
                new[index] = old[index]
        if any(old[index] != new[index] for index in shape.key):
            self.delete(ordinal, old, whole=whole)
            self._append("insert", ordinal, new)
        else:
            self._append("update", ordinal, new)

    def delete(self, ordinal: int, old: list[Raw], *, whole: bool) -> None:
        """Add a deleted row."""
        self._append("delete", ordinal, old if whole else self._only_key(old))

    def truncate(self, ordinal: int) -> None:
        """Add a truncate."""
        self._append("truncate", ordinal, [None] * len(self._shape.names))

    def batch(self) -> pa.RecordBatch:
        """Return all rows as a record batch; at least one row is required."""
        assert self._header is not None
        shape, count = self._shape, len(self._rows)
        headers, ends = [*self._headers, self._header], [*self._ends, count]
        columns: list[Sequence[Any]] = list(zip(*self._rows, strict=True))
        arrays = []
        for field in shape.schema:
            if field.name in shape.converters:
                index, convert = shape.converters[field.name]
                arrays.append(convert(columns[index]))
            elif field.name == "_op":
                arrays.append(pa.array(self._ops, pa.string()))
            elif field.name == "_ordinal":
                arrays.append(pa.array(self._ordinals, pa.int64()))
            elif field.name == "_commit_lsn":
                arrays.append(_spread([header.commit_lsn for header in headers], ends, pa.int64()))
            elif field.name == "_xid":
                arrays.append(_spread([header.xid for header in headers], ends, pa.int64()))
            elif field.name == "_commit_ts":
                arrays.append(_spread([header.time for header in headers], ends, pa.int64()).cast(field.type))
            elif field.name == "_unchanged":
                arrays.append(name_lists(self._unchanged, count).cast(field.type))
            else:
                arrays.append(pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)

    def _only_key(self, old: list[Raw]) -> list[Raw]:
        kept: list[Raw] = [None] * len(old)
        for index in self._shape.key:
            kept[index] = old[index]
        return kept

    def _append(self, op: str, ordinal: int, row: list[Raw]) -> None:
        if UNCHANGED in row:
            names = self._shape.names
            self._unchanged[len(self._rows)] = [
                names[index] for index, raw in enumerate(row) if raw is UNCHANGED
            ]
            row = [None if raw is UNCHANGED else raw for raw in row]
        self._rows.append(row)
        self._ops.append(op)
        self._ordinals.append(ordinal)


def _spread(values: list[Any], ends: list[int], kind: pa.DataType) -> Any:
    """Repeat each value up to its end, so that metadata is converted once per transaction."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values, kind))
    return pc.run_end_decode(runs)


def name_lists(named: dict[int, list[str]], count: int) -> Any:
    """Return ``count`` lists of names, empty except for the rows in ``named``."""
    if not named:
        return pa.ListArray.from_arrays(pa.array([0] * (count + 1), pa.int32()), pa.array([], pa.string()))
    return pa.array([named.get(row, ()) for row in range(count)], pa.list_(pa.string()))
