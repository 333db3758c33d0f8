"""Reads checksums and hashes of a version of a Delta table, with deltalake, in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from aiorepl.lsn import LSN
from aiorepl.spark.lake.scanning import scan
from aiorepl.spark.verifying.checksums import Comparison, LakeRows, LakeSums, Row

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

    def sums(self, compared: Comparison, lsn: LSN) -> LakeSums:
        """Return the checksums of the rows at an LSN.

        :param lsn: not after the version's.
        """
        found = LakeSums()
        for place, row, since in self._rows(compared, lsn):
            found.add(place, row, since=since)
        return found

    def rows(self, compared: Comparison, lsn: LSN, places: Collection[int]) -> dict[int, LakeRows]:
        """Return the rows of ranges at an LSN."""
        found = {place: LakeRows() for place in places}
        for place, row, since in self._rows(compared, lsn):
            if place in found:
                found[place].add(row, since=since)
        return found

    def _rows(self, compared: Comparison, lsn: LSN) -> Iterator[tuple[int, Row, bool]]:
        columns = [*compared.columns, COMMIT_LSN, *compared.modes]
        for batch in scan(self._open(), columns).to_batches():
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
