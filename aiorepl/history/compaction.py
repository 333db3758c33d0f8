"""Compacts a journal into its history: passes over new segments, then merges of small files.

``history.json`` is the commit point of every step. The names of pending files contain the epoch of their compaction, so the
next owner finds and deletes the files that a killed compaction did not commit. A merge into a published file is recorded before
it is carried out, so after a kill the next owner writes the same rows under the same name.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from aiorepl.errors import JournalError
from aiorepl.history import parquet, planning
from aiorepl.history.buffers import Bounds, Buffers, TableBuffer
from aiorepl.history.catalog import (
    Deleted,
    Fenced,
    accessing,
    read_history,
    read_table,
    superseded,
    write_history,
    write_sealed,
    write_table,
)
from aiorepl.history.change_collector import ChangeCollector
from aiorepl.history.cursor import compacted, moved, protect, require_newest
from aiorepl.history.manifest import MESSAGES_TABLE, File, History, Rewrite, TableFiles, TableVersion
from aiorepl.history.names import (
    MESSAGES,
    PENDING,
    TABLES,
    folder_of,
    parse_pending,
    parse_table,
    pending_name,
)
from aiorepl.history.planning import Limits
from aiorepl.history.uncompacted import Stretch, beginning, stretch
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.holder import Holder
from aiorepl.journal.reader import JournalReader
from aiorepl.loggers import logger
from aiorepl.storage.store import Store
from aiorepl.table_name import TableName

_log = logger("aiorepl.history")

_MIB: Final = 1024 * 1024
# The lists that stay cached after a step have at most this many files together.
_CACHED_FILES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a pass covers, and when it begins.

    :param pass_bytes: the bytes of segments that a pass covers; at least one transaction.
    :param pass_seconds: in ``follow``, a pass begins with fewer bytes once the oldest of them has waited this long.
    """

    pass_bytes: int = 512 * _MIB
    pass_seconds: float = 300.0


@dataclass(slots=True)
class Done:
    """The work of a compaction since its start.

    :ivar bytes: the bytes of the segments of finished passes.
    :ivar read: the bytes of the segments that were read, also in a pass that did not finish.
    :ivar peak: the most bytes of rows in memory.
    """

    passes: int = 0
    rows: int = 0
    bytes: int = 0
    read: int = 0
    published: int = 0
    peak: int = 0


class Compaction:
    """Compacts one journal. Blocking; one thread may use it.

    :param store: the history's store: the folder ``history`` of the journal.
    :param clock: the time in seconds since 1970.
    """

    def __init__(
        self,
        reader: JournalReader,
        store: Store,
        cursors: Cursors,
        *,
        limits: Limits | None = None,
        bounds: Bounds | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.done = Done()
        self._reader = reader
        self._store = store
        self._cursors = cursors
        self._limits = limits or Limits()
        self._bounds = bounds or Bounds()
        self._pace = pace or Pace()
        self._clock = clock
        self._history: History | None = None
        self._version: str | None = None
        self._lists: dict[str, TableFiles] = {}
        # The numbers of the next file and the next list. No number is used twice.
        self._files = 0
        self._listed = 0
        self._seen: float | None = None

    @property
    def history(self) -> History:
        """The state that was committed last."""
        assert self._history is not None, "claim comes first"
        return self._history

    def run(self) -> None:
        """Compact everything that the journal has now.

        :raises JournalError: the journal or the history is damaged, or another compaction has taken over.
        :raises DataError: a value in binary format does not match its type.
        """
        self.claim()
        until = self._reader.end().lsn
        with self._owning():
            while self.history.end.lsn < until and self._pass():
                pass
            while self._maintain():
                pass

    def follow(self, stopped: threading.Event, poll: float = 5.0) -> None:
        """Compact the journal while it grows, until ``stopped`` is set; errors as ``run``.

        :param poll: seconds between two looks at the journal.
        """
        self.claim()
        with self._owning():
            while not stopped.is_set():
                if not (self._maintain() or self._pass(wait=True)):
                    stopped.wait(poll)

    def claim(self) -> None:
        """Become the owner of the history. An earlier owner fails at its next commit.

        :raises JournalError: there is no journal, or the journal or the history is damaged.
        """
        # Read the cursor before history.json: another compaction moves the cursor after it has replaced history.json.
        cursor = compacted(self._store, self._cursors)
        found, owner = read_history(self._store), Holder.own()
        if found is None:
            protect(self._store, self._cursors, self._reader.source())
            # Read the journal only now, when nothing can be pruned any more.
            begin = beginning(self._reader)
            self._history, self._version = History(begin.lsn, begin, 1, owner), None
        else:
            # The current source: the server may have been promoted since the journal's beginning.
            source = self._reader.position() or self._reader.source()
            found[0].end.require_same_source(source, f"the history in {self._store.url}")
            require_newest(self._store, found[0].end.lsn, cursor)
            self._history, self._version = found[0].claimed(owner), found[1]
            if found[0].end.lsn == found[0].start:
                # Nothing is compacted yet. If the journal was empty when the history began, it may now start at a later LSN.
                begin = beginning(self._reader)
                if begin.lsn > found[0].start:
                    self._history = replace(self._history, start=begin.lsn, end=begin)
        self._version = write_history(self._store, self._history, self._version)
        moved(self._store, self._cursors, self._history.end)
        with accessing(self._store):
            self._clean()

    @contextlib.contextmanager
    def _owning(self) -> Iterator[None]:
        """Raise Fenced or Deleted instead of any other JournalError, if the history has another owner or is gone."""
        try:
            yield
        except (Fenced, Deleted):
            raise
        except JournalError as error:
            try:
                found = read_history(self._store)
            except JournalError:
                raise error from None
            if found is None or found[0].owner != self.history.owner:
                raise superseded(self._store) from error
            raise

    def _pass(self, *, wait: bool = False) -> bool:
        """Compact the next stretch of the journal. Return whether something was compacted.

        :param wait: leave a stretch alone while it is small and new (``Pace``).
        """
        found = stretch(self._reader, self.history.end, self._pace.pass_bytes)
        if not found.segments:
            return False
        now = self._clock()
        self._seen = now if self._seen is None else self._seen
        if wait and found.size < self._pace.pass_bytes // 2 and now - self._seen < self._pace.pass_seconds:
            return False
        self._seen = None
        files: list[tuple[TableName, TableVersion, File]] = []
        try:
            self._collect(found, files)
        except Exception:
            self._discard(file.name for _, _, file in files)
            raise
        try:
            self._commit(self._with_pending(files), end=found.end, gaps=(*self.history.gaps, *found.gaps))
        except Fenced:
            self._discard_uncommitted([file.name for _, _, file in files])
            raise
        except Deleted:
            self._discard(file.name for _, _, file in files)
            raise
        moved(self._store, self._cursors, found.end)
        rows = sum(file.rows for _, _, file in files)
        self.done.passes += 1
        self.done.rows += rows
        self.done.bytes += found.size
        _log.info("compacted %d rows of %d files, up to %s", rows, len(files), found.end.lsn)
        return True

    def _collect(self, found: Stretch, files: list[tuple[TableName, TableVersion, File]]) -> None:
        def finish(buffer: TableBuffer, batches: Iterator[pa.RecordBatch]) -> int:
            ends = _Ends()
            name, self._files = pending_name(self.history.epoch, self._files), self._files + 1
            with accessing(self._store):
                written = parquet.write(self._store, name, buffer.version.schema, ends.watch(batches))
            now = int(self._clock())
            file = File(name, 0, written.rows, written.size, ends.first, ends.last, now, written.digest)
            files.append((buffer.table, buffer.version, file))
            return written.size

        with Buffers(self._bounds, finish) as buffers:
            collecting = ChangeCollector(self._reader, buffers, lambda table: self._list(table).versions)
            for segment in found.segments:
                collecting.segment(segment)
                self.done.read += segment.size
            buffers.flush()
            self.done.peak = max(self.done.peak, buffers.peak)

    def _with_pending(self, files: list[tuple[TableName, TableVersion, File]]) -> dict[str, TableFiles]:
        """Return the lists of the tables, with the files of a pass added as pending."""
        changed: dict[str, TableFiles] = {}
        for table, version, file in files:
            folder = _folder(table)
            listed = changed.get(folder) or self._list(table)
            digests = [each.digest for each in listed.versions]
            if version.digest in digests:
                number = digests.index(version.digest)
            else:
                number = len(digests)
                listed = replace(listed, versions=(*listed.versions, version))
            changed[folder] = replace(listed, pending=(*listed.pending, replace(file, version=number)))
        return changed

    def _maintain(self) -> bool:
        """Carry out the recorded merges. If there are none, record the merges that are due, and delete expired files.

        :returns: whether there was anything to do.
        """
        changed: dict[str, TableFiles] = {}
        now = int(self._clock())
        if self.history.rewrites:
            for rewrite in self.history.rewrites:
                changed[rewrite.folder] = self._rewrite(rewrite, now)
            self._commit(changed, rewrites=())
            return True
        rewrites: list[Rewrite] = []
        for folder, entry in self.history.tables.items():
            if not planning.due(entry, self._limits, now):
                continue
            listed = self._list(entry.table)
            if expired := planning.expired(listed, self._limits, now):
                with accessing(self._store):
                    for name in expired:
                        self._store.delete(name)
                listed = replace(
                    listed, replaced=tuple(each for each in listed.replaced if each[0] not in expired)
                )
                changed[folder] = listed
            name = pending_name(self.history.epoch, self._files)
            due = planning.plan_rewrite(folder, listed, self._limits, now, name)
            if due is not None:
                self._files += not due.publish
                rewrites.append(due)
        if changed or rewrites:
            self._commit(changed, rewrites=tuple(rewrites))
        return bool(changed or rewrites)

    def _rewrite(self, rewrite: Rewrite, now: int) -> TableFiles:
        listed = self._list(self.history.tables[rewrite.folder].table)
        with accessing(self._store):
            written = parquet.merge(self._store, listed.pending[: rewrite.count], rewrite.name)
        self.done.published += rewrite.publish
        listed = planning.rewritten(listed, rewrite, written.size, written.digest, now)
        if sealed := planning.to_seal(listed, self._limits):
            name = write_sealed(self._store, rewrite.folder, sealed, self.history.epoch, self._next_list())
            listed = planning.with_sealed(listed, sealed, name)
        return listed

    def _commit(self, changed: Mapping[str, TableFiles], **fields: Any) -> None:
        """Write the changed lists, then ``history.json``. Delete the predecessors of the replaced lists, which no reader needs.

        :raises JournalError: another compaction has taken over.
        """
        before = self.history.tables
        tables = dict(before)
        for folder, listed in changed.items():
            name = write_table(self._store, folder, listed, self.history.epoch, self._next_list())
            old = before.get(folder)
            tables[folder] = planning.entry_of(listed, name, None if old is None else old.name)
        history = replace(self.history, tables=tables, files=self._files, lists=self._listed, **fields)
        # After any error except Fenced, history.json may or may not have been replaced, so nothing is deleted.
        try:
            self._version = write_history(self._store, history, self._version)
        except Deleted:
            # Delete the new lists: without history.json, they would look like the remains of a lost history.
            self._discard(tables[folder].name for folder in changed)
            raise
        self._history = history
        self._lists.update(changed)
        if sum(len(each.published) + len(each.pending) for each in self._lists.values()) > _CACHED_FILES:
            self._lists.clear()
        replaced = [before[folder].previous for folder in changed if folder in before]
        self._discard(name for name in replaced if name is not None)

    def _discard(self, names: Iterable[str]) -> None:
        """Delete unused files. If this fails, the next owner deletes the rest."""
        with contextlib.suppress(OSError):
            for name in names:
                self._store.delete(name)

    def _discard_uncommitted(self, names: list[str]) -> None:
        """Delete pending files that were not committed before another compaction took over."""
        with contextlib.suppress(JournalError):
            found = read_history(self._store)
            committed = {} if found is None else dict(found[0].earlier)
            if (first := committed.get(self.history.epoch)) is not None:
                parsed = {name: parse_pending(name.removeprefix(f"{PENDING}/")) for name in names}
                self._discard(name for name, of in parsed.items() if of is not None and of[1] >= first)

    def _list(self, table: TableName) -> TableFiles:
        folder = _folder(table)
        if (found := self._lists.get(folder)) is None:
            entry = self.history.tables.get(folder)
            if entry is None:
                return TableFiles(table)
            with accessing(self._store):
                found = self._lists[folder] = read_table(self._store, entry)
        if found.table != table:
            raise JournalError(f"the tables {table} and {found.table} have the same folder {folder}")
        return found

    def _next_list(self) -> int:
        self._listed += 1
        return self._listed

    def _clean(self) -> None:
        """Delete the files that earlier owners wrote and did not commit."""
        if not self.history.earlier:
            return
        for folder in ("", PENDING, TABLES, *(rewrite.folder for rewrite in self.history.rewrites)):
            self._store.clean(folder)
        committed = dict(self.history.earlier)
        for file in self._store.names(PENDING):
            found = parse_pending(file)
            if found is not None and found[0] in committed and found[1] >= committed[found[0]]:
                self._store.delete(f"{PENDING}/{file}")
        entries = self.history.tables.values()
        known = {name for entry in entries for name in (entry.name, entry.previous)}
        for file in self._store.names(TABLES):
            of = parse_table(file)
            if of is not None and of[1] < self.history.epoch and not of[0].endswith("-sealed"):
                name = f"{TABLES}/{file}"
                if name not in known:
                    self._store.delete(name)


class _Ends:
    """Records the positions of the first and the last row of the record batches that pass through ``watch``."""

    def __init__(self) -> None:
        self.first = self.last = (0, 0)

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and record their positions."""
        begun = False
        for batch in batches:
            if not begun:
                begun, self.first = True, _position(batch, 0)
            self.last = _position(batch, batch.num_rows - 1)
            yield batch


def _position(batch: pa.RecordBatch, row: int) -> tuple[int, int]:
    return batch.column("_commit_lsn")[row].as_py(), batch.column("_ordinal")[row].as_py()


def _folder(table: TableName) -> str:
    return MESSAGES if table == MESSAGES_TABLE else folder_of(table.schema, table.name)
