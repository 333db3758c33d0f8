"""The file of the chunk ledger, beside the journal, or without a journal in the folder ``state`` of the options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiorepl.cancellation import uninterrupted
from aiorepl.durable import storage_error
from aiorepl.position import Position
from aiorepl.snapshot.ledger.ledger import ChunkLedger, dump, load
from aiorepl.storage.checked_json import boolean, seal, unseal
from aiorepl.storage.document import Document, replace_for_slot
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, reading

_TRUNCATES: Final = "truncates"
# The file has all tables. One write for this share of them makes the written bytes proportional to the number of tables.
_DEFERRED_SHARE: Final = 16


class LedgerFile:
    """The ledger of one slot, in memory and on disk. The file is never newer than the memory.

    A second file exists between the decision to create the slot and the first write of the ledger. If a process ends in between,
    the next process would otherwise conclude that the slot needs no snapshot.

    :param folder: where the journal is, or a folder for the ledger.
    :param slot: the name of the replication slot.
    """

    def __init__(self, folder: Location | Store, slot: str) -> None:
        self._store = open_store(folder)
        self._document = Document(self._store, f"{slot}.snapshot", dump, load)
        self._intent = f"{slot}.snapshot-intent"
        self._writing = asyncio.Lock()
        # The number of changes since the last write.
        self._deferred = 0
        self.ledger: ChunkLedger | None = None
        """The ledger; ``None`` before ``read``, or if there is none. The one on disk may lack the last changes of ``defer``."""

    @property
    def location(self) -> str:
        """The file, for messages."""
        return self._document.location

    async def read(self, source: Position | None = None) -> ChunkLedger | None:
        """Read the ledger; ``None`` if there is none.

        :param source: the slot and cluster to which the ledger must belong; ``None``: not compared.
        :raises JournalError: the file is damaged, has another format, or cannot be read.
        :raises SlotError: the ledger belongs to another cluster.
        """
        self.ledger = await asyncio.to_thread(self._document.load)
        if self.ledger is not None and source is not None:
            self.ledger.source.require_same_source(source, self.location)
        return self.ledger

    async def intended(self) -> bool | None:
        """Return whether the snapshot that ``intend`` recorded begins with a truncate; ``None`` without a record.

        :raises JournalError: the file is damaged, or cannot be read.
        """
        data = await asyncio.to_thread(self._read_intent)
        if data is None:
            return None
        return unseal(
            data,
            f"{self._intent} in {self._store.url}",
            lambda fields: boolean(fields, _TRUNCATES),
            remedy="Delete it, and start with resnapshot=True (--resnapshot): the slot was being created",
        )

    async def intend(self, *, truncates: bool) -> None:
        """Record that the slot is going to be created.

        :raises TransientError, PermanentError: the file cannot be written.
        """
        try:
            await asyncio.to_thread(self._store.write, self._intent, seal({_TRUNCATES: truncates}))
        except OSError as error:
            raise storage_error(error, f"cannot write {self._intent} in {self._store.url}") from error

    async def discard_intent(self) -> None:
        """Record durably that the slot has a ledger, or needs none.

        Consumers may store positions in the snapshot from then on. If a record of the intent were still there, the next start
        would not read the ledger, and would regard such a position as lost.

        :raises JournalError: the file cannot be deleted.
        """
        with reading(self._store):
            await asyncio.to_thread(self._store.delete_durably, self._intent)

    async def forget(self) -> None:
        """Delete the ledger: its slot was dropped."""
        await asyncio.to_thread(self._document.delete)
        self.ledger = None
        self._deferred = 0
        await self.discard_intent()

    async def write(self, ledger: ChunkLedger) -> None:
        """Replace the ledger by another slot's ledger, or write the first ledger. It is durable on return.

        :raises TransientError, PermanentError: the file cannot be written, or another process has written it.
        :raises JournalError: the record of the intent cannot be deleted.
        """
        async with self._writing:
            await uninterrupted(self._write(ledger))
        await self.discard_intent()

    async def update(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger. It is durable on return.

        :param change: returns the new ledger; if that is the same object, nothing is written.
        :raises TransientError, PermanentError: the file cannot be written, or another process has written it.
        """
        return await self._change(change, defer=False)

    async def defer(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger. It is written with a later change, or once a sixteenth of the tables has changed.

        :raises TransientError, PermanentError: as ``update``.
        """
        return await self._change(change, defer=True)

    async def _change(self, change: Callable[[ChunkLedger], ChunkLedger], *, defer: bool) -> ChunkLedger:
        async with self._writing:
            if self.ledger is None:
                raise RuntimeError("there is no ledger yet")
            changed = change(self.ledger)
            if changed is self.ledger:
                return changed
            if defer and (self._deferred + 1) * _DEFERRED_SHARE < len(changed.tables):
                self.ledger = changed
                self._deferred += 1
            else:
                await uninterrupted(self._write(changed))
            return changed

    async def _write(self, ledger: ChunkLedger) -> None:
        await replace_for_slot(self._document, ledger)
        self.ledger = ledger
        self._deferred = 0

    def _read_intent(self) -> bytes | None:
        with reading(self._store):
            try:
                return self._store.read(self._intent)
            except FileNotFoundError:
                return None
