"""The plan of a snapshot: which tables are read, and in which chunks. Pure.

A table is cut into ranges of blocks, which the server reads without an index (TID range scan, since PostgreSQL 14). The rows of
a partitioned table are in the files of its partitions, so it is cut into ranges of its key.

The last range of a table has no end, because a table grows while it is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from aiorepl.lsn import LSN
from aiorepl.transactions.transaction import SnapshotChunk


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The rows in some blocks of a table's file.

    :param first: the number of the first block.
    :param end: the number of the first block after the range; ``None``: up to the end of the table.
    """

    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows with some keys. The bounds are row data: do not print them.

    :param after: the key before the first one, as PostgreSQL's text of each column; ``None``: from the lowest.
    :param until: the last key; ``None``: up to the highest.
    """

    after: tuple[str, ...] | None = field(repr=False)
    until: tuple[str, ...] | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows that were written while the earlier ranges were read, and that these ranges may lack.

    :param xmin: the lowest xid, with its epoch, of a transaction that may have written such rows; ``None``: all rows.
    """

    xmin: int | None


Range = BlockRange | KeyRange | Sweep | None
"""Which rows of a table a chunk has; ``None``: all."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table of a plan.

    :param rows: an estimate of the number of rows; ``None`` if the table was never analyzed.
    :param size: bytes of the table's file, with all partitions.
    :param key: the columns to which the bounds of a KeyRange belong.
    :param ranges: the chunks, in order; there is at least one.
    :param state: a digest of the table's files, columns and publications at the time of planning.
    :param xmin: every transaction before this xid had ended at the time of planning.
    :param history: a digest of ``state`` and of the catalog's rows of the table and its publications. It also
        differs after an ``ALTER`` that a later ``ALTER`` has reverted. Only the tables of an exported snapshot have it.
    :param since: only rows that were written by this transaction or a later one are read; an xid with its epoch. ``None``: all rows.
    """

    oid: int
    schema: str
    name: str
    rows: int | None
    size: int
    ranges: tuple[Range, ...]
    key: tuple[str, ...] = ()
    state: str = ""
    xmin: int = 0
    history: str = ""
    since: int | None = None

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def whole(self) -> bool:
        """Whether one chunk has all rows."""
        return self.ranges[0] is None

    @property
    def swept(self) -> bool:
        """Whether the last range is a sweep."""
        return isinstance(self.ranges[-1], Sweep)

    def with_sweep(self) -> TablePlan:
        """Add a sweep, unless the table has one."""
        if self.swept:
            return self
        # A table that is one chunk may have foreign partitions, whose rows have no xid.
        return replace(self, ranges=(*self.ranges, Sweep(None if self.whole else self.xmin)))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a plan.

    :param number: the number within the plan, from 0; chunks are delivered in this order.
    :param part: the number within the table, from 1.
    """

    number: int
    table: TablePlan
    part: int
    last: bool

    @property
    def range(self) -> Range:
        """The range of the table's rows that the chunk has."""
        return self.table.ranges[self.part - 1]

    @property
    def last_of_table(self) -> bool:
        """Whether it is the last chunk of its table."""
        return self.part == len(self.table.ranges)

    def header(self, snapshot_lsn: LSN, *, complete: bool = True) -> SnapshotChunk:
        """Describe the chunk, for the header of its transaction.

        :param complete: whether all chunks before it were delivered.
        """
        table, last = self.table, self.last and complete
        return SnapshotChunk(
            snapshot_lsn,
            table.oid,
            table.schema,
            table.name,
            self.part,
            self.last_of_table,
            last,
            partial=table.since is not None,
        )


@dataclass(frozen=True)
class SnapshotPlan:
    """The chunks of a snapshot, in the order of delivery: table by table."""

    tables: tuple[TablePlan, ...]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(table.ranges) for table in self.tables))

    def __len__(self) -> int:
        """The number of chunks."""
        return self._ends[-1] if self._ends else 0

    def chunk(self, number: int) -> Chunk:
        """Return a chunk.

        :param number: from 0 to before the plan's length.
        """
        at = bisect_right(self._ends, number)
        table = self.tables[at]
        part = number - (self._ends[at] - len(table.ranges)) + 1
        return Chunk(number, table, part, number == len(self) - 1)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Iterate over the chunks from number ``start`` on."""
        return map(self.chunk, range(start, len(self)))

    def base(self, consistent_point: LSN) -> LSN:
        """Return the position before the first chunk of an initial snapshot.

        Chunk ``n`` commits at ``base + n`` and ends at ``base + n + 1``, below the slot's consistent point, where no
        transaction of the slot commits. A transaction that truncates the tables, if any, commits at ``base - 1``.
        """
        return LSN(consistent_point - len(self) - 2)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values. The bounds of key ranges are row data."""
        return {"tables": [_table_to_json(table) for table in self.tables]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SnapshotPlan:
        """Return the plan that ``to_json`` described.

        :raises KeyError, TypeError, ValueError: the fields are no plan.
        """
        return cls(tuple(map(_table_from_json, _typed(fields["tables"], list))))


def block_ranges(blocks: int, blocks_per_chunk: int) -> tuple[BlockRange, ...]:
    """Divide a table of ``blocks`` blocks into ranges. The last range has no end."""
    starts = range(0, max(blocks, 1), blocks_per_chunk)
    return tuple(
        BlockRange(start, None if start + blocks_per_chunk >= blocks else start + blocks_per_chunk)
        for start in starts
    )


def key_ranges(bounds: Sequence[tuple[str, ...]]) -> tuple[KeyRange, ...]:
    """Cut a table at these keys, which are in order and distinct."""
    return tuple(
        KeyRange(after, until) for after, until in zip((None, *bounds), (*bounds, None), strict=True)
    )


def _table_to_json(table: TablePlan) -> dict[str, Any]:
    return {
        "oid": table.oid,
        "schema": table.schema,
        "table": table.name,
        "rows": table.rows,
        "size": table.size,
        "key": list(table.key),
        "state": table.state,
        "xmin": table.xmin,
        "history": table.history,
        "since": table.since,
        "chunks": [_range_to_json(each) for each in table.ranges],
    }


def _range_to_json(each: Range) -> dict[str, Any] | None:
    match each:
        case BlockRange(first, end):
            return {"first": first, "end": end}
        case KeyRange(after, until):
            return {"after": _listed(after), "until": _listed(until)}
        case Sweep(xmin):
            return {"written_since": xmin}
    return None


def _table_from_json(fields: Any) -> TablePlan:
    fields = _typed(fields, dict)
    ranges = tuple(map(_range_from_json, _typed(fields["chunks"], list)))
    if not ranges:
        raise ValueError("a table has no chunks")
    key = tuple(_typed(name, str) for name in _typed(fields["key"], list))
    bounds = [bound for each in ranges if isinstance(each, KeyRange) for bound in (each.after, each.until)]
    if any(bound is not None and len(bound) != len(key) for bound in bounds):
        raise ValueError("a key has too many or too few columns")
    return TablePlan(
        _number(fields["oid"]),
        _typed(fields["schema"], str),
        _typed(fields["table"], str),
        None if fields["rows"] is None else _number(fields["rows"]),
        _number(fields["size"]),
        ranges,
        key,
        _typed(fields["state"], str),
        _number(fields["xmin"]),
        # Plans of earlier versions have neither ``history`` nor ``since``.
        _typed(fields.get("history", ""), str),
        None if fields.get("since") is None else _number(fields["since"]),
    )


def _range_from_json(fields: Any) -> Range:
    if fields is None:
        return None
    if "written_since" in _typed(fields, dict):
        xmin = fields["written_since"]
        return Sweep(None if xmin is None else _number(xmin))
    if "first" in fields:
        end = fields["end"]
        return BlockRange(_number(fields["first"]), None if end is None else _number(end))
    return KeyRange(_bound(fields["after"]), _bound(fields["until"]))


def _bound(values: Any) -> tuple[str, ...] | None:
    return None if values is None else tuple(_typed(value, str) for value in _typed(values, list))


def _listed(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a number of the plan is not a whole number")
    return value


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a field of the plan is no {kind.__name__}")
    return value
