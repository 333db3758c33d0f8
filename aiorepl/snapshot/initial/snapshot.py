"""The initial snapshot: the rows that the published tables had at the slot's consistent point.

CREATE_REPLICATION_SLOT exports a snapshot of the consistent point, so rows that are read under it and the stream that follows
have neither gap nor overlap. Each chunk becomes a transaction with xid 0, whose commit LSN is below the consistent point, where
no transaction of the slot commits; so later stages handle one kind of rows.

Several connections read chunks; they are delivered in the order of the plan.

A load into a journal with a gap starts with a truncate of all its tables, because rows that were deleted in the gap would stay
in a mirror.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from aiorepl.cancellation import cancel_and_wait
from aiorepl.errors import AioreplError, ConnectionFailed, ConnectionLost, SlotError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Relation
from aiorepl.retry import RetryPolicy
from aiorepl.snapshot.altered import Queried
from aiorepl.snapshot.chunk_query import written_since
from aiorepl.snapshot.chunk_reader import ChunkReader, Connect, RateLimit
from aiorepl.snapshot.chunks import Chunk, SnapshotPlan, TablePlan
from aiorepl.snapshot.copy_rows import CopiedRows
from aiorepl.snapshot.described import DescribedTable, require_same_types
from aiorepl.snapshot.initial.exported import ExportedSnapshot
from aiorepl.snapshot.initial.ordering import ChunkOrder
from aiorepl.snapshot.lock_watch import watch_waiters
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import HidesKey, hides_no_key
from aiorepl.snapshot.reading_transaction import SnapshotGone, TableLocked, translating
from aiorepl.snapshot.statistics import TableCounters
from aiorepl.snapshot.truncates import truncate
from aiorepl.transactions.pending import OVERHEAD
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.registry import Types

_log = logger("aiorepl.snapshot")

Emit = Callable[[list[Slice]], Awaitable[None]]
Skip = Callable[[TablePlan, AioreplError], Awaitable[None]]

# The policy for connections that are lost while a chunk is read. The next connection continues after the last row.
_RETRY: Final = RetryPolicy(attempts=5, timeout=60.0, wait_max=10.0)


class SnapshotFailed(SlotError):
    """Some tables could not be read; all others were delivered."""


class InitialSnapshot:
    """Reads the tables under an exported snapshot. Call ``begin``, ``plan``, ``run``; at last ``close``.

    :param connect: opens a connection with the settings for text values.
    :param types: the known types; the tables' types are added.
    :param publications: the publications whose tables are read.
    :param consistent_point: the slot's first position.
    :param binary: whether the stream is binary.
    :ivar counters: the counters of the plan's tables by oid, in the plan's order.
    """

    def __init__(
        self,
        connect: Connect,
        types: Types,
        publications: tuple[str, ...],
        consistent_point: LSN,
        options: SnapshotOptions | None = None,
        *,
        binary: bool = False,
    ) -> None:
        self._binary = binary
        self._connect = connect
        self._types = types
        self._publications = publications
        self._consistent_point = consistent_point
        self._options = options or SnapshotOptions()
        self.counters: dict[int, TableCounters] = {}
        self._exported: ExportedSnapshot | None = None
        self._tables: dict[int, DescribedTable] = {}
        self._readers = 0
        self._reading: dict[asyncio.Task[None], ChunkReader] = {}
        self._order: ChunkOrder | None = None
        # Whether a part of the current chunk was delivered, and whether the delivered rows still have to be verified.
        self._broken = False
        self._unverified = False
        # The chunks that had been read to their end when the locks were last checked.
        self._locked_until_read: set[int] = set()
        # Why the snapshot ends after the current chunk.
        self._locked: TableLocked | None = None
        self._watching: asyncio.Task[None] | None = None
        # A connection without the snapshot, for the types as they are now.
        self._now: Any = None

    async def begin(self, snapshot: str, exporter: Queried) -> None:
        """Import the snapshot and lock the tables. Afterwards the exporting connection may be used again.

        :param snapshot: the snapshot's name.
        :param exporter: the connection that exported it.
        :raises ConfigurationError: the role cannot read all rows of some tables; the message names each.
        :raises TableLocked: the snapshot has ended, because another session waits for its locks.
        :raises SlotError: a table was altered after the snapshot was taken, or cannot be locked.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
        """
        exported = ExportedSnapshot(await self._connect(), self._publications, self._options)
        self._exported = exported
        await exported.begin(snapshot, exporter)
        watching = watch_waiters(self._connect, self._holders, self._options.lock_timeout, self._give_way)
        self._watching = asyncio.create_task(watching, name="aiorepl locks of the snapshot")
        self._tables = await exported.describe(self._types, binary=self._binary)

    async def plan(self, hides_key: HidesKey = hides_no_key, *, histories: bool = False) -> SnapshotPlan:
        """Cut the tables into chunks.

        :param hides_key, histories: as in ``ExportedSnapshot.plan``.
        :raises TableLocked: the snapshot has ended, because another session waits for its locks.
        :raises ConnectionLost, ServerError: the server failed.
        """
        return await self._begun().plan(hides_key, histories=histories)

    async def append_only(self) -> set[int]:
        """Return the oids of the tables whose updates and deletes are not published, and whose ``xmin`` can be read.

        :raises TableLocked: the snapshot has ended, because another session waits for its locks.
        :raises ConnectionLost, ServerError: the server failed.
        """
        return await self._begun().append_only()

    @property
    def name(self) -> str:
        """The exported snapshot, which other connections can import until ``close``."""
        return self._begun().name

    async def run(
        self,
        emit: Emit,
        plan: SnapshotPlan,
        *,
        base: LSN | None = None,
        from_chunk: int = 0,
        truncates: bool = False,
        skip: Skip | None = None,
    ) -> int:
        """Deliver the chunks, and at last a slice that ends at the consistent point.

        :param emit: called with the slices; returns once there is room for more.
        :param base: the position before the first chunk; by default ``plan.base``.
        :param from_chunk: the number of the first chunk that is delivered.
        :param truncates: whether to start with a transaction that truncates all tables that are read as a whole.
        :param skip: called before the rest of a table is left out because it cannot be read. The caller must remember the
            table, because later positions say nothing about it. Without ``skip``, the first such table ends the run.
        :returns: the number of rows.
        :raises SnapshotFailed: some tables were left out; the message names each. The snapshot is not complete.
        :raises SnapshotGone: the exported snapshot is lost, or has to end; what was delivered stands.
        :raises SlotError: a type was altered during the load.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
        """
        base = plan.base(self._consistent_point) if base is None else base
        self.counters = counters(plan, from_chunk)
        self._locked_until_read = set()
        kept = {table.oid for table in plan.tables if table.since is not None}
        relations = [described.layout.relation for oid, described in self._tables.items() if oid not in kept]
        if truncates and relations:
            await emit([truncation(relations, base, self._begun().time)])
        if self._locked is not None:
            # Raised only now: the truncate has to precede the rows that are read while the stream runs, too.
            raise self._locked
        order = self._order = ChunkOrder(self._options.in_flight_bytes, from_chunk)
        numbers = iter(range(from_chunk, len(plan)))
        limit = RateLimit(self._options.max_rows_per_second)
        self._readers = min(self._options.connections, len(plan) - from_chunk)
        readers = [
            asyncio.create_task(self._read(plan, numbers, order, limit), name=f"aiorepl snapshot {number}")
            for number in range(self._readers)
        ]
        delivery = asyncio.create_task(
            self._deliver(emit, plan, base, from_chunk, order, skip), name="aiorepl snapshot"
        )
        try:
            pending: set[asyncio.Task[Any]] = {delivery, *readers}
            while not delivery.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not task.cancelled():
                        task.result()
            rows, failed = delivery.result()
        finally:
            await cancel_and_wait(delivery, *readers)
        if failed:
            raise SnapshotFailed("; ".join(f"table {table} was not read: {error}" for table, error in failed))
        await emit([Slice(None, (), True, self._consistent_point, 0)])
        return rows

    async def close(self) -> None:
        """End the snapshot, and release the locks."""
        if self._watching is not None:
            watching, self._watching = self._watching, None
            await cancel_and_wait(watching)
        if self._exported is not None:
            await self._exported.close()
        if self._now is not None:
            self._now.terminate()
            self._now = None

    def _holders(self) -> list[int]:
        """Return the server processes that hold locks of tables."""
        readers = [reader.pid for reader in self._reading.values() if reader.pid is not None]
        return [self._begun().pid, *readers]

    async def _give_way(self, error: TableLocked) -> bool:
        """Release the locks for a session that waits for them, and end the snapshot.

        :returns: false if rows of the current chunk were delivered and are not verified yet; the locks stay until then.
        """
        self._locked = error
        if self._unverified:
            return False
        readers = list(self._reading)
        if self._order is not None:
            await self._order.stop(error)
        await cancel_and_wait(*readers)
        await self._begun().end(error)
        return True

    async def _read(self, plan: SnapshotPlan, numbers: Any, order: ChunkOrder, limit: RateLimit) -> None:
        """Read chunks over one connection until there are no more."""
        reader = ChunkReader(self._connect, self.name, self._options.statement_timeout)
        task = asyncio.current_task()
        assert task is not None
        self._reading[task] = reader
        try:
            try:
                await reader.open()
            except ConnectionFailed as error:
                if self._readers == 1:
                    raise
                self._readers -= 1
                _log.warning("the snapshot is read by %s connections: %s", self._readers, error)
                return
            for number in numbers:
                chunk = plan.chunk(number)
                if not order.wanted(number):
                    continue
                try:
                    await self._read_chunk(reader, chunk, order, limit)
                except TableLocked as error:
                    # The current chunk is still delivered to its end.
                    self._locked = error
                    await order.end(number, error)
                    return
                except (SnapshotGone, ConnectionFailed, ConnectionLost):
                    raise
                except AioreplError as error:
                    await order.end(number, error)
                else:
                    await order.end(number)
        finally:
            del self._reading[task]
            reader.abort()

    async def _read_chunk(
        self, reader: ChunkReader, chunk: Chunk, order: ChunkOrder, limit: RateLimit
    ) -> None:
        described = self._tables[chunk.table.oid]
        since = chunk.table.since
        statement = described.copy_statement(
            chunk.range, chunk.table.key, () if since is None else (written_since(since),)
        )
        number = chunk.number
        counters, clock = self.counters[chunk.table.oid], asyncio.get_running_loop().time
        async for attempt in _RETRY.connection():
            with attempt:
                skip = order.received(number)
                if skip and described.table.partitioned:
                    # The rows of a partitioned table may come in another order this time.
                    if order.begun(number):
                        raise SlotError("its reading broke off in the middle of a chunk")
                    await order.restart(number)
                    skip = 0
                if counters.state == "queued":
                    counters.begin(clock())
                async with aclosing(reader.read(statement, len(described.kinds), skip)) as parts:
                    async for part in parts:
                        if counters.state != "failed":
                            counters.add(part[1], len(part[0]), clock())
                        await limit.wait(part[1])
                        await order.add(number, part)
                        if not order.wanted(number):
                            return

    async def _deliver(
        self,
        emit: Emit,
        plan: SnapshotPlan,
        base: LSN,
        from_chunk: int,
        order: ChunkOrder,
        skip: Skip | None,
    ) -> tuple[int, list[tuple[TablePlan, AioreplError]]]:
        """Deliver the chunks in order. Return the number of rows, and the tables that were left out."""
        rows = 0
        failed: dict[int, tuple[TablePlan, AioreplError]] = {}
        for chunk in plan.chunks(from_chunk):
            if self._locked is not None:
                raise self._locked
            if chunk.table.oid not in failed:
                self._broken = self._unverified = False
                try:
                    rows += await self._deliver_chunk(emit, chunk, base, order, complete=not failed)
                except (SnapshotGone, ConnectionFailed, ConnectionLost):
                    raise
                except AioreplError as error:
                    if skip is None or self._broken:
                        raise SnapshotFailed(f"table {chunk.table} was not read: {error}") from None
                    await skip(chunk.table, error)
                    self.counters[chunk.table.oid].fail(str(error))
                    _log.error("table %s is left out of the snapshot: %s", chunk.table, error)
                    failed[chunk.table.oid] = chunk.table, error
            await order.pass_by(chunk.number)
        return rows, list(failed.values())

    async def _deliver_chunk(
        self, emit: Emit, chunk: Chunk, base: LSN, order: ChunkOrder, *, complete: bool
    ) -> int:
        """Deliver a chunk as a transaction. Return its number of rows.

        A chunk that was read to its end is verified before its first rows are delivered. A chunk that is larger than the limit
        of ``ChunkOrder`` is verified before its end.

        :param complete: whether all tables so far are complete.
        """
        described = self._tables[chunk.table.oid]
        commit_lsn = LSN(base + chunk.number)
        header = chunk.header(self._consistent_point, complete=complete)
        transaction = Transaction(0, commit_lsn, self._begun().time, snapshot=header)
        counters = self.counters[chunk.table.oid]
        counters.begin(asyncio.get_running_loop().time())
        rows, first, verified = 0, True, False
        last: Slice | None = None
        async with aclosing(order.release(chunk.number)) as parts:
            async for data, count in parts:
                if last is not None:
                    if not self._broken and order.ended(chunk.number):
                        await self._require_unaltered(described, chunk.number, order)
                        verified = True
                    self._broken, self._unverified = True, not verified
                    await emit([last])
                changes = CopiedRows(transaction, described.layout, described.kinds, data, count, rows)
                last = Slice(
                    transaction, changes, first, None, len(data) + count * OVERHEAD + changes.expansion
                )
                rows, first = rows + count, False
        if not verified:
            await self._require_unaltered(described, chunk.number, order)
            self._unverified = False
        end = LSN(commit_lsn + 1)
        if last is None:
            await emit([Slice(transaction, (), True, end, 0)])
        else:
            await emit([Slice(transaction, last.changes, last.first, end, last.size)])
        counters.end_chunk(last=chunk.last_of_table)
        return rows

    async def _require_unaltered(self, described: DescribedTable, number: int, order: ChunkOrder) -> None:
        """Check that the rows up to now were read from the table as the snapshot knows it.

        :param number: the number of a chunk that was read to its end.
        :raises SnapshotGone: the tables are not locked any more.
        :raises AlteredWhileRead: a type was altered, or a partition was attached.
        """
        if not described.table.partitioned and not described.types:
            # The locks prove that. They protect all rows that were read before, so one check of the locks covers every chunk
            # that has ended.
            if number not in self._locked_until_read:
                ended = order.ended_chunks()
                await self._begun().verify(())
                self._locked_until_read = ended
            return
        await self._begun().verify([described.table])
        if not described.types:
            return
        if self._now is None or self._now.is_closed():
            self._now = await self._connect()
        with translating():
            await require_same_types(self._now, described)

    def _begun(self) -> ExportedSnapshot:
        if self._exported is None:
            raise RuntimeError("call begin first")
        return self._exported


def counters(plan: SnapshotPlan, from_chunk: int = 0) -> dict[int, TableCounters]:
    """Return counters for the tables of a plan, by oid.

    :param from_chunk: the number of the first chunk to be delivered; earlier chunks were delivered before.
    """
    made, first = {}, 0
    for table in plan.tables:
        done = min(max(from_chunk - first, 0), len(table.ranges))
        first += len(table.ranges)
        made[table.oid] = TableCounters(
            str(table),
            estimated_rows=table.rows,
            chunks=len(table.ranges),
            chunks_done=done,
            state="delivered" if done == len(table.ranges) else "queued",
        )
    return made


def truncation(relations: Sequence[Relation], base: LSN, time: int) -> Slice:
    """Return the transaction before the first chunk, which truncates tables.

    :param base: the end of the transaction.
    :param time: microseconds since 2000-01-01 00:00 UTC.
    """
    # One truncate for all tables, because they may refer to each other.
    transaction = Transaction(0, LSN(base - 1), time)
    change = truncate(transaction, tuple(relations))
    return Slice(transaction, (change,), True, base, len(change.message.payload) + OVERHEAD)
