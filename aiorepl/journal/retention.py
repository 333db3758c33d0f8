"""Which segments can go: those that every registered consumer has passed, and of these the ones that nobody retains."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from dataclasses import dataclass
from typing import Final, Self

from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.journal.chain import Segment
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.metadata_files import INDEX, SEGMENT, read_chain, unindexed
from aiorepl.journal.store import Store, open_store, reading
from aiorepl.lsn import LSN
from aiorepl.sizes import parse_size

_log = logging.getLogger("aiorepl.journal")

_LONGEST: Final = 60.0
_SHORTEST: Final = 1.0
_AGE: Final = re.compile(r"(\d{1,9})(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep of what every consumer has passed: for reading it again, or for those that come later.

    :param max_age_seconds: segments go when they are older.
    :param max_bytes: the oldest go while all segments together are larger.
    :raises ConfigurationError: for neither, and for less than nothing.
    """

    max_age_seconds: float | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.max_age_seconds, self.max_bytes) if limit is not None]
        if not limits or min(limits) < 0:
            raise ConfigurationError(
                "a retention is an age in seconds, a number of bytes, or both; 0 keeps nothing"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"7d"``, ``"100gb"``, or both, ``"7d 100gb"``: what exceeds either goes.

        :raises ConfigurationError: for other text.
        """
        found: dict[str, int | None] = {}
        for word in text.lower().replace(",", " ").split() or [""]:
            limit, amount = _read(word)
            if amount is None or limit in found:
                raise ConfigurationError(
                    f"retention {text!r} is no retention: it is an age in s, min, h or d, a size in kb, mb or gb, or one of "
                    'each, as in "7d 100gb"'
                )
            found[limit] = amount
        return cls(found.get("seconds"), found.get("bytes"))


def _read(word: str) -> tuple[str, int | None]:
    if (age := _AGE.fullmatch(word)) is not None:
        return "seconds", int(age[1]) * _SECONDS[age[2]]
    # Of 30m nobody knows whether these are minutes.
    return "bytes", parse_size(word) if word.endswith("b") else None


def prune(
    url: str | os.PathLike[str],
    *,
    store: Store | None = None,
    until: LSN | None = None,
    retention: Retention | None = None,
) -> list[str]:
    """Delete the segments that all cursors have passed. Safe beside a writer and readers.

    The newest segment stays, for it tells where the journal ends. Without any cursor nothing is deleted: nobody has
    said that he has read it.

    :param until: keep what ends behind this, too.
    :param retention: keep this much of it; nothing unless given.
    :returns: the names of the segments that are gone, oldest first.
    :raises OSError: when a file cannot be deleted; those before it are gone.
    :raises JournalError: the journal or a cursor is damaged; nothing was deleted.
    """
    store = open_store(url) if store is None else store
    with reading(store):
        chain = read_chain(store)
    cursors = Cursors(url, store=store)
    held = [position.lsn for name in cursors.names() if (position := cursors.get(name)) is not None]
    if chain is None or not held:
        return []
    passed = min(held) if until is None else min(*held, until)
    segments = chain.segments()
    retained = None if retention is None else _Retained(store, segments, retention)
    gone = []
    for segment in segments[:-1]:
        if segment.last_end_lsn > passed or (retained is not None and retained.keeps(segment)):
            break
        # The index first: from then on the segment does not exist, whatever happens to the rest.
        store.delete(segment.name + INDEX)
        store.delete(segment.name + SEGMENT)
        gone.append(segment.name)
    for segment in unindexed(store):
        # An earlier pruning was interrupted between the two files.
        if segment.last_end_lsn <= min(chain.start_lsn, passed):
            store.delete(segment.name + SEGMENT)
    return gone


class _Retained:
    """What a retention keeps of a journal, asked from its oldest segment on until the first that is kept."""

    def __init__(self, store: Store, segments: list[Segment], retention: Retention) -> None:
        self._store = store
        self._retention = retention
        self._now = time.time()
        # Only a limit in bytes needs all of them looked at.
        self._left = 0 if retention.max_bytes is None else sum(map(self._size, segments))

    def keeps(self, segment: Segment) -> bool:
        """Whether this one stays; if not, it counts as gone."""
        size, published = self._about(segment)
        old = (
            self._retention.max_age_seconds is not None
            and self._now - published > self._retention.max_age_seconds
        )
        large = self._retention.max_bytes is not None and self._left > self._retention.max_bytes
        self._left -= size
        return not (old or large)

    def _size(self, segment: Segment) -> int:
        return self._about(segment)[0]

    def _about(self, segment: Segment) -> tuple[int, float]:
        with reading(self._store):
            return self._store.about(segment.name + SEGMENT)


async def keep_pruned(url: str, retention: Retention) -> None:
    """Prune now and again and again, until cancelled. Never fails: the stream does not depend on it."""
    age = _LONGEST if retention.max_age_seconds is None else retention.max_age_seconds
    pause = max(_SHORTEST, min(age, _LONGEST))
    told = ""
    while True:
        try:
            gone = await asyncio.to_thread(prune, url, retention=retention)
        except (JournalError, OSError) as error:
            text = f"{type(error).__name__}: {error.strerror if isinstance(error, OSError) else error}"
            if text != told:
                _log.warning("journal %s cannot be pruned, and grows: %s", url, text)
            told = text
        else:
            told = ""
            if gone:
                _log.info("pruned %d segments of journal %s, up to %s", len(gone), url, gone[-1])
        await asyncio.sleep(pause)
