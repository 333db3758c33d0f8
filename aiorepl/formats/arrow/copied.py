"""Rows of COPY's binary format as Arrow arrays, filled by ``column_filler``. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from aiorepl.formats.arrow.binary_columns import Column, consecutive
from aiorepl.formats.arrow.column_filler import fill
from aiorepl.formats.arrow.filled import filled_columns
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.types import META
from aiorepl.transactions.lazy_changes import TableRows
from aiorepl.transactions.rows import Layout


class CopiedColumns:
    """The columns of one table.

    :param fields: the columns' Arrow types.
    :param null: as in ``FilledColumn``.
    """

    def __init__(self, layout: Layout, fields: Sequence[pa.Field], *, null: bool = False) -> None:
        self._names = [field.name for field in fields]
        self._columns = filled_columns(layout, fields, null=null)

    def make(self, kinds: bytes, rows: int) -> list[Column]:
        """Make columns for values of these kinds, with room for ``rows`` rows."""
        return [column.make(kind, rows) for column, kind in zip(self._columns, kinds, strict=True)]

    def arrays(self, rows: TableRows, refuse: Any) -> Iterator[Any]:
        """Yield an array for each column of rows.

        :param refuse: called with the column's name, the row, and the text of each value that the type cannot represent.
        """
        count = len(rows)
        columns = self.make(rows.kinds, count)
        fill(columns, rows.data, rows.position, count)
        yield from self.filled(columns, rows.kinds, count, rows.data, refuse)

    def filled(
        self, columns: Sequence[Column], kinds: bytes, count: int, data: bytes, refuse: Any
    ) -> Iterator[Any]:
        """Yield the array of each column that ``make`` made and ``fill`` filled.

        :param data: the bytes with the values that the columns refused.
        :param refuse: as in ``arrays``.
        """
        for name, kind, known, column in zip(self._names, kinds, self._columns, columns, strict=True):
            yield known.array(column, count, data, partial(_same, kind), partial(refuse, name))


def _same(kind: int, _: int) -> int:
    return kind


def metadata_arrays(
    operation: str, first: int, count: int, header: Header, names: Sequence[str] = META.names
) -> list[Any]:
    """Return metadata columns of ``META``, for consecutive rows with one operation.

    :param first: the ordinal of the first row.
    """
    return [_metadata_array(operation, first, count, header, name) for name in names]


def _metadata_array(operation: str, first: int, count: int, header: Header, name: str) -> Any:
    match name:
        case "_op":
            return pa.repeat(pa.scalar(operation, pa.string()), count)
        case "_commit_lsn":
            return pa.repeat(pa.scalar(header.commit_lsn, pa.int64()), count)
        case "_ordinal":
            ordinals = pa.py_buffer(consecutive(first, count))
            return pa.Array.from_buffers(pa.int64(), count, [None, ordinals])
        case "_xid":
            return pa.repeat(pa.scalar(header.xid, pa.int64()), count)
        case "_commit_ts":
            return pa.repeat(pa.scalar(header.time, pa.int64()), count).cast(META.field(name).type)
    assert name == "_unchanged"
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.ListArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets]), pa.array([], pa.string())
    ).cast(META.field(name).type)
