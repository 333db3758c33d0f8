"""Rows of a journal's blocks as record batches with the Arrow types of ``types``, without an object for each value. Pure.

Used with ``row_collector``. The columns are as in the module ``table``, and two more that a reader may ignore:

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
import pyarrow.compute as pc

from aiorepl.formats.arrow.binary_columns import Column, Skipped
from aiorepl.formats.arrow.constants import texts
from aiorepl.formats.arrow.filled import FilledColumn
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.hidden import DROPPED, Hidden, masked, without_dropped
from aiorepl.formats.arrow.row_collector import OPERATIONS, RowCollector, fill, fill_before
from aiorepl.formats.arrow.types import META, UNREPRESENTABLE, arrow_type
from aiorepl.pgoutput.relations import Attribute
from aiorepl.transactions.rows import Layout

BEFORE: Final = "_before"
NUMBER: Final = b"PARQUET:field_id"
"""The metadata key of a column's attribute number, which a rename keeps. Parquet files have it as the field's id."""

MISSING: Final = b"aiorepl.missing"
"""The metadata key of a column that was added with a default: its value in older rows, as PostgreSQL's text."""

RefuseValue = Callable[[int, int, str], None]
_OPERATIONS: Final = texts(OPERATIONS)


class CollectedRows:
    """Converts rows of one description.

    A column with the name of a metadata column gets underscores at its end.

    :param layout: the table's columns.
    :param hidden: the columns that are dropped or masked; ``None`` if no column is hidden.
    """

    def __init__(self, layout: Layout, hidden: Hidden | None = None) -> None:
        relation, types = layout.relation, layout.types
        self.layout = layout
        self._hidden = hidden
        self.key = bytes(index in relation.key for index in range(len(relation.columns)))
        target = relation if hidden is None else hidden.target
        taken = {*META.names, UNREPRESENTABLE.name, BEFORE}
        fields: list[pa.Field] = []
        for each in target.columns:
            name = each.name
            while name in taken or (name != each.name and name in target.names):
                name += "_"
            taken.add(name)
            metadata = _metadata_of(target.attributes.get(each.name))
            kind = arrow_type(each.type_oid, each.type_modifier, types)
            fields.append(pa.field(name, kind, metadata=metadata))
        left = iter(fields)
        kept = [True] * len(relation.columns) if hidden is None else hidden.kept
        # In the order of the source's columns; ``None`` for a dropped column.
        self._fields = [next(left) if each else None for each in kept]
        self._names = texts(DROPPED if field is None else field.name for field in self._fields)
        self._columns = [
            None if field is None else FilledColumn(layout, index, field.type)
            for index, field in enumerate(self._fields)
        ]
        self._before = relation.replica_identity == "f" and bool(fields)
        extra = (
            [pa.field(BEFORE, pa.struct([field.remove_metadata() for field in fields]))]
            if self._before
            else []
        )
        self.schema = pa.schema([*fields, *META, UNREPRESENTABLE, *extra])

    def collector(self) -> RowCollector:
        """Return an empty collector for rows of this description."""
        return RowCollector(len(self._fields), self.key)

    def batch(self, rows: RowCollector) -> pa.RecordBatch:
        """Return the collected rows, at least one, as a record batch.

        :raises DataError: a value in binary format does not match its type.
        """
        refused: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)

        def refuse(prefix: str, index: int, row: int, text: str) -> None:
            field = self._fields[index]
            assert field is not None  # a dropped column refuses nothing
            refused[row].append((prefix + field.name, text))

        filled, metadata = collected_arrays(rows, self._columns, self._names, partial(refuse, ""))
        arrays = self._selected(filled)
        metadata["_unchanged"] = without_dropped(metadata["_unchanged"], self._fields)
        before = self._before_struct(rows, partial(refuse, f"{BEFORE}.")) if self._before else None
        maps = [refused.get(row) for row in range(rows.count)] if refused else None
        kind = UNREPRESENTABLE.type
        unfit = pa.nulls(rows.count, kind) if maps is None else pa.array(maps, kind)
        extra = [] if before is None else [before]
        return pa.RecordBatch.from_arrays([*arrays, *metadata.values(), unfit, *extra], schema=self.schema)

    def _before_struct(self, rows: RowCollector, refuse: RefuseValue) -> pa.Array:
        kind = self.schema.field(BEFORE).type
        if not rows.whole:
            return pa.nulls(rows.count, kind)
        kinds, valid = rows.kinds(), bytearray()
        filled = _made(self._columns, kinds, rows.count)
        fill_before(filled, kinds, rows, valid)
        arrays = self._selected(_arrays(self._columns, filled, rows, refuse))
        missing = pa.Array.from_buffers(pa.uint8(), rows.count, [None, pa.py_buffer(valid)])
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.equal(missing, 0))

    def _selected(self, arrays: Sequence[Any]) -> list[Any]:
        """Mask columns, and leave out the dropped ones."""
        hidden = self._hidden
        if hidden is None:
            return list(arrays)
        return [
            masked(values, hidden.masks[index]) if index in hidden.masks else values
            for index, values in enumerate(arrays)
            if hidden.kept[index]
        ]


def _metadata_of(attribute: Attribute | None) -> dict[bytes, bytes] | None:
    if attribute is None:
        return None
    metadata = {NUMBER: str(attribute.number).encode()}
    return metadata if attribute.missing is None else metadata | {MISSING: attribute.missing.encode()}


def attribute_of(field: pa.Field) -> Attribute | None:
    """Return the attribute in a column's metadata; ``None`` if the attribute was not known."""
    metadata = field.metadata or {}
    if NUMBER not in metadata:
        return None
    missing = metadata.get(MISSING)
    return Attribute(
        int(metadata[NUMBER]), None if missing is None else missing.decode(), missing is not None
    )


def collected_arrays(
    rows: RowCollector, columns: Sequence[FilledColumn | None], names: pa.Array, refuse: RefuseValue
) -> tuple[list[Any], dict[str, Any]]:
    """Convert collected rows. Return an array for each column, and by name an array for each column of ``META``.

    :param columns: the filled columns, in the order of the tuples; ``None`` for a column that is not wanted.
    :param names: the columns' names, for ``_unchanged``.
    :param refuse: called with the index of a column, the row and the text of each value that the type cannot represent.
    :raises DataError: a value in binary format does not match its type.
    """
    kinds = rows.kinds()
    unchanged, ends = bytearray(), bytearray(4)
    filled = _made(columns, kinds, rows.count)
    fill(filled, kinds, rows, unchanged, ends)
    return _arrays(columns, filled, rows, refuse), _metadata(rows, names, unchanged, ends)


def _made(columns: Sequence[FilledColumn | None], kinds: bytes, count: int) -> list[Column]:
    return [
        Skipped(0) if column is None else column.make(kind, count)
        for column, kind in zip(columns, kinds, strict=True)
    ]


def _arrays(
    columns: Sequence[FilledColumn | None], filled: Sequence[Column], rows: RowCollector, refuse: RefuseValue
) -> list[Any]:
    data = rows.data
    # A value is preceded by its kind and its length in four bytes.
    return [
        None
        if column is None
        else column.array(each, rows.count, data, lambda start: data[start - 5], partial(refuse, index))
        for index, (column, each) in enumerate(zip(columns, filled, strict=True))
    ]


def _metadata(rows: RowCollector, names: pa.Array, unchanged: bytearray, ends: bytearray) -> dict[str, Any]:
    count = rows.count
    operations, ordinals, lsns, xids, times = rows.numbers()
    codes = pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(operations)])
    indexes = pa.Array.from_buffers(pa.int32(), len(unchanged) // 4, [None, pa.py_buffer(unchanged)])
    offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(ends)])
    lists = pa.ListArray.from_arrays(offsets, names.take(indexes), type=META.field("_unchanged").type)
    return {
        "_op": _OPERATIONS.take(codes),
        "_commit_lsn": _numbers(pa.int64(), count, lsns),
        "_ordinal": _numbers(pa.int64(), count, ordinals),
        "_xid": _numbers(pa.int64(), count, xids),
        "_commit_ts": _numbers(META.field("_commit_ts").type, count, times),
        "_unchanged": lists,
    }


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
