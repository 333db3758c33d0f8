"""Reads a table at one point of the stream, after a truncate of it.

Two kinds of tables are read in this way: tables without a key, because their rows cannot be compared with the rows of the stream,
and tables whose deleted rows may still be in the sinks.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from aiorepl.cancellation import uninterrupted
from aiorepl.errors import ConnectionLost, SlotError
from aiorepl.lsn import LSN
from aiorepl.snapshot.described import DescribedTable
from aiorepl.snapshot.incremental.request_check import require_key
from aiorepl.snapshot.incremental.table_reading import TableReading, delivered
from aiorepl.snapshot.planning import plan_tables
from aiorepl.snapshot.reading_transaction import SnapshotGone
from aiorepl.snapshot.truncates import truncate
from aiorepl.transactions.transaction import Transaction


async def read_at_one_point(reading: TableReading, described: DescribedTable) -> None:
    """Read a table as one transaction, with the stream held back at exactly the point where it is read.

    The transaction begins with a truncate of the table, because sinks cannot replace rows without a key, nor find rows that are gone.

    :raises Altered, ReadAgain: the table has to be read again.
    :raises ConfigurationError: the table cannot be read; says what to do.
    :raises ConnectionLost: a connection was lost, such as the connection that exported the snapshot.
    :raises SlotError: the transactions in progress did not end in time.
    """
    source, table = reading.source, described.table
    if reading.progress.where is not None:
        require_key(table)
    options = replace(source.options, chunk_bytes=2**62)
    (plan,) = await plan_tables(reading.control, [table], source.publications, options)
    await reading.update(lambda progress: progress.planned(plan))
    reached = asyncio.Event()
    source.merge.hold()
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(source.options.lock_timeout), source.export() as (point, snapshot):
                transaction = await stack.enter_async_context(reading.chunks.begun(snapshot))
        except SnapshotGone as error:
            # The exporting connection was lost after it had returned the snapshot's name. The next attempt exports a new snapshot.
            raise ConnectionLost(str(error)) from None
        except TimeoutError:
            raise SlotError(
                f"table {table} is read as a whole, and the transactions in progress did not end within the lock_timeout of "
                f"{source.options.lock_timeout:g} s: end them, or set a longer one"
            ) from None
        source.merge.hold(point, reached.set)
        rows = await transaction.copy(described, plan.state, None)
    # Write a message, so that the stream reaches the point on an idle server, too.
    await reading.mark(lambda _: ())
    await reached.wait()
    header = reading.header(table, point, 1, last=True)
    content = Transaction(0, LSN(point - 1), transaction.time, snapshot=header)
    change = delivered(1, content.commit_lsn, complete=True)

    async def deliver() -> bool:
        recorded = await reading.record(change)
        first = truncate(content, (described.layout.relation,))
        source.merge.release(rows.slices(content, point, first=(first,)))
        return recorded

    # Do not cancel between the record and the release. Otherwise the ledger would have rows that were never delivered.
    recorded = await uninterrupted(deliver())
    if not recorded:
        await reading.update(change)
