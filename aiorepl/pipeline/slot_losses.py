"""The durable record of a slot's losses: whether the next start reads all tables again, and how often that has happened.

A pipeline notices the loss of its slot at a start, or after a reconnect. The pipeline records the loss, and then ends with ``SlotLost``,
because its sinks have to be opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from aiorepl.cancellation import uninterrupted
from aiorepl.storage.checked_json import boolean, seal, unseal
from aiorepl.storage.document import Document, replace_for_slot
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store

OnSlotLost = Literal["stop", "resnapshot"]

_DAY: Final = 24 * 60 * 60.0
_REMEDY: Final = "Delete the file; the count of the slot's losses then starts at 0"


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of the file.

    :param pending: whether the next start reads all tables again.
    :param times: when the slot was lost and the tables were read again, as Unix time.
    :param known: whether the slot existed.
    """

    pending: bool = False
    times: tuple[float, ...] = ()
    known: bool = False


class SlotLosses:
    """The file ``<slot>.losses.json``.

    :param folder: the journal, or the folder of the snapshot's plan.
    :param slot: the name of the replication slot.
    :param limit: how often within 24 hours all tables may be read again.
    """

    def __init__(self, folder: Location | Store, slot: str, limit: int) -> None:
        self._document = Document(open_store(folder), f"{slot}.losses.json", _dump, _load)
        self._limit = limit
        self._stored = self._loaded = _Contents()

    async def load(self) -> None:
        """Read the file.

        :raises JournalError: the file is damaged, or cannot be read.
        """
        found = await asyncio.to_thread(self._document.load)
        self._stored = self._loaded = _Contents() if found is None else found

    @property
    def known(self) -> bool:
        """Whether the stream has started before, so that the slot existed."""
        return self._stored.known

    @property
    def pending(self) -> bool:
        """Whether this start has to read all tables again."""
        return self._stored.pending

    def recent(self, now: float) -> int:
        """Return how often the tables were read again within the last 24 hours.

        :param now: Unix time.
        """
        return sum(time > now - _DAY for time in self._stored.times)

    async def record(self, now: float) -> bool:
        """Record a loss, durably. Return whether the next start reads all tables again.

        :raises PermanentError, TransientError, JournalError: the file cannot be written.
        """
        if self.recent(now) >= self._limit:
            return False
        times = tuple(time for time in self._stored.times if time > now - _DAY)
        await self._write(_Contents(pending=True, times=(*times, now), known=True))
        return True

    async def started(self) -> None:
        """Record that the stream has started, so the slot exists and no loss is pending.

        :raises PermanentError, TransientError, JournalError: the file cannot be written.
        """
        if self.pending or not self.known:
            await self._write(replace(self._stored, pending=False, known=True))

    async def dropped(self) -> None:
        """Record that this start has dropped the slot that it had created: that is no loss, and nothing was delivered.

        :raises PermanentError, TransientError, JournalError: it cannot be written.
        """
        before = self._loaded
        await self._write(replace(before, pending=before.known))

    async def _write(self, contents: _Contents) -> None:
        await uninterrupted(self._replace(contents))

    async def _replace(self, contents: _Contents) -> None:
        await replace_for_slot(self._document, contents)
        self._stored = contents


def _dump(contents: _Contents) -> bytes:
    return seal({"pending": contents.pending, "times": list(contents.times), "known": contents.known})


def _load(data: bytes, location: str) -> _Contents:
    return unseal(data, location, _contents, remedy=_REMEDY, advice=_REMEDY)


def _contents(fields: Mapping[str, Any]) -> _Contents:
    return _Contents(boolean(fields, "pending"), tuple(map(float, fields["times"])), boolean(fields, "known"))
