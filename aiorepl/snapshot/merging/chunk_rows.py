"""The rows of one chunk, until its high watermark has come through the stream: in memory, and past a limit in the spool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Relation
from aiorepl.snapshot.copy_rows import CopiedRows
from aiorepl.snapshot.described import DescribedTable
from aiorepl.snapshot.merging.window import Verdict, Window, kept
from aiorepl.transactions.changes import Change, row_change
from aiorepl.transactions.lazy_changes import LayoutOf, LazyChanges
from aiorepl.transactions.pending import OVERHEAD
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Extent, Spool
from aiorepl.transactions.transaction import Transaction


class ChunkRows:
    """The rows of one chunk.

    :param limit_bytes: how many bytes may be in memory.
    """

    def __init__(self, described: DescribedTable, spool: Spool, limit_bytes: int) -> None:
        self.bytes = 0
        self.rows = 0
        self._described = described
        self._spool = spool
        self._limit = limit_bytes
        self._memory = 0
        self._parts: list[tuple[bytes | Extent, int]] = []

    @property
    def relation(self) -> Relation:
        """The table as it was read."""
        return self._described.layout.relation

    def add(self, data: bytes, count: int) -> None:
        """Add rows, in COPY's binary format.

        :raises SpoolError: the disk is full.
        """
        size = len(data) + count * OVERHEAD
        if self._memory + size > self._limit:
            self._parts.append((self._spool.write(data), count))
        else:
            self._parts.append((data, count))
            self._memory += size
        self.bytes += len(data)
        self.rows += count

    def slices(
        self,
        transaction: Transaction,
        end_lsn: LSN,
        window: Window | None = None,
        verdict: Verdict | None = None,
        first: Sequence[Change] = (),
    ) -> list[Slice]:
        """Return the rows as changes of one transaction.

        :param verdict: which rows the stream has overtaken.
        :param first: changes that precede the rows.
        """
        contents: list[tuple[Sequence[Change], int]] = [(first, OVERHEAD * len(first))] if first else []
        ordinal = len(first)
        for data, count in self._parts:
            changes = self._changes(transaction, data, count, ordinal)
            if verdict is not None and verdict.overtaken.keys:
                assert window is not None
                rows = [
                    row_change(transaction, ordinal + index, layout, message)
                    for index, (layout, message) in enumerate(kept(changes, window, verdict))
                ]
                size = sum(len(change.message.payload) + OVERHEAD for change in rows)
                contents.append((rows, size))
            else:
                length = len(data) if isinstance(data, bytes) else data.length
                contents.append((changes, length + count * OVERHEAD))
            ordinal += len(contents[-1][0])
        contents = [content for content in contents if content[0]] or [((), 0)]
        last = len(contents) - 1
        return [
            Slice(transaction, changes, index == 0, end_lsn if index == last else None, size)
            for index, (changes, size) in enumerate(contents)
        ]

    def _changes(
        self, transaction: Transaction, data: bytes | Extent, count: int, ordinal: int
    ) -> LazyChanges:
        layout, kinds = self._described.layout, self._described.kinds
        if isinstance(data, bytes):
            return CopiedRows(transaction, layout, kinds, data, count, ordinal)
        return _SpooledRows(transaction, layout, kinds, data, count, ordinal)


class _SpooledRows(LazyChanges):
    """Rows that are read from the spool each time they are iterated.

    :param skip: the number of rows to leave out at the beginning.
    """

    __slots__ = ("_count", "_extent", "_kinds", "_layout", "_ordinal", "_skip", "_transaction")

    def __init__(
        self,
        transaction: Transaction,
        layout: Layout,
        kinds: bytes,
        extent: Extent,
        count: int,
        ordinal: int,
        skip: int = 0,
    ) -> None:
        self._transaction = transaction
        self._layout = layout
        self._kinds = kinds
        self._extent = extent
        self._count = count
        self._ordinal = ordinal
        self._skip = skip

    def _with(self, layout: Layout, skip: int) -> _SpooledRows:
        return _SpooledRows(
            self._transaction, layout, self._kinds, self._extent, self._count, self._ordinal, skip
        )

    @property
    def first_ordinal(self) -> int:
        return self._ordinal + self._skip

    @property
    def relations(self) -> tuple[Relation, ...]:
        return (self._layout.relation,)

    def by(self, layout_of: LayoutOf) -> LazyChanges:
        return self._with(layout_of(self._layout.relation), self._skip)

    def __len__(self) -> int:
        return self._count - self._skip

    def __iter__(self) -> Iterator[Change]:
        return iter(self._read())

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.stop is None and index.step is None and (index.start or 0) >= 0:
            return self._with(self._layout, min(self._skip + (index.start or 0), self._count))
        return self._read()[index]

    def _read(self) -> Sequence[Change]:
        data = self._extent.read()
        rows = CopiedRows(
            self._transaction, self._layout, self._kinds, bytes(data), self._count, self._ordinal
        )
        return rows[self._skip :] if self._skip else rows

    def __repr__(self) -> str:
        return f"<{len(self)} spooled rows of {self._layout.relation}>"
