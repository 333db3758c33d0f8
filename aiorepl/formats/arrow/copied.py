"""Rows of COPY's binary format as Arrow arrays, filled by ``binary_columns``. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from aiorepl.formats.arrow.binary_columns import consecutive, fill
from aiorepl.formats.arrow.filled import filled_columns
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.types import META
from aiorepl.transactions.lazy_changes import TableRows
from aiorepl.transactions.rows import Layout


class CopiedColumns:
    """The columns of one table.

    :param fields: their Arrow types.
    :param null: as in ``FilledColumn``.
    """

    def __init__(self, layout: Layout, fields: Sequence[pa.Field], *, null: bool = False) -> None:
        self._names = [field.name for field in fields]
        self._columns = filled_columns(layout, fields, null=null)

    def arrays(self, rows: TableRows, refuse: Any) -> Iterator[Any]:
        """Yield an array for each column.

        :param refuse: called with the column's name, the row, and the text of each value that the type cannot represent.
        """
        count = len(rows)
        columns = [column.make(kind, count) for column, kind in zip(self._columns, rows.kinds, strict=True)]
        fill(columns, rows.data, rows.position, count)
        for name, kind, known, column in zip(self._names, rows.kinds, self._columns, columns, strict=True):
            yield known.array(column, count, rows.data, partial(_same, kind), partial(refuse, name))


def _same(kind: int, _: int) -> int:
    return kind


def metadata_arrays(rows: TableRows, header: Header, names: Sequence[str] = META.names) -> list[Any]:
    """Return metadata columns of ``META``."""
    return [_metadata_array(rows, header, name) for name in names]


def _metadata_array(rows: TableRows, header: Header, name: str) -> Any:
    count, first = len(rows), rows.first_ordinal
    match name:
        case "_op":
            return pa.repeat(pa.scalar(rows[0].kind, pa.string()), count)
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
