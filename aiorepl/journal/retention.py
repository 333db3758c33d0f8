"""Deletes the segments that every registered consumer has passed, and that the retention does not keep."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import Final, Self

from aiorepl.checked import checked
from aiorepl.durable import reason
from aiorepl.durations import parse_duration
from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.journal.chain import Chain
from aiorepl.journal.consumers import stalled_cursors
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.metadata import dump_start
from aiorepl.journal.metadata_files import START, MetadataFiles
from aiorepl.journal.segments import Segment
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.option_fields import Bytes, Seconds
from aiorepl.sizes import parse_size
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, Superseded

_log = logger("aiorepl.journal")

# Seconds between two prunings.
_MAX_PAUSE: Final = 60.0
_MIN_PAUSE: Final = 1.0


@checked("retention", zero=("max_age_seconds", "max_bytes"))
@dataclass(frozen=True)
class Retention:
    """Limits for the segments that every consumer has passed. They are kept for replays and for new consumers.

    :param max_age_seconds: older segments are deleted.
    :param max_bytes: the oldest segments are deleted while all segments together are larger.
    :raises ConfigurationError: there is no limit, or a limit is negative.
    """

    max_age_seconds: Seconds[float | None] = Seconds(None)
    max_bytes: Bytes[int | None] = Bytes(None)

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.max_age_seconds, self.max_bytes) if limit is not None]
        if not limits or min(limits) < 0:
            raise ConfigurationError(
                "a retention needs max_age_seconds, max_bytes or both, and neither is negative; 0 keeps nothing"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an age like ``"7d"``, a size like ``"100GB"``, or both: ``"7d 100GB"``.

        :raises ConfigurationError: the text has another form.
        """
        age: float | None = None
        size: int | None = None
        for word in text.replace(",", " ").split() or [""]:
            united = word[-1:].isalpha()  # a number alone could be either
            if united and age is None and (age := parse_duration(word)) is not None:
                continue
            if united and size is None and (size := parse_size(word)) is not None:
                continue
            raise ConfigurationError(
                # Without quotes: an error in a pipeline's file hides quoted texts that are parts of its values.
                f"retention {text!r} is not valid: give an age such as 7d or 12h, a size such as 100GB, or both: 7d 100GB"
            )
        return cls(age, size)


def prune(
    url: Location | Store,
    *,
    store: Store | None = None,
    until: LSN | None = None,
    retention: Retention | None = None,
) -> list[str]:
    """Delete the segments that all cursors have passed. Safe while the journal is written and read.

    The last segment is kept, and so are the chunks of a table whose snapshot is not complete. Without any cursor, nothing is
    deleted. The new start is recorded in ``start.json`` first, so that readers refuse a position before it.

    :param until: keep also the segments that end after this LSN.
    :param retention: keep also the segments within these limits.
    :returns: the names of the deleted segments, oldest first.
    :raises OSError: a file cannot be deleted; those before it are.
    :raises JournalError: the journal or a cursor is damaged; nothing was deleted.
    """
    store = open_store(url) if store is None else store
    files = MetadataFiles(store)
    deleted: list[str] = []
    while True:
        chain = files.chain()
        if chain is None:
            return deleted
        start, version = files.versioned_start(chain.identity)
        lsn = _new_start(chain, Cursors(url, store=store), until, retention)
        if lsn is None and start.deleted == start.lsn:
            return deleted
        moved = replace(start, lsn=max(start.lsn, lsn or ZERO))
        with contextlib.suppress(Superseded):  # another process prunes as well
            if moved != start:
                version = store.replace(START, dump_start(moved), version)
            for segment in chain.named(start.deleted, moved.lsn):
                store.delete(segment.file)
                deleted.append(segment.name)
            store.replace(START, dump_start(replace(moved, deleted=moved.lsn)), version)
            return deleted


def _new_start(chain: Chain, cursors: Cursors, until: LSN | None, retention: Retention | None) -> LSN | None:
    """Return the end of the last segment that can be deleted; ``None`` if there is none."""
    read = [position.lsn for name in cursors.names() if (position := cursors.get(name)) is not None]
    if not read:
        return None
    passed = min(read) if until is None else min(*read, until)
    passed = min([passed, *(table.start_lsn for table in chain.tables if table.open)])
    retained = None if retention is None else _Retained(chain, retention)
    last, found = chain.last_segment_end, None
    for segment in chain.walk():
        if segment.last_end_lsn > passed or segment.last_end_lsn == last:
            break
        if retained is not None and retained.keeps(segment):
            break
        if segment.last_part:
            found = segment.last_end_lsn
    return found


class _Retained:
    """Applies a retention to a journal's segments, from the oldest to the first that is kept."""

    def __init__(self, chain: Chain, retention: Retention) -> None:
        self._retention = retention
        self._now = time.time()
        self._total = 0
        if retention.max_bytes is not None:
            pruned = sum(segment.size for segment in chain.named(ZERO, chain.start_lsn))
            self._total = chain.state.total_size - pruned

    def keeps(self, segment: Segment) -> bool:
        """Whether the segment is kept; if not, it no longer counts for the limit in bytes."""
        age, most = self._retention.max_age_seconds, self._retention.max_bytes
        old = age is not None and self._now - segment.published > age
        large = most is not None and self._total > most
        self._total -= segment.size
        return not (old or large)


async def keep_pruned(url: Location | Store, retention: Retention, lock: asyncio.Lock | None = None) -> None:
    """Prune periodically, until cancelled. An error is only logged, because the stream does not depend on pruning.

    :param lock: held while segments are deleted.
    """
    lock = lock or asyncio.Lock()
    age = _MAX_PAUSE if retention.max_age_seconds is None else retention.max_age_seconds
    pause = max(_MIN_PAUSE, min(age, _MAX_PAUSE))
    store, logged = open_store(url), ""
    stalled: dict[str, str] = {}
    looked = -_MAX_PAUSE
    while True:
        try:
            async with lock:
                deleted = await asyncio.to_thread(prune, store, retention=retention)
            if (now := time.monotonic()) - looked >= _MAX_PAUSE:
                looked, before = now, stalled
                stalled = await asyncio.to_thread(stalled_cursors, store)
                for name in stalled.keys() - before.keys():
                    _log.warning("%s", stalled[name])
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
