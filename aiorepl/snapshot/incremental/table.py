"""Reads one table while the stream runs: in a window if it has a key and no truncate precedes its rows, else at one point.

If the table was truncated, rewritten or altered meanwhile, blocks no longer hold the rows that they held when the table was cut
into chunks, so it is read again from the beginning. Whole chunks arrive twice then; they are idempotent, like all rows with a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import asyncpg

from aiorepl.errors import ConfigurationError, SlotError
from aiorepl.loggers import logger
from aiorepl.snapshot.altered import TableAltered
from aiorepl.snapshot.described import DescribedTable, describe
from aiorepl.snapshot.incremental.at_one_point import read_at_one_point
from aiorepl.snapshot.incremental.connections import ReadingConnections
from aiorepl.snapshot.incremental.fresh_chunks import Altered, FreshChunks, ReadAgain
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.incremental.table_reading import Record, TableReading
from aiorepl.snapshot.incremental.window_reader import WindowReader
from aiorepl.snapshot.ledger.ledger import TableChange, TableProgress
from aiorepl.snapshot.reading_transaction import translating, translating_locked
from aiorepl.snapshot.statistics import TableCounters
from aiorepl.values.registry import Types

_log = logger("aiorepl.snapshot")

# After this many readings the table has failed, because it is altered all the time.
_ATTEMPTS: Final = 20


async def read_table(
    source: SnapshotSource,
    connections: ReadingConnections,
    progress: TableProgress,
    update: Callable[[TableChange], Awaitable[TableProgress]],
    record: Record,
    ends_snapshot: Callable[[], bool],
    counters: TableCounters,
    identity: str,
) -> None:
    """Read a table, and insert its chunks into the stream. The ledger has all of them on return; they may not be durable yet.

    :param connections: stay open for the next table; they are closed if this call fails or is cancelled.
    :param progress: the ledger's entry of the table.
    :param update: changes the ledger's entry.
    :param record: tries once to change the ledger's entry, because the stream waits meanwhile.
    :param ends_snapshot: whether no other table is left to be read; called when this table is complete.
    :param counters: count the rows that are read.
    :param identity: identifies this reading of the table.
    :raises ConfigurationError: the table is not published, cannot be read, or the server cannot write messages.
    :raises SlotError: a lock was not granted in time, or the table is altered all the time.
    :raises ConnectionLost, ConnectionFailed, ServerError: the server failed; another call continues with the rest.
    """
    with translating(), translating_locked(f"table {progress}", source.options.lock_timeout):
        try:
            control = await connections.control()
            chunks = FreshChunks(source, connections.reader, control, counters)
            await _read(
                TableReading(source, control, chunks, progress, update, record, ends_snapshot, identity)
            )
        except BaseException:
            # A cancelled query may still run.
            connections.close()
            raise
        finally:
            source.merge.abandon()


async def _read(reading: TableReading) -> None:
    for _ in range(_ATTEMPTS):
        described = await _describe(reading)
        try:
            if described.table.key and not reading.progress.replaces:
                await WindowReader(reading, described).read()
            else:
                await read_at_one_point(reading, described)
        except (Altered, ReadAgain, TableAltered, asyncpg.UndefinedTableError) as error:
            # Read the table's description again: only the catalog knows whether the table still exists.
            reason = error if isinstance(error, (Altered, ReadAgain)) else "it was altered or dropped"
            _log.warning("table %s is read again from the beginning: %s", reading.progress, reason)
            await reading.update(lambda table: replace(table, plan=None))
            reading.source.merge.abandon()
        else:
            return
    raise SlotError(f"table {reading.progress} was altered each of the {_ATTEMPTS} times that it was read")


async def _describe(reading: TableReading) -> DescribedTable:
    source = reading.source
    table = await source.published(reading.control, reading.progress.oid)
    if table is None:
        raise ConfigurationError(
            f"table {reading.progress} is not published by {', '.join(source.publications)}, or was dropped"
        )
    return (await describe(reading.control, [table], Types(), binary=source.binary))[table.oid]
