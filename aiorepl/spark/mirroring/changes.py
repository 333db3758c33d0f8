"""Reads a batch's changes of one table in common columns. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.formats.arrow.collected import BEFORE
from aiorepl.history import parquet
from aiorepl.history.opening import open_history
from aiorepl.spark.lake.table import Place
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.reducing import StagedChanges
from aiorepl.spark.mirroring.reduction import is_after
from aiorepl.spark.mirroring.selected import hidden_file
from aiorepl.spark.mirroring.staging import StagedFile
from aiorepl.spark.mirroring.versions import Common
from aiorepl.spark.reading.columns import split_moves
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, reading
from aiorepl.transforms.selection import Selection


@dataclass(frozen=True)
class MirrorChanges(StagedChanges):
    """The changes of one table in a batch.

    :param null: as in ``Common.conform``.
    :param after: leave out the changes up to this position, because the table has these changes already.
    :param selection: the mirror's selection, for files of the history, which have the hidden columns.
    """

    journal: Location
    common: Common
    null: bool
    after: Place | None = None
    selection: Selection | None = None

    def rows(self, file: StagedFile) -> Iterator[pa.RecordBatch]:
        """Read the changes of a file in the common columns."""
        common, version = self.common, file.version
        store = open_history(self.journal) if file.compacted else open_store(self.staging)
        if file.only_truncates:
            yield from map(common.truncates, self._new(self._selected(file, store)))
            return
        names = common.names_in(version, self.keys)
        for batch in self._new(self._selected(file, store)):
            whole = split_moves(batch, names) if names and BEFORE in batch.schema.names else batch
            yield common.conform(whole, version, null=self.null)

    def _selected(self, file: StagedFile, store: Store) -> Iterator[pa.RecordBatch]:
        hidden = (
            None
            if self.selection is None or file.source is None
            else hidden_file(self.selection, file.source)
        )
        rows = changes(file, store)
        return rows if hidden is None else map(hidden.convert, rows)

    def _new(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch if self.after is None else batch.filter(is_after(batch, self.after))
            if rows.num_rows:
                yield rows


def changes(staged: StagedFile, store: Store) -> Iterator[pa.RecordBatch]:
    """Read the changes of a file that belong to its batch, about a row group in memory at a time.

    :param store: the staging folder, or the history if the file is ``compacted``.
    :raises JournalError: the file is missing or damaged, or cannot be read.
    """
    if staged.compacted:
        with reading(store):
            data = parquet.read(store, staged.file)
    else:
        data = staged_store.read(store, staged.file, staged.table)
    whole = staged.first <= staged.file.first[0] and staged.file.last[0] < staged.until
    within = (pc.field("_commit_lsn") >= int(staged.first)) & (pc.field("_commit_lsn") < int(staged.until))
    for batch in staged_store.batches(data):
        wanted = batch if whole else batch.filter(within)
        if wanted.num_rows:
            yield wanted
