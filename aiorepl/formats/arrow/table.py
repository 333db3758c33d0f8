"""Changes as record batches by table, with the Arrow types of ``types``, without loss. Pure.

A value that its column's type cannot represent (infinity, NaN in a decimal, an array of more than one dimension,
text that is not UTF-8) is null; the map ``_unrepresentable`` has PostgreSQL's text of it, under the column's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from aiorepl.epoch import since_1970
from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.columns import Convert, Raw, Unrepresentable, converter
from aiorepl.formats.arrow.copied import CopiedColumns, metadata_arrays
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.rows import Rows, Shape
from aiorepl.formats.arrow.types import META, UNREPRESENTABLE, arrow_type
from aiorepl.formats.texts import Texts
from aiorepl.transactions.changes import Change, Delete, Insert, Message, RowChange, Update
from aiorepl.transactions.lazy_changes import TableRows
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.transaction import Transaction

OURS: Final = META.append(UNREPRESENTABLE)
MESSAGES: Final = pa.schema([pa.field("prefix", pa.string()), pa.field("content", pa.binary()), *META])


class ArrowTable:
    """Converts the changes of one table.

    :param layout: the table's columns; ``None`` writes truncates only, with metadata columns.
    :raises ConfigurationError: the table has a column with the name of a metadata column.
    """

    def __init__(self, layout: Layout | None) -> None:
        self._unrepresentable: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        if layout is None:
            self.schema: pa.Schema = OURS
            self._shape = Shape(OURS, (), (), {})
            return
        relation, types = layout.relation, layout.types
        if taken := set(OURS.names) & set(relation.names):
            raise ConfigurationError(
                f"{relation} has a column {min(taken)!r}, the name of a metadata column in Parquet: remove the column from "
                "the publication, or drop it in the sink's selection"
            )
        fields = [
            pa.field(column.name, arrow_type(column.type_oid, column.type_modifier, types))
            for column in relation.columns
        ]
        converters = {
            field.name: (
                index,
                self._lossless(field, converter(column.type_oid, types, field.type, null=False)),
            )
            for index, (field, column) in enumerate(zip(fields, relation.columns, strict=True))
        }
        self.schema = pa.schema([*fields, *OURS])
        self._shape = Shape(self.schema, relation.names, relation.key, converters)
        self._texts = Texts(relation, types, binary=layout.binary)
        self._binary = layout.binary
        self._copied = CopiedColumns(layout, fields)

    def batch(self, changes: Iterable[Change]) -> pa.RecordBatch:
        """Return rows and truncates of the table, at least one, as a record batch.

        :raises DataError: a value in binary format does not match its type.
        """
        if isinstance(changes, TableRows):
            return self._of_copied(changes)
        rows = Rows(self._shape)
        transaction: Transaction | None = None
        for change in changes:
            if change.transaction is not transaction:
                transaction = change.transaction
                rows.begin(_header(change))
            if isinstance(change, RowChange):
                self._add(rows, change)
            else:
                rows.truncate(change.ordinal)
        self._unrepresentable.clear()
        return self._completed(rows.batch())

    def _of_copied(self, rows: TableRows) -> pa.RecordBatch:
        """Return rows of COPY's binary format as a record batch, without an object for each of their values."""
        self._unrepresentable.clear()
        arrays = [*self._copied.arrays(rows, self._refuse)]
        arrays += metadata_arrays(rows[0].kind, rows.first_ordinal, len(rows), _header(rows[0]))
        arrays.append(pa.nulls(len(rows), UNREPRESENTABLE.type))
        return self._completed(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with ``_unrepresentable`` filled in."""
        if not self._unrepresentable:
            return batch
        maps = [self._unrepresentable.get(row, ()) for row in range(batch.num_rows)]
        last = len(self.schema) - 1
        return batch.set_column(last, UNREPRESENTABLE, pa.array(maps, UNREPRESENTABLE.type))

    def _add(self, rows: Rows, change: RowChange) -> None:
        of = self._texts.of
        if isinstance(change, Insert):
            new = of(change.raw_new, change.new_kinds) if self._binary else change.raw_new
            rows.insert(change.kind, change.ordinal, new)
            return
        old = None if change.raw_old is None else of(change.raw_old, change.old_kinds)
        if isinstance(change, Delete):
            assert old is not None
            rows.delete(change.ordinal, old, whole=change.message.old_kind == "O")
            return
        assert change.raw_new is not None
        new = of(change.raw_new, change.new_kinds)
        assert isinstance(change, Update)
        rows.update(change.ordinal, new, old, whole=change.message.old_kind == "O")

    def _refuse(self, name: str, row: int, text: str) -> None:
        self._unrepresentable[row].append((name, text))

    def _lossless(self, field: pa.Field, convert: Convert) -> Convert:
        def read(values: Sequence[Raw]) -> Any:
            try:
                return convert(values)
            except Unrepresentable:
                return one_by_one(values)

        def one_by_one(values: Sequence[Raw]) -> Any:
            kept: list[Raw] = []
            for row, value in enumerate(values):
                try:
                    convert((value,))
                    kept.append(value)
                except Unrepresentable:
                    assert value is not None
                    kept.append(None)
                    self._refuse(field.name, row, value.decode("utf-8", "backslashreplace"))
            return convert(kept)

        return read


def message_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return logical decoding messages, at least one, as a record batch.

    A message that is not transactional has no xid and no time.
    """
    return message_rows(
        [(message.prefix, message.content, _header(message), message.ordinal) for message in messages]
    )


MessageRow = tuple[str, bytes, Header, int]
"""A message's prefix, content, transaction and ordinal."""


def message_rows(messages: Sequence[MessageRow]) -> pa.RecordBatch:
    """Return messages, at least one, as a record batch."""
    prefixes, contents, headers, ordinals = zip(*messages, strict=True)
    columns: dict[str, Sequence[Any]] = {
        "prefix": prefixes,
        "content": contents,
        "_op": ["message"] * len(messages),
        "_commit_lsn": [header.commit_lsn for header in headers],
        "_ordinal": ordinals,
        "_xid": [header.xid for header in headers],
        "_commit_ts": [header.time for header in headers],
        "_unchanged": [[]] * len(messages),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in MESSAGES]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


def _header(change: Change) -> Header:
    transaction = change.transaction
    if transaction is not None:
        return Header(transaction.xid, transaction.commit_lsn, since_1970(transaction.commit_timestamp))
    assert isinstance(change, Message)
    return Header(None, change.lsn, None)
