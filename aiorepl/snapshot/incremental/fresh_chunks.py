"""Reads chunks of one table beside the stream, each under a snapshot of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from aiorepl.errors import ServerError, SlotError
from aiorepl.snapshot.altered import TableAltered
from aiorepl.snapshot.chunk_query import keys_condition
from aiorepl.snapshot.chunk_reader import TIMED_OUT, Connect, copied_rows
from aiorepl.snapshot.chunks import Range
from aiorepl.snapshot.conditions import condition
from aiorepl.snapshot.copy_rows import RowSplitter
from aiorepl.snapshot.described import DescribedTable, require_same_types
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.merging.chunk_rows import ChunkRows
from aiorepl.snapshot.merging.overtaken import Key
from aiorepl.snapshot.merging.window import VisibleXids
from aiorepl.snapshot.planning import table_files
from aiorepl.snapshot.privileges import denied
from aiorepl.snapshot.reading_transaction import begin_reading, lock_table
from aiorepl.snapshot.statistics import TableCounters
from aiorepl.snapshot.tables import PublishedTable, is_dropped
from aiorepl.transactions.transaction import from_datetime

_DENIED: Final = "42501"
_SHORT_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '500ms'"
_SNAPSHOT: Final = "SELECT pg_catalog.pg_current_snapshot()::text AS visible, now() AS time"


class Altered(Exception):
    """The table has to be read from the beginning: it was altered, truncated or rewritten."""


class ReadAgain(Exception):
    """The chunk has to be read again."""


@dataclass(frozen=True, slots=True, eq=False)
class FreshTransaction:
    """A transaction that reads one table, which stays locked until it ends.

    :param visible: the transactions that are visible to its snapshot.
    :param time: when the transaction began, in microseconds since 2000-01-01 00:00 UTC.
    """

    visible: VisibleXids
    time: int
    _source: SnapshotSource
    _control: Any
    _connection: Any
    _counters: TableCounters

    async def copy(
        self,
        described: DescribedTable,
        state: str,
        chunk: Range,
        key: Iterable[str] = (),
        owed: Sequence[Key] = (),
        where: str | None = None,
    ) -> ChunkRows:
        """Read rows of the table.

        :param chunk: the range that has the rows.
        :param key: the columns to which the bounds of a KeyRange belong.
        :param owed: the keys of the rows to read; empty: all rows of the chunk.
        :param where: a condition on the rows; ``None``: all.
        :param state: identifies the table as it was when it was cut into chunks (``planning``).
        :raises Altered: the table is not as it was when it was described and cut.
        :raises ReadAgain: another transaction waits to alter the table.
        :raises ConfigurationError: the table cannot be read; says what to do.
        :raises SlotError: the table could not be locked or read in time.
        """
        table = described.table
        role = await self._connection.fetchval("SELECT current_user::text")
        try:
            await lock_table(self._connection, table, role, self._source.options.lock_timeout)
        except TableAltered:
            raise Altered("it was altered") from None
        await self._require_unaltered(table, state)
        conditions = [keys_condition(table, owed)] if owed else []
        if where is not None:
            # Now that the table is locked, its columns keep their types.
            conditions.append(await condition(self._control, table, where))
        statement = described.copy_statement(chunk, key, conditions)
        rows = await self._copy(described, statement, role)
        try:
            await require_same_types(self._control, described)
        except SlotError:
            raise Altered("a type of its columns was altered") from None
        if table.partitioned:
            # ATTACH PARTITION is not blocked, and the chunk may have some of its rows.
            await self._require_unaltered(table, state)
        return rows

    async def _require_unaltered(self, table: PublishedTable, state: str) -> None:
        # The catalog's functions lock the table, too. If another transaction waits to alter the table, the functions wait for that
        # transaction, and it waits for the end of this one. So the timeout is short.
        try:
            async with self._control.transaction():
                await self._control.execute(_SHORT_LOCK_TIMEOUT)
                found = await self._source.published(self._control, table.oid)
                files = await table_files(self._control, table, self._source.publications)
        except asyncpg.LockNotAvailableError:
            raise ReadAgain("another transaction is going to alter the table") from None
        except asyncpg.InternalServerError as error:
            if not is_dropped(error):
                raise
            raise ReadAgain("a published table was dropped") from None
        if found != table:
            raise Altered("it was altered")
        if files is None or files.state != state:
            raise Altered("it was truncated or rewritten")

    async def _copy(self, described: DescribedTable, statement: str, role: str) -> ChunkRows:
        source, clock = self._source, asyncio.get_running_loop().time
        timeout = source.options.statement_timeout
        rows = ChunkRows(described, source.spool, source.options.in_flight_bytes)
        async with contextlib.aclosing(
            copied_rows(self._connection, statement, RowSplitter(len(described.kinds)), timeout)
        ) as parts:
            try:
                async for data, count in parts:
                    await source.rate.wait(count)
                    rows.add(data, count)
                    self._counters.add(count, len(data), clock())
            except ServerError as error:
                if error.sqlstate == _DENIED:
                    # The privilege was revoked after the table was locked.
                    raise denied([described.table], role, str(error)) from None
                if error.sqlstate != TIMED_OUT:
                    raise
                raise SlotError(
                    f"a chunk of table {described.table} could not be read: {error.message}: set a longer "
                    "statement_timeout, or a smaller chunk_bytes"
                ) from None
        return rows


class FreshChunks:
    """Reads chunks of one table.

    :param reader: returns the connection that reads rows; another one if it was closed.
    :param control: the connection without a snapshot, which reads the catalog.
    :param counters: count the rows that are read.
    """

    def __init__(
        self, source: SnapshotSource, reader: Connect, control: Any, counters: TableCounters
    ) -> None:
        self._source = source
        self._reader = reader
        self._control = control
        self._counters = counters

    @contextlib.asynccontextmanager
    async def begun(self, snapshot: str | None = None) -> AsyncIterator[FreshTransaction]:
        """Begin a transaction, which ends with the block.

        :param snapshot: an exported snapshot; ``None``: the transaction takes its own.
        """
        connection = await self._reader()
        try:
            await begin_reading(connection, snapshot, self._source.options.lock_timeout)
            (row,) = await connection.fetch(_SNAPSHOT)
            visible, time = VisibleXids.parse(row["visible"]), from_datetime(row["time"])
            yield FreshTransaction(visible, time, self._source, self._control, connection, self._counters)
            await connection.execute("ROLLBACK")
        except BaseException:
            # A cancelled query may still run.
            connection.terminate()
            raise
