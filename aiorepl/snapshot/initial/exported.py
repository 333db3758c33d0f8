"""The connection that keeps a snapshot: it imports the snapshot of the slot, locks the tables, and exports it again.

The snapshot that CREATE_REPLICATION_SLOT exports lasts until the next command of its connection. If another transaction
imports the snapshot and exports it again, any number of connections can import it until that transaction ends.

A snapshot locks nothing. So all tables are locked with ACCESS SHARE before the first one is read, as in pg_dump, and compared
with their state under the snapshot. During the load they can be written, but not altered or truncated.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import asyncpg

from aiorepl.errors import AioreplError, ConfigurationError, SlotError
from aiorepl.snapshot.altered import Queried, TableAltered, require_same_partitions, require_unaltered
from aiorepl.snapshot.chunks import SnapshotPlan
from aiorepl.snapshot.described import DescribedTable, describe
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import HidesKey, append_only, hides_no_key, plan_tables, with_histories
from aiorepl.snapshot.privileges import denied
from aiorepl.snapshot.reading_transaction import (
    BACKEND,
    SnapshotGone,
    begin_reading,
    lock_table,
    not_locked,
    translating,
)
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.transactions.transaction import from_datetime
from aiorepl.values.registry import Types
from aiorepl.wire.opening import ASYNCPG_ERRORS, translated
from aiorepl.wire.server_process import watch_calls
from aiorepl.wire.session_settings import GIVE_UP_CLIENT

# The number of tables that one command locks.
_LOCKED_TOGETHER: Final = 200
# The tables that other sessions have locked against reading.
_HELD: Final = """
SELECT DISTINCT n.nspname || '.' || c.relname AS name
  FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE l.granted AND l.mode = 'AccessExclusiveLock' AND c.relkind IN ('r', 'p')
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
"""


class ExportedSnapshot:
    """A snapshot of all published tables, which are locked. Call ``begin``; ``close`` ends it.

    :param connection: an asyncpg connection of its own.
    :param publications: the publications whose tables are read.
    :ivar name: the name by which other connections import the snapshot.
    :ivar tables: the published tables.
    :ivar time: when it was begun, in microseconds since 2000-01-01 00:00 UTC.
    :ivar pid: the server process that holds the locks.
    """

    def __init__(self, connection: Any, publications: tuple[str, ...], options: SnapshotOptions) -> None:
        self._connection = connection
        self._publications = publications
        self._options = options
        self.name = ""
        self.tables: list[PublishedTable] = []
        self.time = 0
        self.pid = 0
        self._ended: SnapshotGone | None = None

    async def begin(self, snapshot: str, exporter: Queried) -> None:
        """Import the snapshot, lock the tables, and export it again. Afterwards the exporter may be used again.

        :param snapshot: the snapshot's name.
        :param exporter: the connection that exported it.
        :raises ConfigurationError: the role cannot read all rows of some tables; the message names each.
        :raises SlotError: a table was altered after the snapshot was taken.
        :raises ConnectionLost, ServerError: the server failed.
        """
        connection, publications = self._connection, self._publications
        with translating(connection), _translating_missing_tables():
            # Otherwise the locks stay for about 15 minutes if the network drops packets.
            await connection.execute(GIVE_UP_CLIENT)
            await begin_reading(connection, snapshot, self._options.lock_timeout)
            self.pid = await connection.fetchval(BACKEND)
            try:
                # The comparison opens the tables, too.
                self.tables = await published_tables(connection, publications)
                await self._lock()
            except asyncpg.LockNotAvailableError:
                held = [str(row["name"]) for row in await exporter.query(_HELD)]
                what = f"table {', '.join(held)}" if held else "a published table"
                raise not_locked(what, self._options.lock_timeout) from None
            except asyncpg.OutOfMemoryError as error:
                raise ConfigurationError(
                    f"the server has no room for the locks of {len(self.tables)} tables ({error.args[0]}): set "
                    f"max_locks_per_transaction to at least {len(self.tables) // 20 + 64}, and restart the server"
                ) from None
            names = {table.oid: str(table) for table in self.tables}
            await require_unaltered(connection, exporter, publications, names)
            # The catalog function lists the tables that are published now, not under the snapshot. A publication that was altered
            # and altered back would escape the comparison above.
            if self.tables != await published_tables(connection, publications):
                raise TableAltered("a published table was altered")
            self.name = await connection.fetchval("SELECT pg_catalog.pg_export_snapshot()")
            self.time = from_datetime(await connection.fetchval("SELECT now()"))

    async def plan(self, hides_key: HidesKey = hides_no_key, *, histories: bool = False) -> SnapshotPlan:
        """Cut the tables into chunks.

        :param hides_key: as in ``plan_tables``.
        :param histories: whether the plans have the ``history`` of their tables.
        :raises SnapshotGone: ``end`` was called.
        :raises ConnectionLost, ServerError: the server failed.
        """
        with self._until_ended():
            plans = await plan_tables(
                self._connection, self.tables, self._publications, self._options, hides_key
            )
            if histories:
                plans = await with_histories(self._connection, plans, self._publications)
            return SnapshotPlan(plans)

    async def append_only(self) -> set[int]:
        """Return the oids of the tables whose updates and deletes are not published, and whose ``xmin`` can be read.

        :raises SnapshotGone: ``end`` was called.
        :raises ConnectionLost, ServerError: the server failed.
        """
        with self._until_ended():
            return await append_only(self._connection, self.tables, self._publications)

    async def describe(self, types: Types, *, binary: bool = False) -> dict[int, DescribedTable]:
        """Look up the types of the tables, and return the tables by oid.

        :param types: the known types; the tables' types are added.
        :param binary: whether the stream is binary.
        :raises SnapshotGone: ``end`` was called.
        :raises ConnectionLost, ServerError: the server failed.
        """
        with self._until_ended():
            return await describe(self._connection, self.tables, types, binary=binary)

    async def verify(self, tables: Iterable[PublishedTable]) -> None:
        """Check that these tables are still locked, so that all rows that were read so far are the snapshot's.

        :raises SnapshotGone: the connection is lost, or ``end`` was called.
        :raises AlteredWhileRead: a partition was attached to one of the tables.
        """
        if self._ended is not None:
            raise self._ended
        roots = {table.oid: str(table) for table in tables if table.partitioned}
        try:
            with watch_calls(self._connection):
                if roots:
                    await require_same_partitions(self._connection, roots)
                else:
                    await self._connection.execute("SELECT 1")
        except ASYNCPG_ERRORS as error:
            raise SnapshotGone(f"the exported snapshot is gone: {translated(error)}") from None

    async def end(self, reason: SnapshotGone) -> None:
        """End the snapshot early, and release the locks. From then on, all other methods raise ``reason``."""
        self._ended = reason
        await self.close()

    async def close(self) -> None:
        """End the snapshot, and release the locks."""
        self._connection.terminate()

    @contextlib.contextmanager
    def _until_ended(self) -> Iterator[None]:
        """Translate the errors of a query. If ``end`` has closed the connection meanwhile, raise its reason."""
        try:
            with translating(self._connection):
                yield
        except AioreplError:
            if self._ended is not None:
                raise self._ended from None
            raise

    async def _lock(self) -> None:
        """Lock all tables, many at a time; if that fails, one by one, to name each table that cannot be read."""
        connection, tables = self._connection, self.tables
        role = await connection.fetchval("SELECT current_user::text")
        problems: list[AioreplError] = []
        unreadable: list[PublishedTable] = []
        for start in range(0, len(tables), _LOCKED_TOGETHER):
            some = tables[start : start + _LOCKED_TOGETHER]
            if not any(table.secured for table in some) and not problems:
                with contextlib.suppress(asyncpg.PostgresError):
                    async with _savepoint(connection):
                        await connection.execute("; ".join(f"{table.query} LIMIT 0" for table in some))
                    continue
            for table in some:
                try:
                    async with _savepoint(connection):
                        await lock_table(connection, table, role, self._options.lock_timeout)
                except (ConfigurationError, SlotError) as error:
                    problems.append(error)
                    if isinstance(error, ConfigurationError) and not table.secured:
                        unreadable.append(table)
        if len(problems) > 1 and len(unreadable) == len(problems):
            raise denied(unreadable, role, "permission denied")
        if len(problems) > 1:
            kind = ConfigurationError if isinstance(problems[0], ConfigurationError) else SlotError
            raise kind("; ".join(map(str, problems)))
        for problem in problems:
            raise problem


@contextlib.asynccontextmanager
async def _savepoint(connection: Any) -> AsyncIterator[None]:
    """Undo the block if it fails; the transaction continues."""
    await connection.execute("SAVEPOINT locking")
    try:
        yield
    except (asyncpg.PostgresError, AioreplError):
        await connection.execute("ROLLBACK TO SAVEPOINT locking")
        raise
    await connection.execute("RELEASE SAVEPOINT locking")


@contextlib.contextmanager
def _translating_missing_tables() -> Iterator[None]:
    """Translate the server's error about a table that was dropped since the snapshot."""
    try:
        yield
    except asyncpg.InternalServerError as error:
        raise TableAltered(f"a published table was altered ({error.args[0]})") from None
