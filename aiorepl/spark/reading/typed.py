"""Reads one table's changes in the table's columns, as record batches. Runs on executors; does not use pyspark.

Columns are matched by attribute number, so that rows from before a rename are read under the new name; or by name, if a number is
not known. A column that the table did not have yet has the default with which it was added; null if that is unknown. A column
that the schema does not have is left out. ``formats.arrow.row_collector`` collects the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError, ProtocolError
from aiorepl.formats.arrow.block_scan import BlockScan, Collectors
from aiorepl.formats.arrow.collected import collected_arrays
from aiorepl.formats.arrow.constants import texts
from aiorepl.formats.arrow.filled import FilledColumn
from aiorepl.formats.arrow.hidden import masked
from aiorepl.formats.arrow.row_collector import BlockScanner, RowCollector
from aiorepl.journal.index import SegmentIndex
from aiorepl.journal.reader import JournalReader, block_decoder
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.relations import Mask, Relation, require_distinct
from aiorepl.spark.reading.blocks import Span
from aiorepl.spark.reading.columns import assembled, column, unfit
from aiorepl.spark.reading.selected import SelectedTable
from aiorepl.table_name import TableName
from aiorepl.transactions.rows import Layout
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Newest:
    """The table's last description, as far as it applies to the columns of earlier rows: names and missing values.

    :param oid: the table's oid; 0 if it is not known.
    :param numbers: the columns' attribute numbers.
    :param missing: for each column that was added with a default, its value in older rows, as an array of one element.
    """

    oid: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, pa.Array] = field(default_factory=dict)

    def names(self, relation: Relation) -> tuple[str, ...]:
        """Return the present names of an earlier description's columns. A dropped column keeps its name if it is free."""
        if relation.oid != self.oid:
            # The description is of an earlier table with this name.
            return relation.names
        now = {number: name for name, number in self.numbers.items()}
        names = []
        for name in relation.names:
            found = relation.attributes.get(name)
            if found is not None and found.number in now:
                names.append(now[found.number])
            elif found is not None and name in self.numbers:
                names.append(f"........pg.dropped.{found.number}........")
            else:
                names.append(name)
        return tuple(names)

    @classmethod
    def of(
        cls,
        relation: Relation,
        types: Types,
        schema: pa.Schema,
        selected: SelectedTable | None = None,
        *,
        null: bool,
    ) -> Newest:
        """Convert the attributes of the last description to the types of ``schema``.

        :param selected: the selection; a masked column has no missing value.
        :param null: as in ``columns.column``.
        :raises DataError: a value does not fit into the wanted type.
        """
        missing = {}
        for each in relation.columns:
            found = relation.attributes.get(each.name)
            is_masked = selected is not None and selected.mask(each.name) is not None
            if (
                found is not None
                and found.missing is not None
                and each.name in schema.names
                and not is_masked
            ):
                wanted = schema.field(each.name).type
                convert = column(f"{relation}.{each.name}", each.type_oid, types, wanted, null=null)
                missing[each.name] = convert([found.missing.encode()])
        numbers = {name: found.number for name, found in relation.attributes.items()}
        return cls(relation.oid, numbers, missing)


_UNKNOWN: Final = Newest()


@dataclass(frozen=True, slots=True)
class Typed:
    """Reads one table; pickled to executors.

    :param schema: the Arrow form of the query's schema: columns of the table and of ``schema.META``.
    :param keys: the columns that identify a row under replica identity FULL, for which the server names none.
    :param null: as in ``columns.column``.
    :param newest: the names and missing values of earlier descriptions' columns.
    :param selected: the selection of the table's columns; ``None`` if no column is hidden.
    """

    table: TableName
    schema: pa.Schema
    keys: tuple[str, ...]
    null: bool
    newest: Newest = _UNKNOWN
    selected: SelectedTable | None = None

    def mask(self, name: str) -> Mask | None:
        """Return the mask of a column by its present name; ``None`` if it is not masked."""
        return None if self.selected is None else self.selected.mask(name)

    def key(self, relation: Relation, names: Sequence[str]) -> Sequence[int]:
        """Return the indexes of the columns that identify a row, by their present ``names``."""
        return relation.key or [index for index, name in enumerate(names) if name in self.keys]

    def names(self, relation: Relation) -> tuple[str, ...]:
        """Return the present names of a description's columns, as ``Newest.names``.

        :raises ConfigurationError: a column of the schema was renamed later, or a hidden column was renamed.
        :raises PermanentError: rows with different keys may have one key after masking.
        """
        names, wanted = self.newest.names(relation), self.schema.names
        masks = {names[index]: relation.columns[index].merging for index in self.key(relation, names)}
        if self.selected is not None:
            masks = {name: self.selected.merging(name) or method for name, method in masks.items()}
        require_distinct(relation, masks)
        if self.selected is not None:
            self.selected.require_same(relation, names, wanted)
        for before, now in zip(relation.names, names, strict=True):
            if before != now and before in wanted and now not in wanted and now in self.newest.numbers:
                raise ConfigurationError(
                    f"column {before!r} of {relation} is {now!r} now: give it this name in .schema(...)"
                )
        return names

    def batches(self, reader: JournalReader, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
        """Read the table's changes in ``spans``, in order.

        :raises DataError: a value does not fit into the wanted type.
        :raises JournalError: the journal is damaged.
        """
        spans = list(spans)
        rows = _Rows(self, spans[-1].until if spans else ZERO)
        for span in spans:
            index = reader.index(span.segment)
            rows.segment = index
            for block, data in reader.read_all(
                span.segment, [index.blocks[number] for number in span.blocks]
            ):
                decoder = block_decoder(index, block)
                try:
                    rows.scan.run(data, block.continuation, decoder, index.attributes_of, span.after)
                except (ProtocolError, IndexError, struct.error) as error:
                    raise reader.damaged(span.segment, block, error) from None
                yield from rows.take()
        rows.settle()
        yield from rows.take()


class _Layout:
    """Converts the tuples of one description to the wanted columns."""

    def __init__(
        self, wanted: Typed, relation: Relation, types: tuple[TypeInfo, ...], until: LSN, *, binary: bool
    ) -> None:
        layout = Layout(relation, Types(types), binary=binary)
        names = wanted.names(relation)
        self._indexes = {name: index for index, name in enumerate(names) if name in wanted.schema.names}
        key = wanted.key(relation, names)
        self.collector = RowCollector(len(names), bytes(index in key for index in range(len(names))))
        self._names = texts(names)
        self._columns: list[FilledColumn | None] = [
            FilledColumn(layout, index, wanted.schema.field(name).type, null=wanted.null)
            if name in self._indexes
            else None
            for index, name in enumerate(names)
        ]
        self._masks = {index: mask for name, index in self._indexes.items() if (mask := wanted.mask(name))}
        self._wanted = wanted
        self._until = until
        self._layout = layout

    def batch(self) -> pa.RecordBatch:
        """Return the collected rows, at least one, and forget them."""
        rows = self.collector
        columns, metadata = collected_arrays(rows, self._columns, self._names, self._refuse)
        for index, mask in self._masks.items():
            columns[index] = masked(columns[index], mask)
        own = {name: columns[index] for name, index in self._indexes.items()}
        batch = assembled(self._wanted.schema, own, self._wanted.newest.missing, metadata)
        rows.clear()
        return batch.filter(pc.less(metadata["_commit_lsn"], int(self._until))) if self._until else batch

    def _refuse(self, index: int, row: int, text: str) -> None:
        relation, each = self._layout.relation, self._layout.relation.columns[index]
        kind = self._wanted.schema.field(self._names[index].as_py()).type
        raise unfit(f"{relation}.{each.name}", each.type_oid, self._layout.types, kind)


class _Rows:
    """Collects the rows of one table over blocks and segments."""

    def __init__(self, wanted: Typed, until: LSN) -> None:
        self.segment: SegmentIndex | None = None
        self.scan = BlockScan(self._collector, self._truncate)
        self._wanted = wanted
        self._until = until
        # Keyed by everything that a conversion depends on, not by Relation objects: each segment has its own.
        self._layouts: dict[object, _Layout] = {}
        self._of_segment: tuple[SegmentIndex | None, dict[Relation, _Layout]] = None, {}
        self._current: _Layout | None = None
        self._ready: list[pa.RecordBatch] = []

    def take(self) -> list[pa.RecordBatch]:
        """Return the record batches that are complete."""
        rows = None if self._current is None else self._current.collector
        if rows is not None and (rows.count >= BATCH_ROWS or rows.size >= BATCH_BYTES):
            self.settle()
        ready, self._ready = self._ready, []
        return ready

    def settle(self) -> None:
        """Convert the collected rows to a record batch."""
        if self._current is not None and self._current.collector.count:
            self._ready.append(self._current.batch())

    def _collector(self, relation: Relation, collectors: Collectors) -> RowCollector | None:
        if not self._wanted.table.is_of(relation):
            return None
        layout = self._layout(relation)
        if layout is not self._current:
            self.settle()
            for oid in [oid for oid, rows in collectors.items() if rows is not None]:
                del collectors[oid]
            self._current = layout
        return layout.collector

    def _truncate(self, relation: Relation, collectors: Collectors, scanner: BlockScanner) -> None:
        rows = self._collector(relation, collectors)
        if rows is not None:
            rows.truncate(scanner.ordinal, scanner.commit_lsn, scanner.xid, scanner.time)

    def _layout(self, relation: Relation) -> _Layout:
        index = self.segment
        assert index is not None
        if self._of_segment[0] is not index:
            self._of_segment = index, {}
        found = self._of_segment[1].get(relation)
        if found is None:
            key = (relation.payload, index.types, frozenset(relation.attributes.items()))
            found = self._layouts.get(key)
            if found is None:
                found = _Layout(self._wanted, relation, index.types, self._until, binary=index.binary)
                self._layouts[key] = found
            self._of_segment[1][relation] = found
        return found
