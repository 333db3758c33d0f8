"""Follow a journal from its end on. The follower has no cursor, so retention may delete unread segments; a ``Resync`` marks the gap."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from anyio import to_thread

from aiorepl.errors import DamagedJournal, JournalError
from aiorepl.journal.chain import Chain
from aiorepl.journal.reader import JournalReader, NoJournal, end_of
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.storage.store import Store
from aiorepl.transactions.resync import START, Resync
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.journal")

# A journal looks damaged while another one replaces its files.
_ATTEMPTS: Final = 25


class _Place(NamedTuple):
    """The journal that the follower reads, and the end of the last slice that it has read."""

    journal: str
    after: LSN


async def blocks_from_end(store: Store) -> AsyncGenerator[list[Slice]]:
    """Yield the slices of one block at a time. Yield an empty list at the end of the journal, and while there is no journal.

    :raises JournalError: the journal is still damaged after repeated attempts.
    """
    reader = JournalReader("", store=store)
    place: _Place | None = None
    reason, left = START, None
    failures = 0
    while True:
        try:
            chain = await to_thread.run_sync(_look, reader, place)
            if place is None:
                place = _Place(chain.identity.journal, chain.last_segment_end)
                yield [Resync(place.after, reason, left).slice()]
            async for slices in reader.slices(chain, place.after):
                place = _Place(place.journal, end_of(slices, place.after))
                yield slices
            failures = 0
        except JournalError as error:
            failures += not isinstance(error, NoJournal)
            if failures >= _ATTEMPTS:
                raise
            if place is not None or (reason == START and isinstance(error, NoJournal)):
                _log.warning("%s", error)
            reason = str(error)
            if place is not None:
                left, place = place.after, None
            # The reader has cached files of the former journal.
            reader = JournalReader("", store=store)
            if not isinstance(error, (NoJournal, DamagedJournal)):
                continue
        yield []


def _look(reader: JournalReader, place: _Place | None) -> Chain:
    """Return the present chain of the journal.

    :raises JournalError: there is no journal, or transactions after ``place`` are missing in it.
    """
    if place is None:
        return reader.chain()
    chain = reader.readable(place.after, "a follower", "The follower continues at the end of the journal")
    if chain.identity.journal != place.journal:
        raise JournalError(f"the journal {reader.url} was replaced by another one")
    for gap in chain.gaps_between(place.after, chain.last_segment_end):
        raise JournalError(f"the journal {reader.url} has a gap between {gap.after} and {gap.until}")
    return chain
