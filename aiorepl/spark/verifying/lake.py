"""Reads checksums and hashes of a version of a table, in this process or in a task."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.lsn import LSN
from aiorepl.spark.lake.table import ColumnRange, Rows
from aiorepl.spark.verifying.canonical import joined
from aiorepl.spark.verifying.checksums import ALL, Comparison, LakeRows, LakeSums, Row, Share

COMMIT_LSN: Final = "_commit_lsn"
_DELETED, _IS_CURRENT, _ENDED = "_deleted", "_is_current", "_valid_to_lsn"
MODES: Final = (_DELETED, _IS_CURRENT, _ENDED)
"""The columns that tell which rows exist, in the modes soft_delete and history."""
_LAST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A version of a table in the mode current, soft_delete or history.

    :param end: the journal's end: no change has this LSN or a later one, so a row with such a position counts as different. ``None``
        if the end is not known.
    """

    version: Rows
    end: LSN | None = None

    def schema(self) -> pa.Schema:
        """Return the version's columns."""
        return self.version.schema()

    def sums(self, compared: Comparison, lsn: LSN, files: Collection[str] | None = None) -> LakeSums:
        """Return the checksums of the rows at an LSN.

        :param lsn: an LSN that the version has reached.
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
        """Yield the rows of ranges at an LSN: for each row its range, the row, and whether it has changed since the LSN."""
        for place, row, since in self._rows(compared, lsn, self._within(compared, places), files):
            if place in places and share.has(row.key):
                yield place, row, since

    def keys(self, compared: Comparison, places: Collection[int], wanted: Collection[str]) -> pa.Table:
        """Return the values of the key's columns in the rows of ranges.

        :param wanted: the texts of the keys.
        """
        fields = [self.schema().field(name) for name in compared.keys]
        texts = pa.array(wanted, pa.string())
        found = []
        for batch in self.version.batches(compared.keys, self._within(compared, places)):
            joint = joined(
                [compared.columns[name].texts(batch[name]) for name in compared.keys], batch.num_rows
            )
            found.append(batch.select(compared.keys).filter(pc.is_in(joint, value_set=texts)))
        return pa.Table.from_batches(found, pa.schema(fields)) if found else pa.schema(fields).empty_table()

    def files(self) -> tuple[list[str], int]:
        """Return the files and their total bytes, as ``Rows.files``."""
        return self.version.files()

    def _within(self, compared: Comparison, places: Collection[int]) -> ColumnRange | None:
        """Return one range of the key's first column that spans these ranges."""
        name, bounds = compared.keys[0], compared.bounds
        if not pa.types.is_integer(self.schema().field(name).type):
            return None
        first, last = min(places), max(places)
        least = int(bounds[first - 1]) if first else None
        below = int(bounds[last]) if last < len(bounds) else None
        return None if least is None and below is None else ColumnRange(name, least, below)

    def _rows(
        self, compared: Comparison, lsn: LSN, within: ColumnRange | None, files: Collection[str] | None
    ) -> Iterator[tuple[int, Row, bool]]:
        columns = [*compared.columns, COMMIT_LSN, *compared.modes]
        for batch in self.version.batches(columns, within, files):
            yield from _compared(compared, lsn, self.end, batch)


def _compared(
    compared: Comparison, lsn: LSN, end: LSN | None, batch: pa.RecordBatch
) -> Iterator[tuple[int, Row, bool]]:
    modes, changed = compared.modes, batch[COMMIT_LSN]
    if _IS_CURRENT in modes:
        changed = pc.max_element_wise(changed, batch[_ENDED])
    since = pc.fill_null(pc.greater_equal(changed, int(lsn)), False)
    there = pa.repeat(pa.scalar(True), batch.num_rows)
    if _DELETED in modes:
        there = pc.invert(pc.fill_null(batch[_DELETED], False))
    elif _IS_CURRENT in modes:
        there = pc.fill_null(batch[_IS_CURRENT], False)
    wanted = pc.or_(there, since)
    # If the journal's end is unknown, no position counts as impossible.
    impossible = pc.fill_null(pc.greater(changed, _LAST if end is None else int(end) - 1), False)
    known = zip(since.filter(wanted).to_pylist(), impossible.filter(wanted).to_pylist(), strict=True)
    for (place, row), (late, wrong) in zip(compared.rows(batch.filter(wanted)), known, strict=True):
        if wrong:
            yield place, row._replace(hash=~row.hash), False
        else:
            yield place, row, late
