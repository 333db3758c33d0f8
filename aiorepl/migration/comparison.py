"""Compares tables by checksums, and row by row where checksums differ. Rows that a running stream changes are compared again.

A row is reported after two consecutive comparisons with the same result: the source's row did not change while the target was read,
and the target's row was another one. In each comparison, the target gets time to catch up before its rows are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiorepl.errors import ConfigurationError, ServerError
from aiorepl.migration.server import PREPARE, Key, Rows, Server
from aiorepl.migration.table_sql import FirstKeys
from aiorepl.snapshot.tables import PublishedTable, published_tables

# The number of rows, approximately, that are in memory at once while rows are compared one by one.
_ROWS: Final = 500_000
_SHOWN: Final = 10


@dataclass(slots=True)
class TableResult:
    """The comparison of one table.

    :param rows: the number of rows that the source has.
    :param missing: the number of rows that only the source has.
    :param additional: the number of rows that only the target has.
    :param different: the number of rows with other values.
    :param unsettled: the number of rows that changed whenever they were compared.
    :param problem: why the table could not be compared; ``None`` if it was compared.
    :param keys: the keys of some rows that differ. Row data: do not log them.
    """

    name: str
    rows: int = 0
    missing: int = 0
    additional: int = 0
    different: int = 0
    unsettled: int = 0
    problem: str | None = None
    keys: list[str] = field(default_factory=list, repr=False)

    @property
    def same(self) -> bool:
        """Whether the table was compared, and is the same on both servers."""
        return self.problem is None and not (
            self.missing or self.additional or self.different or self.unsettled
        )

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.name}: not compared: {self.problem}"
        counts = {
            "only in the source": self.missing,
            "only on the target": self.additional,
            "with other values": self.different,
            "that kept changing": self.unsettled,
        }
        found = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        return f"{self.name}: {f'rows differ: {found}' if found else 'the same'} ({self.rows:,} rows)"


@dataclass(slots=True)
class _Piece:
    """A part of a table in which rows differed: some buckets of a range, and the source's number of rows in them."""

    result: TableResult
    source: PublishedTable
    target: PublishedTable
    keys: FirstKeys
    buckets: Collection[int]
    rows: int
    before: Rows = field(default_factory=dict)
    # The last difference of each row that is not settled; None before the first look.
    open: dict[Key, tuple[object, object]] | None = None


class Comparison:
    """Compares the tables of publications on two servers.

    :param source: an asyncpg connection of ``connect_sql``.
    :param target: such a connection to the other server.
    :param settle: waits until the target has everything that the source had committed before.
    :param timeout: how long changing rows are compared again, in seconds.
    :param range_blocks: the approximate number of a table's blocks that one query reads.
    :ivar doing: a text for people: the present step.
    """

    def __init__(
        self,
        source: object,
        target: object,
        settle: Callable[[], Awaitable[object]],
        *,
        timeout: float = 60.0,
        range_blocks: int = 16384,
    ) -> None:
        self.doing = "reading the catalog"
        self._source, self._target = Server(source), Server(target)
        self._settle = settle
        self._timeout = timeout
        self._blocks = range_blocks
        # Whether money has the same number of decimals on both servers.
        self._same_money = True

    async def run(
        self, publications: tuple[str, ...], only: Collection[str] = ()
    ) -> AsyncIterator[TableResult]:
        """Compare table by table.

        :param only: names as ``schema.table``; empty for all tables.
        :raises ConfigurationError: there is no such table in the publications.
        :raises ConnectionLost, ServerError: a server failed.
        """
        units = [await each.money_unit() for each in (self._source, self._target)]
        self._same_money = units[0] == units[1]
        for each in (self._source, self._target):
            await each.connection.execute(PREPARE)
        tables = await published_tables(self._source.connection, publications)
        if unknown := sorted(set(only) - {str(table) for table in tables}):
            raise ConfigurationError(f"no publication has the table {', '.join(unknown)}")
        for number, table in enumerate(tables, 1):
            if not only or str(table) in only:
                self.doing = f"comparing {table}, table {number} of {len(tables)}"
                yield await self._compare(table)

    async def _compare(self, source: PublishedTable) -> TableResult:
        result = TableResult(str(source))
        try:
            target = await self._target.target_of(source)
            if not self._same_money and await self._source.has_money(source):
                raise ConfigurationError(
                    "the table has money, and lc_monetary has another number of decimals on the target, so amounts differ by a "
                    "factor: set the same lc_monetary on the target, and load the table again"
                )
            pieces: list[_Piece] = []
            ranges = await self._source.ranges(source, target, self._blocks)
            for number, keys in enumerate(ranges, 1):
                self.doing = f"comparing {source}, range {number} of {len(ranges)}"
                if (piece := await self._sums(result, source, target, keys)) is not None:
                    pieces.append(piece)
                if pieces and (number == len(ranges) or sum(each.rows for each in pieces) > _ROWS):
                    await self._look(pieces)
                    pieces = []
        except (ConfigurationError, ServerError) as error:
            result.problem = str(error)
        return result

    async def _sums(
        self, result: TableResult, source: PublishedTable, target: PublishedTable, keys: FirstKeys
    ) -> _Piece | None:
        ours, theirs = await asyncio.gather(
            self._source.sums(source, keys), self._target.sums(target, keys), return_exceptions=True
        )
        if isinstance(ours, BaseException):
            raise ours
        if isinstance(theirs, BaseException):
            raise theirs
        result.rows += sum(each.rows for each in ours.values())
        buckets = {each for each in ours.keys() | theirs.keys() if ours.get(each) != theirs.get(each)}
        rows = sum(each.rows for side in (ours, theirs) for number, each in side.items() if number in buckets)
        return _Piece(result, source, target, keys, buckets, rows) if buckets else None

    async def _look(self, pieces: Sequence[_Piece]) -> None:
        """Compare the rows of these pieces until they are settled, or the time is up."""
        end = time.monotonic() + self._timeout
        while pieces:
            for piece in pieces:
                piece.before = await self._source.rows(piece.source, piece.keys, piece.buckets)
            self.doing = f"looking again at rows of {pieces[0].result.name} that differed"
            await self._settle()
            for piece in pieces:
                target = await self._target.rows(piece.target, piece.keys, piece.buckets)
                after = await self._source.rows(piece.source, piece.keys, piece.buckets)
                _settle(piece, after, target)
                piece.before = {}
            pieces = [piece for piece in pieces if piece.open]
            if time.monotonic() > end:
                for piece in pieces:
                    piece.result.unsettled += len(piece.open or ())
                return


def _settle(piece: _Piece, after: Rows, target: Rows) -> None:
    """Count the rows that differ for good, and keep the rows that may still become equal."""
    known = piece.open
    still: dict[Key, tuple[object, object]] = {}
    for key in after.keys() | target.keys() if known is None else known:
        ours, theirs = after.get(key, ()), target.get(key, ())
        # The target may still have the row as it was before the source's last change.
        if theirs in (ours, piece.before.get(key, ())):
            continue
        stable = piece.before.get(key, ()) == ours
        if stable and known is not None and known[key] == (ours, theirs):
            _count(piece.result, key, ours, theirs)
        else:
            still[key] = (ours if stable else None, theirs)
    piece.open = still


def _count(result: TableResult, key: Key, ours: Sequence[int], theirs: Sequence[int]) -> None:
    if isinstance(key, int):  # rows without a key: only the numbers of equal rows can differ
        surplus = len(ours) - len(theirs)
        result.missing += max(surplus, 0)
        result.additional += max(-surplus, 0)
        return
    if not theirs:
        result.missing += len(ours)
    elif not ours:
        result.additional += len(theirs)
    else:
        result.different += 1
    if len(result.keys) < _SHOWN:
        result.keys.append(", ".join("NULL" if each is None else each for each in key))
