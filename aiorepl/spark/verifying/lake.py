"""Reads checksums and hashes of a version of a Delta table with deltalake, in this process or in a task."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from aiorepl.lsn import LSN
from aiorepl.spark.lake.scanning import files_of, scan
from aiorepl.spark.verifying.checksums import ALL, Comparison, LakeRows, LakeSums, Row, Share

COMMIT_LSN: Final = "_commit_lsn"
_DELETED, _IS_CURRENT, _ENDED = "_deleted", "_is_current", "_valid_to_lsn"
MODES: Final = (_DELETED, _IS_CURRENT, _ENDED)
"""The columns that tell which rows exist, in the modes soft_delete and history."""
_OP: Final = "_op"


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A version of a Delta table in the mode current, soft_delete or history."""

    path: str
    version: int
    storage: Mapping[str, str] | None

    def __repr__(self) -> str:
        return f"<version {self.version} of {self.path}>"

    @classmethod
    def newest(cls, path: str, storage: Mapping[str, str] | None) -> Self:
        """Return the newest version of a table."""
        options = None if storage is None else dict(storage)
        return cls(path, DeltaTable(path, storage_options=options).version(), storage)

    def schema(self) -> pa.Schema:
        """Return its columns."""
        return pa.schema(self._open().schema())

    def sums(self, compared: Comparison, lsn: LSN, files: Collection[str] | None = None) -> LakeSums:
        """Return the checksums of the rows at an LSN.

        :param lsn: not after the version's.
        :param files: only the rows of these files.
        """
        found = LakeSums()
        for place, row, since in self._rows(compared, lsn, None, files):
            found.add(place, row, since=since)
        return found

    def rows(
        self, compared: Comparison, lsn: LSN, places: Collection[int], share: Share = ALL
    ) -> dict[int, LakeRows]:
        """Return the rows of ranges at an LSN."""
        found = {place: LakeRows() for place in places}
        for place, row, since in self.rows_of(compared, lsn, places, share):
            found[place].add(row, since=since)
        return found

    def rows_of(
        self,
        compared: Comparison,
        lsn: LSN,
        places: Collection[int],
        share: Share,
        files: Collection[str] | None = None,
    ) -> Iterator[tuple[int, Row, bool]]:
        """Yield the rows of ranges at an LSN, each with its range, and whether it has changed since."""
        for place, row, since in self._rows(compared, lsn, self._within(compared, places), files):
            if place in places and share.has(row.key):
                yield place, row, since

    def files(self) -> tuple[list[str], int]:
        """Return the files and their total bytes; no files if executors cannot read them."""
        table = self._open()
        sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"]
        return files_of(table), pc.sum(sizes).as_py() or 0

    def _within(self, compared: Comparison, places: Collection[int]) -> pc.Expression | None:
        """Return a condition that selects, by their statistics, the files between the first and the last of these ranges."""
        name, bounds = compared.keys[0], compared.bounds
        if not pa.types.is_integer(self.schema().field(name).type):
            return None
        first, last = min(places), max(places)
        key = pc.field(name)
        wanted = [key >= bounds[first - 1]] if first else []
        wanted += [key < bounds[last]] if last < len(bounds) else []
        return reduce(operator.and_, wanted) if wanted else None

    def _rows(
        self,
        compared: Comparison,
        lsn: LSN,
        condition: pc.Expression | None,
        files: Collection[str] | None,
    ) -> Iterator[tuple[int, Row, bool]]:
        columns = [*compared.columns, COMMIT_LSN, *compared.modes]
        for batch in scan(self._open(), columns, condition, files).to_batches():
            yield from _compared(compared, lsn, batch)

    def _open(self) -> DeltaTable:
        options = None if self.storage is None else dict(self.storage)
        return DeltaTable(self.path, version=self.version, storage_options=options)


def _compared(compared: Comparison, lsn: LSN, batch: pa.RecordBatch) -> Iterator[tuple[int, Row, bool]]:
    modes = compared.modes
    since = pc.fill_null(pc.greater_equal(batch[COMMIT_LSN], int(lsn)), False)
    there = pa.repeat(pa.scalar(True), batch.num_rows)
    if _DELETED in modes:
        there = pc.invert(pc.fill_null(batch[_DELETED], False))
    elif _IS_CURRENT in modes:
        there = pc.fill_null(batch[_IS_CURRENT], False)
        since = pc.or_(since, pc.fill_null(pc.greater_equal(batch[_ENDED], int(lsn)), False))
    wanted = pc.or_(there, since)
    rows = compared.rows(batch.filter(wanted))
    for (place, row), late in zip(rows, since.filter(wanted).to_pylist(), strict=True):
        yield place, row, late


def is_changelog(schema: pa.Schema) -> bool:
    """Return whether the table has a row for each change."""
    return _OP in schema.names
