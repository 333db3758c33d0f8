"""One writer of a manifest: what it found, its claim, its notes, its entries. ``manifest`` says what these are for."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from aiorepl import AioreplError, PermanentError, Position
from aiorepl_sinks.objects.manifest import (
    ENTRIES,
    WRITERS,
    Entry,
    Writer,
    damaged,
    entry_name,
    entry_number,
    held,
)
from aiorepl_sinks.objects.store import Store

_log = logging.getLogger("aiorepl.sink")


class ManifestWriter:
    """Writes entries, after ``claim``. Any call that raised TransientError may be made again.

    :param store: where the manifest is; it is read at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # Told from all others, also from the one that this process was before a restart.
        self._name = secrets.token_hex(8)
        others = self._writers()
        self._last = self._newest(others)
        self.position: Position | None = None if self._last is None else held(self._last, others)
        """Up to where everything is durable; ``None`` where nobody has written yet."""
        self.epoch: int | None = None
        """The number of the claim."""
        self._cleaned = False
        # Names of objects that may be there and are not listed; and the entry that was tried and may be there, too.
        self._unlisted: set[str] = set()
        self._tried: Entry | None = None

    def claim(self, position: Position) -> None:
        """Keep writers before from adding entries, and delete what they left unlisted. Nothing if that is done.

        :param position: where the stream begins for us.
        :raises PermanentError: when somebody has written since we looked.
        """
        if self.epoch is None:
            self.position = position
            sequence = self._next
            self._create(Entry(sequence, sequence, self._name, position))
            self.epoch = sequence
        if not self._cleaned:
            # Not those of who came after us, if we were asleep: theirs have objects that count.
            others = [writer for writer in self._writers() if writer.entries <= self.epoch]
            # First, for it is what the next one looks for to find the end of the manifest.
            self._put_note(self._unlisted, position)
            self._clean(others, self.epoch)
            self._cleaned = True

    def announce(self, paths: Iterable[str]) -> None:
        """Note the names of objects that are about to appear."""
        unlisted = self._unlisted.union(paths)
        if unlisted != self._unlisted:
            self._put_note(unlisted, self.position)
            self._unlisted = unlisted

    def add(self, objects: Sequence[dict[str, Any]], position: Position) -> None:
        """List objects: they are there, and everything up to ``position`` is in them and those listed before.

        :raises PermanentError: when another writer has claimed the manifest.
        """
        assert self.epoch is not None
        self._tried = self._tried or Entry(self._next, self.epoch, self._name, position, tuple(objects))
        self._create(self._tried)
        self._unlisted -= self._tried.paths
        self.position, self._tried = position, None

    def pass_over(self, position: Position) -> None:
        """Note that there is nothing up to ``position``."""
        self._put_note(self._unlisted, position)
        self.position = position

    def abandon(self) -> None:
        """Delete the objects that will not be listed, if that can be done."""
        if self._unlisted and self._tried is None:
            with contextlib.suppress(AioreplError):
                self._store.abort(self._unlisted)
                self._store.delete(sorted(self._unlisted))
                self._unlisted.clear()

    @property
    def _next(self) -> int:
        return 1 if self._last is None else self._last.sequence + 1

    def _put_note(self, unlisted: set[str], position: Position | None) -> None:
        note = Writer(self._name, self._next, tuple(sorted(unlisted)), position)
        self._store.put(note.name, [note.to_json()])

    def _create(self, entry: Entry) -> None:
        if not self._store.create(entry.name, entry.to_json()):
            # It may be ours, if only the answer was lost.
            found = self._entry(entry.sequence)
            if found is None or found.writer != self._name:
                self._tried = None
                raise PermanentError(
                    f"{self._store.url}: another process writes there, or another sink of this one (it made entry "
                    f"{entry.sequence} of the manifest): let one of them go on, and give the other a prefix of its own"
                )
        self._last = entry

    def _clean(self, others: Sequence[Writer], epoch: int) -> None:
        for writer in others:
            later = (self._entry(number) for number in range(writer.entries, epoch))
            listed = {path for entry in later if entry is not None for path in entry.paths}
            left = [path for path in writer.unlisted if path not in listed]
            if left:
                _log.info("%s: deleting %d objects that were not finished", self._store.url, len(left))
                # In this order: one that is under way cannot appear any more when the names are deleted.
                self._store.abort(left)
                self._store.delete(left)
        self._store.delete([writer.name for writer in others])

    def _writers(self) -> list[Writer]:
        names = [name for name in self._store.names(WRITERS) if name.endswith(".json")]
        read = ((name, self._store.read(name)) for name in names)
        return [
            Writer.from_json(data, f"{name} in {self._store.url}") for name, data in read if data is not None
        ]

    def _newest(self, writers: Sequence[Writer]) -> Entry | None:
        """The last entry. Writers say how many there were, so that a long manifest is not listed."""
        if writers:
            number = max(writer.entries - 1 for writer in writers)
        else:
            number = max(map(entry_number, self._store.names(ENTRIES)), default=0)
        last = self._entry(number)
        if last is None and number:
            raise damaged(f"{entry_name(number)} in {self._store.url}", "it is missing")
        while (following := self._entry(number + 1)) is not None:
            number, last = number + 1, following
        return last

    def _entry(self, number: int) -> Entry | None:
        data, where = self._store.read(entry_name(number)), f"{entry_name(number)} in {self._store.url}"
        if data is None:
            return None
        entry = Entry.from_json(data, where)
        if entry.sequence != number:
            raise damaged(where, f"it is entry {entry.sequence}")
        return entry
