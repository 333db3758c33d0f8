"""A process that reads all tables into a journal beside the stream.

python snapshot_process.py DSN SLOT FOLDER END

:param END: ``kill``: kill itself by SIGKILL once the journal has a complete table of which the chunk ledger's file knows no chunk;
    ``complete``: end once every table is complete.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from aiorepl import Pipeline, Source
from aiorepl.journal.metadata_files import POSITION, MetadataFiles
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.ledger.ledger import ChunkLedger
from aiorepl.storage.local import LocalStore


def main(dsn: str, slot: str, folder: str, end: str) -> None:
    """Read the tables, or be killed."""

    def kill(store: LocalStore, at: str, name: str) -> None:
        if (end, at, name) != ("kill", "published", POSITION):
            return
        chain = MetadataFiles(store).chain()
        ledger = asyncio.run(LedgerFile(store, slot).read())
        if chain is None or ledger is None:
            return
        complete = {table.oid for table in chain.tables if table.complete is not None}
        if any(table.oid in complete and not table.delivered and not table.done for table in ledger.tables):
            os.kill(os.getpid(), signal.SIGKILL)

    write = LedgerFile._write

    async def hold(file: LedgerFile, ledger: ChunkLedger) -> None:
        """Block a write of deferred tables, so that the kill comes before it."""
        if end == "kill" and file._deferred:
            await asyncio.Event().wait()
        await write(file, ledger)

    LocalStore.reached = kill  # type: ignore[method-assign]
    LedgerFile._write = hold  # type: ignore[method-assign]

    async def run() -> None:
        source = Source(dsn, slot=slot, publication="p")
        async with Pipeline(source, [], journal=folder, snapshot=True) as pipeline:
            await pipeline.snapshots.completed()

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
