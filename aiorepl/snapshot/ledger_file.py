"""The file of the chunk ledger, in the journal's folder, or without a journal in the folder ``state`` of the options."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from aiorepl.durable import storage_error
from aiorepl.journal.store import LocalStore, open_store, reading
from aiorepl.position import Position
from aiorepl.snapshot.ledger import ChunkLedger, dump, load


class LedgerFile:
    """The ledger of one slot, in memory and on disk. The one on disk is never newer.

    :param folder: a path or ``file://`` URL.
    :param slot: the name of the replication slot.
    """

    def __init__(self, folder: str | os.PathLike[str], slot: str) -> None:
        self._store: LocalStore = open_store(folder)
        self._name = f"{slot}.snapshot"
        self._writing = asyncio.Lock()
        self.ledger: ChunkLedger | None = None
        """The ledger on disk; ``None`` before ``read``, or if there is none."""

    @property
    def location(self) -> str:
        """The file, for messages."""
        return f"{self._name} in {self._store.url}"

    async def read(self, source: Position) -> ChunkLedger | None:
        """Read the ledger; ``None`` if there is none.

        :param source: the slot and cluster that it must be of.
        :raises JournalError: the file is damaged, has another format, or cannot be read.
        :raises SlotError: it belongs to another cluster.
        """
        self.ledger = await asyncio.to_thread(self._read)
        if self.ledger is not None:
            self.ledger.source.require_same_source(source, self.location)
        return self.ledger

    async def write(self, ledger: ChunkLedger) -> None:
        """Replace the ledger. It is durable on return.

        :raises TransientError, PermanentError: the file cannot be written.
        """
        async with self._writing:
            await self._write(ledger)

    async def update(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger. It is durable on return.

        :param change: returns the new ledger; not written if it is the same object.
        :raises TransientError, PermanentError: the file cannot be written.
        """
        async with self._writing:
            if self.ledger is None:
                raise RuntimeError("there is no ledger yet")
            changed = change(self.ledger)
            if changed is not self.ledger:
                await self._write(changed)
            return changed

    async def _write(self, ledger: ChunkLedger) -> None:
        try:
            await asyncio.to_thread(self._store.write, self._name, dump(ledger))
        except OSError as error:
            raise storage_error(error, f"cannot write {self.location}") from error
        self.ledger = ledger

    def _read(self) -> ChunkLedger | None:
        with reading(self._store):
            try:
                data = self._store.read(self._name)
            except FileNotFoundError:
                return None
        return load(data, self.location)
