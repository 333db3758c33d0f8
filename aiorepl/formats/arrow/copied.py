"""Rows of COPY's binary format as Arrow arrays, filled by ``binary_columns``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from aiorepl.formats.arrow import binary_columns as b
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.types import META
from aiorepl.pgoutput.tuples import BINARY, TEXT
from aiorepl.transactions.lazy_changes import TableRows
from aiorepl.transactions.rows import Layout
from aiorepl.values.forms import AS_TEXT
from aiorepl.values.registry import Types

Maker = Callable[[int], b.Column]

_MAKERS: Final[dict[str, Maker]] = {
    "int2": b.Int16,
    "int4": b.Int32,
    "int8": b.Int64,
    "oid": b.Oid,
    "float4": b.Int32,
    "float8": b.Int64,
    "bool": b.Boolean,
    "bytea": b.Bytes,
    "date": b.Date,
    "time": b.Time,
    "timestamp": b.Timestamp,
    "timestamptz": b.Timestamp,
}


class CopiedColumns:
    """The columns of one table.

    :param fields: their Arrow types.
    """

    def __init__(self, layout: Layout, fields: Sequence[pa.Field]) -> None:
        self._layout = layout
        self._fields = fields
        # By the kinds of the columns, of which a table has only one.
        self._makers: dict[bytes, list[Maker]] = {}

    def arrays(self, rows: TableRows) -> Iterator[Any | None]:
        """Yield an array for each column; ``None`` for one that has to be converted by its text."""
        makers = self._makers.get(rows.kinds)
        if makers is None:
            types = self._layout.types
            makers = self._makers[rows.kinds] = [
                _maker(column.type_oid, types, field.type, kind)
                for column, field, kind in zip(
                    self._layout.relation.columns, self._fields, rows.kinds, strict=True
                )
            ]
        count = len(rows)
        columns = [make(count) for make in makers]
        b.fill(columns, rows.data, rows.position, count)
        for field, column in zip(self._fields, columns, strict=True):
            yield None if column.failed else _array(field.type, count, column)


def metadata_arrays(rows: TableRows, header: Header) -> list[Any]:
    """Return the metadata columns of ``META``."""
    count, first = len(rows), rows.first_ordinal
    return [
        pa.repeat(pa.scalar(rows[0].kind, pa.string()), count),
        pa.repeat(pa.scalar(header.commit_lsn, pa.int64()), count),
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(b.consecutive(first, count))]),
        pa.repeat(pa.scalar(header.xid, pa.int64()), count),
        pa.repeat(pa.scalar(header.time, pa.int64()), count).cast(META.field("_commit_ts").type),
        pa.ListArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(bytes(4 * (count + 1)))]),
            pa.array([], pa.string()),
        ).cast(META.field("_unchanged").type),
    ]


def _array(kind: pa.DataType, count: int, column: b.Column) -> Any:
    buffers = [pa.py_buffer(column.valid) if column.nulls else None]
    if column.offsets is not None:
        buffers.append(pa.py_buffer(column.offsets))
    buffers.append(pa.py_buffer(column.values))
    return pa.Array.from_buffers(kind, count, buffers, column.nulls)


def _maker(oid: int, types: Types, wanted: pa.DataType, kind: int) -> Maker:
    if kind == TEXT:
        return b.Text if pa.types.is_string(wanted) else b.Column
    info = types.base(oid)
    if info is None or not types.readable(oid):
        return b.Column
    if pa.types.is_string(wanted):
        if info.name == "jsonb" and info.namespace == "pg_catalog":
            return b.Jsonb
        form = types.writer(oid, BINARY)
        if form is AS_TEXT:
            return b.Text
        return b.Column if form is None else partial(b.Printed, form=form)
    if pa.types.is_decimal128(wanted):
        return partial(b.Decimal128, scale=wanted.scale)
    return _MAKERS.get(info.name, b.Column) if info.namespace == "pg_catalog" else b.Column
