"""The published tables, for a start that has no exported snapshot to read."""

from __future__ import annotations

from collections.abc import Sequence

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.position import Position
from aiorepl.snapshot.chunks import SnapshotPlan
from aiorepl.snapshot.initial.snapshot import truncation
from aiorepl.snapshot.ledger.ledger import ChunkLedger, initial_ledger
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.source.source import Source
from aiorepl.transactions.slices import Slice
from aiorepl.wire.opening import translated


async def everything(source: Source, position: Position, *, truncates: bool) -> ChunkLedger:
    """Return a ledger in which all tables are to be read while the stream runs.

    :param position: the slot's position.
    :param truncates: whether all tables are truncated first.
    :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
    """
    ledger = initial_ledger(position, SnapshotPlan(()), position.lsn, truncates=truncates)
    for table in await _published(source):
        ledger = ledger.with_table(table.oid, table.schema, table.name)
    return ledger


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


async def _published(source: Source) -> Sequence[PublishedTable]:
    connection = await source.connect_sql()
    try:
        return list(await published_tables(connection, source.options().publications))
    except Exception as error:  # noqa: BLE001 - translated or raised as it is
        raise translated(error) from None
    finally:
        connection.terminate()
