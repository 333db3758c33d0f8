"""Deletes the segments that every registered consumer has passed, and that the retention does not keep."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from typing import Final, Self

from aiorepl.durable import reason
from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.journal.chain import Segment
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.metadata_files import INDEX, SEGMENT, read_chain, unindexed
from aiorepl.journal.store import Location, Store, open_store, reading
from aiorepl.lsn import LSN
from aiorepl.sizes import parse_size

_log = logging.getLogger("aiorepl.journal")

# Seconds between two prunings.
_MAX_PAUSE: Final = 60.0
_MIN_PAUSE: Final = 1.0
_AGE: Final = re.compile(r"(\d{1,9})(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits for the segments that every consumer has passed. They are kept for replays and for new consumers.

    :param max_age_seconds: segments that are older are deleted.
    :param max_bytes: the oldest segments are deleted while all segments together are larger.
    :raises ConfigurationError: there is no limit, or one is negative.
    """

    max_age_seconds: float | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.max_age_seconds, self.max_bytes) if limit is not None]
        if not limits or min(limits) < 0:
            raise ConfigurationError(
                "a retention needs max_age_seconds, max_bytes or both, and neither is negative; 0 keeps nothing"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an age like ``"7d"``, a size like ``"100gb"``, or both: ``"7d 100gb"``.

        :raises ConfigurationError: the text has another form.
        """
        found: dict[str, int | None] = {}
        for word in text.lower().replace(",", " ").split() or [""]:
            limit, amount = _parse(word)
            if amount is None or limit in found:
                raise ConfigurationError(
                    f"retention {text!r} is not valid: give an age in s, min, h or d, a size in kb, mb or gb, or both, as in "
                    '"7d 100gb"'
                )
            found[limit] = amount
        return cls(found.get("max_age_seconds"), found.get("max_bytes"))


def _parse(word: str) -> tuple[str, int | None]:
    if (age := _AGE.fullmatch(word)) is not None:
        return "max_age_seconds", int(age[1]) * _SECONDS[age[2]]
    # 30m could be minutes, so a size needs its b.
    return "max_bytes", parse_size(word) if word.endswith("b") else None


def prune(
    url: Location | Store,
    *,
    store: Store | None = None,
    until: LSN | None = None,
    retention: Retention | None = None,
) -> list[str]:
    """Delete the segments that all cursors have passed. Safe while the journal is written and read.

    The last segment is kept, because it marks the journal's end, and so are the chunks of a table whose snapshot is not
    complete. Without any cursor, nothing is deleted.

    :param until: keep also the segments that end after this LSN.
    :param retention: keep also the segments within these limits.
    :returns: the names of the deleted segments, oldest first.
    :raises OSError: a file cannot be deleted; those before it are.
    :raises JournalError: the journal or a cursor is damaged; nothing was deleted.
    """
    store = open_store(url) if store is None else store
    with reading(store):
        chain = read_chain(store)
    cursors = Cursors(url, store=store)
    read = [position.lsn for name in cursors.names() if (position := cursors.get(name)) is not None]
    if chain is None or not read:
        return []
    passed = min(read) if until is None else min(*read, until)
    passed = min([passed, *(table.start_lsn for table in chain.state.tables if table.open)])
    segments = chain.segments()
    retained = None if retention is None else _Retained(store, segments, retention)
    deleted = []
    for segment in segments[:-1]:
        if segment.last_end_lsn > passed or (retained is not None and retained.keeps(segment)):
            break
        # The index first: without it the segment does not exist, even if the second deletion fails.
        store.delete(segment.name + INDEX)
        store.delete(segment.name + SEGMENT)
        deleted.append(segment.name)
    for segment in unindexed(store):
        # An earlier pruning was interrupted between the two files.
        if segment.last_end_lsn <= min(chain.start_lsn, passed):
            store.delete(segment.name + SEGMENT)
    return deleted


class _Retained:
    """Applies a retention to a journal's segments, from the oldest to the first that is kept."""

    def __init__(self, store: Store, segments: list[Segment], retention: Retention) -> None:
        self._store = store
        self._retention = retention
        self._now = time.time()
        # Only a limit in bytes needs the sizes of all segments.
        self._total = 0 if retention.max_bytes is None else sum(map(self._size, segments))

    def keeps(self, segment: Segment) -> bool:
        """Whether the segment is kept; if not, it no longer counts for the limit in bytes."""
        size, published = self._about(segment)
        old = (
            self._retention.max_age_seconds is not None
            and self._now - published > self._retention.max_age_seconds
        )
        large = self._retention.max_bytes is not None and self._total > self._retention.max_bytes
        self._total -= size
        return not (old or large)

    def _size(self, segment: Segment) -> int:
        return self._about(segment)[0]

    def _about(self, segment: Segment) -> tuple[int, float]:
        with reading(self._store):
            return self._store.about(segment.name + SEGMENT)


async def keep_pruned(url: Location | Store, retention: Retention) -> None:
    """Prune periodically, until cancelled. An error is only logged, because the stream does not depend on pruning."""
    age = _MAX_PAUSE if retention.max_age_seconds is None else retention.max_age_seconds
    pause = max(_MIN_PAUSE, min(age, _MAX_PAUSE))
    store, logged = open_store(url), ""
    while True:
        try:
            deleted = await asyncio.to_thread(prune, store, retention=retention)
        except (JournalError, OSError) as error:
            text = reason(error) if isinstance(error, OSError) else str(error)
            if text != logged:
                _log.warning("journal %s cannot be pruned, and grows: %s", store.url, text)
            logged = text
        else:
            logged = ""
            if deleted:
                _log.info("pruned %d segments of journal %s, up to %s", len(deleted), store.url, deleted[-1])
        await asyncio.sleep(pause)
