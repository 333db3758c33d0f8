"""Makes a ``SnapshotSource`` of a source, for the readers of tables."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.snapshot.chunk_reader import RateLimit
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.merging.merge import ChunkMerge
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import HidesKey
from aiorepl.source.server.slot_wait import telling
from aiorepl.source.source import Source
from aiorepl.transactions.spool import Spool


def snapshot_source(source: Source, options: SnapshotOptions, hides_key: HidesKey) -> SnapshotSource:
    """Return the source for reading tables while its stream runs.

    :param hides_key: as in ``plan_tables``.
    """

    @contextlib.asynccontextmanager
    async def export() -> AsyncIterator[tuple[LSN, str]]:
        connection = await source.open()
        try:
            name = f"aiorepl_{secrets.token_hex(8)}"
            with telling(source.connect_sql, name):
                created = await connection.create_slot(name, temporary=True, snapshot="export")
            if created.snapshot_name is None:
                raise ConfigurationError("the server exported no snapshot")
            yield created.consistent_point, created.snapshot_name
        finally:
            await connection.close()

    return SnapshotSource(
        source.slot,
        source.options().publications,
        source.connect_sql,
        export,
        ChunkMerge(source.slot),
        Spool(source.spill_dir),
        options,
        RateLimit(options.max_rows_per_second),
        source.binary,
        source.origin in (None, "any"),
        hides_key,
    )
