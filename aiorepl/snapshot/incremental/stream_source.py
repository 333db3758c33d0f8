"""Gives the readers of tables the connections, publications and options of a source whose stream runs."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.lsn import LSN
from aiorepl.snapshot.chunk_reader import RateLimit
from aiorepl.snapshot.merging.merge import ChunkMerge
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import HidesKey, hides_no_key
from aiorepl.snapshot.tables import PublishedTable, fetch_published, published_tables
from aiorepl.transactions.spool import Spool

# A table's publications; each may publish other rows.
_ALL_PUBLISHED: Final = """
SELECT bool_and(p.pubinsert AND p.pubupdate) FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
 WHERE t.pubname = ANY ($1) AND t.schemaname = $2 AND t.tablename = $3
"""

Export = Callable[[], contextlib.AbstractAsyncContextManager[tuple[LSN, str]]]
"""Creates a temporary slot: its consistent point, and the name of the snapshot that it exports."""


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """The source of one pipeline.

    :param slot: the pipeline's slot.
    :param connect: opens an asyncpg connection with the settings for text values.
    :param export: exports the snapshot of a temporary slot.
    :param binary: whether the stream is binary.
    :param hides_key: as in ``plan_tables``.
    :param all_origins: whether the stream has changes of every replication origin.
    """

    slot: str
    publications: tuple[str, ...]
    connect: Callable[[], Awaitable[Any]]
    export: Export
    merge: ChunkMerge
    spool: Spool
    options: SnapshotOptions
    rate: RateLimit
    binary: bool = False
    all_origins: bool = True
    hides_key: HidesKey = hides_no_key

    async def published(self, connection: Any, oid: int) -> PublishedTable | None:
        """Look up a table; ``None`` if it is not published, or does not exist."""
        return next(iter(await published_tables(connection, self.publications, [oid])), None)

    async def streams_all_updates(self, connection: Any, table: PublishedTable) -> bool:
        """Whether every insert and update of a table is in the stream."""
        ((published,),) = await fetch_published(
            connection, _ALL_PUBLISHED, list(self.publications), table.schema, table.name
        )
        return self.all_origins and bool(published)
