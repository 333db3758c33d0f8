"""The published tables, for a start that has no exported snapshot to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import asyncpg

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.snapshot.chunks import SnapshotPlan
from aiorepl.snapshot.initial.snapshot import truncation
from aiorepl.snapshot.ledger.ledger import ChunkLedger
from aiorepl.snapshot.reading_transaction import not_locked
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.source.source import Source
from aiorepl.transactions.slices import Slice
from aiorepl.wire.opening import translated


async def everything(source: Source, ledger: ChunkLedger, *, lock_timeout: float | None) -> ChunkLedger:
    """Return the ledger with all tables to be read while the stream runs, and no others.

    :param lock_timeout: the most seconds to wait for the lock of a table; ``None``: no limit.
    :raises SlotError: a table was not locked in time.
    :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
    """
    tables = await _published(source, lock_timeout)
    empty = replace(ledger, plan=SnapshotPlan(()), tables=())
    return empty.with_tables([(table.oid, table.schema, table.name) for table in tables])


async def truncation_of_all(source: Source, base: LSN) -> Slice:
    """Return a transaction that truncates all tables.

    :param base: the end of the transaction.
    :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
    """
    decoder, relations = Decoder(), []
    for table in await _published(source):
        relation = decoder.decode(table.relation)
        assert isinstance(relation, Relation)
        relations.append(relation)
    return truncation(relations, base, 0)


async def _published(source: Source, lock_timeout: float | None = None) -> Sequence[PublishedTable]:
    connection = await source.connect_sql()
    try:
        # The catalog's functions lock the tables.
        await connection.execute(f"SET lock_timeout = {round((lock_timeout or 0) * 1000)}")
        return list(await published_tables(connection, source.options().publications))
    except asyncpg.LockNotAvailableError:
        raise not_locked("a published table", lock_timeout) from None
    except Exception as error:  # noqa: BLE001 - translated or raised as it is
        raise translated(error) from None
    finally:
        connection.terminate()
