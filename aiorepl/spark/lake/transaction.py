"""One commit of a table, from the changes of a batch: the part that all formats share. Does not use Spark.

    changes --reduce--> one net change per key --find--> file and position of the rows that exist
            --write---> data files with the new rows --commit--> one entry of the log

Until the log has the entry, nothing refers to the new files. Deleted rows are marked by their positions, or their files are
written again without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.columns import Evolution
from aiorepl.spark.lake.rows import fitted
from aiorepl.spark.lake.scan import FileScan
from aiorepl.spark.lake.sources import Claim, SharedEvolution, SourceName, evolved, property_of, text_of
from aiorepl.spark.lake.table import IS_CURRENT, Mode
from aiorepl.spark.lake.writer import FILE_BYTES, FileWriter


class File(Protocol):
    """A format's description of a data file."""

    @property
    def path(self) -> str:
        """The file's path or URI."""

    @property
    def size(self) -> int:
        """The file's size in bytes."""

    @property
    def rows(self) -> int:
        """The number of the file's rows, including deleted ones; 0 if it is unknown."""

    @property
    def partition(self) -> Hashable:
        """The values of the file's partition."""


F = TypeVar("F", bound=File)


class Entry(Generic[F]):
    """A data file within a transaction.

    :ivar marked: the positions of the rows that the present step deletes.
    :ivar gone: whether all rows of the file are deleted.
    :ivar touched: the positions of the rows that earlier steps of the transaction have deleted.

    :param dead: reads the positions of the rows that were deleted before the transaction.
    :param new: whether the transaction has written it.
    """

    def __init__(self, file: F, dead: Callable[[], BitMap64], *, new: bool) -> None:
        self.file = file
        self.new = new
        self.marked = BitMap64()
        self.gone = False
        self.touched = BitMap64()
        self._read = dead
        self._dead: BitMap64 | None = None

    def dead(self) -> BitMap64:
        """Return the positions of the rows that were deleted before the present step."""
        if self._dead is None:
            self._dead = self._read()
        return self._dead

    def mark(self, positions: np.ndarray) -> None:
        """Delete the rows at these positions."""
        if len(positions):
            self.marked |= BitMap64(np.ascontiguousarray(positions, np.uint64))

    def settle(self) -> None:
        """Begin another step."""
        if self.marked:
            self.touched |= self.marked
            self._dead = self.dead() | self.marked
            self.marked = BitMap64()


class Transaction(ABC, Generic[F]):
    """The changes of one commit.

    :ivar schema: the table's columns after the commit; ``None`` if there is no table yet.
    :ivar entries: the table's data files.
    :ivar claim: what the table records of the source; ``None`` if it has no rows of the source yet.

    :param source: the source whose rows the commit changes, in a table of several sources.
    :param application: the application that changes them; ``None`` for changes that belong to no batch.
    """

    def __init__(self, mode: Mode, source: SourceName | None = None, application: str | None = None) -> None:
        self.mode: Mode = mode
        self.source = source
        self.claim: Claim | None = None
        self._application = application
        self._properties: dict[str, str] = {}
        self.schema: pa.Schema | None = None
        self.entries: list[Entry[F]] = []
        self._written: list[str] = []

    @abstractmethod
    def evolve(self, source: pa.Schema, defaults: Mapping[str, pa.Scalar] | None) -> None:
        """Create the table, or change its columns so that rows of ``source`` fit; as ``Table.apply``."""

    @abstractmethod
    def is_united(self, keys: Sequence[str]) -> bool:
        """Whether a commit has recorded that the rows are unique by these columns, in the mode soft_delete."""

    @abstractmethod
    def set_united(self, keys: Sequence[str]) -> None:
        """Record that the rows are unique by these columns."""

    @abstractmethod
    def _scan(self, entry: Entry[F]) -> FileScan:
        """Return the scan of a file."""

    @abstractmethod
    def _alter(self, found: SharedEvolution) -> bool:
        """Create the table, or add and widen its columns. Return whether the files of widened columns have to be written again."""

    @abstractmethod
    def _source_of(self, file: F) -> Any:
        """Return the value of the source column in a file's rows."""

    @abstractmethod
    def _writer(self, keys: Sequence[str]) -> FileWriter[F, Any]:
        """Return a writer of new files."""

    @abstractmethod
    def _delete(self, paths: Iterable[str]) -> None:
        """Delete files that no commit refers to."""

    def scans(self) -> Iterator[tuple[Entry[F], FileScan]]:
        """Yield scans of the source's files, as they are at the beginning of the present step."""
        for entry in self.entries:
            if not entry.gone and self._is_own(entry):
                yield entry, self._scan(entry)

    def _is_own(self, entry: Entry[F]) -> bool:
        return self.source is None or self._source_of(entry.file) == self.source.name

    def drop(self, entry: Entry[F]) -> None:
        """Delete all rows of a file."""
        entry.gone = True

    @contextmanager
    def writing(self, keys: Sequence[str] = ()) -> Iterator[FileWriter[F, Any]]:
        """Return a context that writes rows. The rows exist from the next step on."""
        writer = self._writer(keys)
        try:
            yield writer
            self.add(writer.finish())
        except BaseException:
            self._delete(file.path for file in writer.finish())
            raise

    def add(self, files: Sequence[F]) -> None:
        """Begin another step. The rows of these new files exist from this step on."""
        for entry in self.entries:
            entry.settle()
        self._written += (file.path for file in files)
        self._delete(entry.file.path for entry in self.entries if entry.new and entry.gone)
        self.entries = [entry for entry in self.entries if not (entry.new and entry.gone)]
        self.entries += [Entry(file, BitMap64, new=True) for file in files]

    def forget(self) -> None:
        """Delete the rows and the claim of the source."""
        assert self.source is not None
        for entry, _ in self.scans():
            self.drop(entry)
        self._properties[property_of(self.source)] = ""

    def discard(self) -> None:
        """Delete the files that no commit refers to."""
        self._delete(self._written)
        self._written = []

    def rewrite(self, entries: Iterable[Entry[F]]) -> None:
        """Write files again without their deleted rows."""
        chosen = set(entries)
        scans = [(entry, scan) for entry, scan in self.scans() if entry in chosen]
        assert self.schema is not None
        names = self.schema.names
        with self.writing() as writer:
            for entry, scan in scans:
                for _, rows in scan.live(names):
                    writer.write(rows)
                self.drop(entry)

    def _fold(self, marks: Callable[[Sequence[Entry[F]]], bool]) -> list[Entry[F]]:
        """Write touched files again, and return the files whose deleted rows are to be marked instead.

        :param marks: decides whether to mark the deleted rows of the given files.
        """
        self.add(())
        for entry in self.entries:
            if not entry.gone and entry.touched and len(entry.dead()) >= self._scan(entry).rows():
                self.drop(entry)
        self.add(())
        touched = [entry for entry in self.entries if entry.touched and not entry.gone]
        old = [entry for entry in touched if not entry.new]
        marked = old if old and marks(old) else []
        if again := [entry for entry in touched if entry.new or not marked]:
            self.rewrite(again)
        return marked

    def _evolve_shared(
        self, source: SourceName, columns: pa.Schema, defaults: Mapping[str, pa.Scalar] | None
    ) -> None:
        """Do what ``evolve`` does, for the columns and the rows of one source."""
        before = self.schema
        if self.claim is None and next(self.scans(), None) is not None:
            raise ConfigurationError(
                f"the table has rows of source {source.name!r}, but lacks the property that records their mirror: another program has removed "
                "it. Delete the rows first (forget)"
            )
        claim, found = evolved(before, self.claim, self._application, columns, self.mode, source, defaults)
        own = list(self.scans())
        others = [(entry, self._scan(entry)) for entry in self.entries if not self._is_own(entry)]
        again = self._alter(found) and bool(found.widened)
        steps = replace(found.steps, schema=found.schema)
        if before is not None and again:
            self._fill(others, {name: name for name in before.names}, replace(steps, added=(), filled={}))
        if before is not None and (again or steps.renamed or steps.filled):
            moved = {name: steps.renamed.get(name, name) for name in claim.own(before).names}
            self._fill(own, {**moved, source.column: source.column}, steps)
        self._properties[property_of(source)] = text_of(claim.evolved(found.own))

    def _fill(
        self, scans: Sequence[tuple[Entry[F], FileScan]], columns: Mapping[str, str], steps: Evolution
    ) -> None:
        """Write all rows again in the new columns.

        :param scans: made before the columns changed.
        :param columns: by a column's name in ``scans``, its new name.
        """
        with self.writing() as writer:
            for entry, scan in scans:
                for _, rows in scan.live(list(columns)):
                    moved = rows.rename_columns(list(columns.values()))
                    for field in steps.added:
                        value = steps.filled.get(field.name, pa.scalar(None)).cast(field.type)
                        column = pa.repeat(value, rows.num_rows)
                        if self.mode == "history":
                            current = pc.fill_null(moved[IS_CURRENT], False).combine_chunks()
                            column = pc.if_else(current, column, pa.scalar(None, field.type))
                        moved = moved.append_column(field, column)
                    writer.write(fitted(moved, steps.schema))
                self.drop(entry)


_SMALL_BYTES: Final = FILE_BYTES // 2
_DEAD_SHARE: Final = 0.1
"""A file with a larger share of deleted rows is written again."""


def is_due(every: int, since: int, version: int) -> bool:
    """Whether upkeep that is due every ``every`` versions is due now.

    :param every: 0: never.
    :param since: the version after the last upkeep.
    """
    return every > 0 and version // every > since // every


def worn(entries: Iterable[Entry[F]]) -> Iterator[Entry[F]]:
    """Yield the files to write again: files with many deleted rows, and small files that are not alone in their partition."""
    found: dict[Hashable, list[Entry[F]]] = {}
    for entry in entries:
        if _has_many_dead(entry) or entry.file.size < _SMALL_BYTES:
            found.setdefault(entry.file.partition, []).append(entry)
    for some in found.values():
        if len(some) > 1 or _has_many_dead(some[0]):
            yield from some


def _has_many_dead(entry: Entry[F]) -> bool:
    return len(entry.dead()) > _DEAD_SHARE * entry.file.rows
