"""A writer of the manifest (see ``manifest``): reads its end, claims it, and adds entries."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from aiorepl import AioreplError, PermanentError, Position
from aiorepl.loggers import logger
from aiorepl_sinks.objects.manifest import (
    ENTRIES,
    WRITERS,
    Entry,
    Writer,
    damaged,
    entry_name,
    entry_number,
    stored_position,
)
from aiorepl_sinks.objects.store import Objects

_log = logger("aiorepl.sink")


class ManifestWriter:
    """Reads the manifest's end at once, and adds entries after ``claim``. A call that raised TransientError may be repeated.

    :param store: the store that holds the manifest.
    :ivar position: up to where everything is durable; ``None`` for a new manifest.
    :ivar epoch: the number of the claim; ``None`` before it.
    """

    def __init__(self, store: Objects) -> None:
        self._store = store
        # A random name distinguishes this writer even from the same process's writers before a restart.
        self._name = secrets.token_hex(8)
        others = self._writers()
        self._last = self._newest(others)
        self.position: Position | None = None if self._last is None else stored_position(self._last, others)
        self.epoch: int | None = None
        self._cleaned = False
        # Names of objects that may exist and are not listed.
        self._unlisted: set[str] = set()
        # An entry that may exist, although its creation has failed.
        self._attempted: Entry | None = None

    def claim(self, position: Position) -> None:
        """Stop earlier writers from adding entries, and delete their unlisted objects. A second call does nothing.

        :param position: where this writer's stream begins.
        :raises PermanentError: another writer has added an entry since this one read the manifest.
        """
        if self.epoch is None:
            self.position = position
            sequence = self._next
            self._create(Entry(sequence, sequence, self._name, position))
            self.epoch = sequence
        if not self._cleaned:
            # Leave out the writers that claimed the manifest later, while this process was suspended: their objects count.
            others = [writer for writer in self._writers() if writer.entries <= self.epoch]
            # First write this writer's file, then delete the others': such files tell the next writer the manifest's end.
            self._put_file(self._unlisted, position)
            self._clean(others, self.epoch)
            self._cleaned = True

    def announce(self, paths: Iterable[str]) -> None:
        """Record the names of objects before they are written."""
        unlisted = self._unlisted.union(paths)
        if unlisted != self._unlisted:
            self._put_file(unlisted, self.position)
            self._unlisted = unlisted

    def add(self, objects: Sequence[dict[str, Any]], position: Position) -> None:
        """Add an entry.

        :param objects: the entry's objects, which exist.
        :param position: the objects of this entry and of all earlier ones contain everything up to this position.
        :raises PermanentError: another writer has claimed the manifest.
        """
        assert self.epoch is not None
        self._attempted = self._attempted or Entry(
            self._next, self.epoch, self._name, position, tuple(objects)
        )
        self._create(self._attempted)
        self._unlisted -= self._attempted.paths
        self.position, self._attempted = position, None

    def pass_over(self, position: Position) -> None:
        """Move the position without an entry, because there are no events up to ``position``."""
        self._put_file(self._unlisted, position)
        self.position = position

    def abandon(self) -> None:
        """Try to delete the objects that will not be listed."""
        if self._unlisted and self._attempted is None:
            with contextlib.suppress(AioreplError):
                self._store.abort(self._unlisted)
                self._store.delete(sorted(self._unlisted))
                self._unlisted.clear()

    @property
    def _next(self) -> int:
        return 1 if self._last is None else self._last.sequence + 1

    def _put_file(self, unlisted: set[str], position: Position | None) -> None:
        file = Writer(self._name, self._next, tuple(sorted(unlisted)), position)
        self._store.put(file.name, [file.to_json()])

    def _create(self, entry: Entry) -> None:
        if not self._store.create(entry.name, entry.to_json()):
            # The existing entry is this writer's own if only the store's answer was lost.
            found = self._entry(entry.sequence)
            if found is None or found.writer != self._name:
                self._attempted = None
                raise PermanentError(
                    f"{self._store.url}: another process or sink writes there (it has created entry {entry.sequence} of the "
                    "manifest): stop one of them, or give it a prefix of its own"
                )
        self._last = entry

    def _clean(self, others: Sequence[Writer], epoch: int) -> None:
        for writer in others:
            later = (self._entry(number) for number in range(writer.entries, epoch))
            listed = {path for entry in later if entry is not None for path in entry.paths}
            left = [path for path in writer.unlisted if path not in listed]
            if left:
                _log.info("%s: deleting %d unlisted objects", self._store.url, len(left))
                # Abort first: an upload in progress could complete after its name is deleted.
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
        """Return the last entry. The writers' files have its number, so a long manifest need not be listed."""
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
