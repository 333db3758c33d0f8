"""Rows of a journal's blocks as record batches with the Arrow types of ``types``, without an object for each value. Pure.

Used with ``row_collector``. The columns are those of ``table``, and two more that a reader may ignore:

- ``_unrepresentable`` maps a column's name to PostgreSQL's text of a value that the column's type cannot represent; the column
  is null then.
- ``_before``, only under REPLICA IDENTITY FULL, is the row before an update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from aiorepl.formats.arrow.filled import filled_columns
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.row_collector import OPERATIONS, RowCollector, fill, fill_before
from aiorepl.formats.arrow.types import META, UNREPRESENTABLE, arrow_type
from aiorepl.transactions.rows import Layout

BEFORE: Final = "_before"
NUMBER: Final = b"PARQUET:field_id"
"""The metadata key of a column's attribute number, which a rename keeps. Parquet files have it as the field's id."""

_OPERATIONS: Final = pa.array(OPERATIONS, pa.string())


class CollectedRows:
    """Converts rows of one description.

    A column with the name of a metadata column gets underscores at its end.

    :param layout: the table's columns.
    """

    def __init__(self, layout: Layout) -> None:
        relation, types = layout.relation, layout.types
        self.layout = layout
        self.key = bytes(index in relation.key for index in range(len(relation.columns)))
        taken = {*META.names, UNREPRESENTABLE.name, BEFORE}
        self._fields: list[pa.Field] = []
        for each in relation.columns:
            name = each.name
            while name in taken or (name != each.name and name in relation.names):
                name += "_"
            taken.add(name)
            number = relation.attributes.get(each.name)
            metadata = None if number is None else {NUMBER: str(number.number).encode()}
            kind = arrow_type(each.type_oid, each.type_modifier, types)
            self._fields.append(pa.field(name, kind, metadata=metadata))
        self._names = pa.array([field.name for field in self._fields], pa.string())
        self._columns = filled_columns(layout, self._fields)
        self._before = relation.replica_identity == "f" and bool(self._fields)
        extra = (
            [pa.field(BEFORE, pa.struct([field.remove_metadata() for field in self._fields]))]
            if self._before
            else []
        )
        self.schema = pa.schema([*self._fields, *META, UNREPRESENTABLE, *extra])

    def collector(self) -> RowCollector:
        """Return an empty collector for rows of this description."""
        return RowCollector(len(self._fields), self.key)

    def batch(self, rows: RowCollector) -> pa.RecordBatch:
        """Return the collected rows, at least one, as a record batch.

        :raises DataError: a value in binary format does not match its type.
        """
        count, data = rows.count, rows.data
        kinds = rows.kinds()
        refused: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)

        def refuse(name: str, row: int, text: str) -> None:
            refused[row].append((name, text))

        unchanged, ends = bytearray(), bytearray(4)
        filled = [column.make(kind, count) for column, kind in zip(self._columns, kinds, strict=True)]
        fill(filled, kinds, rows, unchanged, ends)
        arrays = self._arrays(filled, count, data, refuse)
        arrays += self._metadata(rows, unchanged, ends)
        before = self._before_struct(rows, kinds, refuse) if self._before else None
        maps = [refused.get(row) for row in range(count)] if refused else None
        kind = UNREPRESENTABLE.type
        arrays.append(pa.nulls(count, kind) if maps is None else pa.array(maps, kind))
        if before is not None:
            arrays.append(before)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _arrays(
        self, filled: Sequence[Any], count: int, data: bytearray, refuse: Callable[[str, int, str], None]
    ) -> list[Any]:
        # A value is preceded by its kind and its length in four bytes.
        return [
            known.array(column, count, data, lambda start: data[start - 5], partial(refuse, field.name))
            for field, known, column in zip(self._fields, self._columns, filled, strict=True)
        ]

    def _before_struct(
        self, rows: RowCollector, kinds: bytes, refuse: Callable[[str, int, str], None]
    ) -> pa.Array:
        kind = self.schema.field(BEFORE).type
        if not rows.whole:
            return pa.nulls(rows.count, kind)
        valid = bytearray()
        filled = [column.make(kind, rows.count) for column, kind in zip(self._columns, kinds, strict=True)]
        fill_before(filled, kinds, rows, valid)
        arrays = self._arrays(
            filled, rows.count, rows.data, lambda name, row, text: refuse(f"{BEFORE}.{name}", row, text)
        )
        missing = pa.Array.from_buffers(pa.uint8(), rows.count, [None, pa.py_buffer(valid)])
        mask = pa.compute.equal(missing, 0)
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)

    def _metadata(self, rows: RowCollector, unchanged: bytearray, ends: bytearray) -> list[Any]:
        count = rows.count
        operations, ordinals, lsns, xids, times = rows.numbers()
        codes = pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(operations)])
        indexes = pa.Array.from_buffers(pa.int32(), len(unchanged) // 4, [None, pa.py_buffer(unchanged)])
        offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(ends)])
        names = self._names.take(indexes)
        return [
            _OPERATIONS.take(codes),
            _numbers(pa.int64(), count, lsns),
            _numbers(pa.int64(), count, ordinals),
            _numbers(pa.int64(), count, xids),
            _numbers(META.field("_commit_ts").type, count, times),
            pa.ListArray.from_arrays(offsets, names, type=META.field("_unchanged").type),
        ]


def truncate_row(schema: pa.Schema, header: Header, ordinal: int) -> pa.RecordBatch:
    """Return a truncate as a record batch; the table's columns are null."""
    values = {
        "_op": "truncate",
        "_commit_lsn": header.commit_lsn,
        "_ordinal": ordinal,
        "_xid": header.xid,
        "_unchanged": [],
    }
    arrays = [
        pa.array([header.time], pa.int64()).cast(field.type)
        if field.name == "_commit_ts"
        else pa.array([values.get(field.name)], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numbers(kind: pa.DataType, count: int, values: bytearray) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])
