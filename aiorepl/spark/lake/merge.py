"""Merges reduced changes into a table of any format: finds the table's rows that change, deletes them, and writes the new rows.

A row is replaced only by a newer change, so changes that the table has already change nothing. ``table`` describes the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.spark.lake.columns import COMMIT_LSN, OP
from aiorepl.spark.lake.find import Wanted, matches
from aiorepl.spark.lake.rows import (
    ENDS,
    PLACE,
    before,
    bounded,
    codes,
    ended,
    fitted,
    kept_masks,
    lacking_values,
    of_mode,
    origin_keys,
    places_of,
    replaced,
    typed,
    with_values,
    without,
)
from aiorepl.spark.lake.scan import FileScan
from aiorepl.spark.lake.soft_deletes import unite
from aiorepl.spark.lake.table import (
    DELETED,
    IS_CURRENT,
    KEPT,
    VALID_FROM,
    VALID_TO_LSN,
    Run,
    Truncate,
)
from aiorepl.spark.lake.transaction import Entry, Transaction
from aiorepl.spark.lake.writer import FileWriter

PART_BYTES: Final = 64 * 1024 * 1024
"""The size of the changes that are merged at a time, in bytes."""


def merge(batch: Transaction[Any], run: Run) -> None:
    """Merge the changes of a run, which has one set of key columns."""
    assert batch.schema is not None
    if batch.mode == "soft_delete" and run.parts:
        unite(batch, run.keys)
    scans = list(batch.scans())
    with batch.writing(run.keys) as writer:
        for some in bounded(run.parts, PART_BYTES):
            changes = pa.concat_tables([part.read() for part in some]).combine_chunks()
            _Merge(batch, scans, run.keys, run.truncates, writer).apply(changes)
        if run.truncates and batch.mode != "changelog":
            for entry, scan in scans:
                _truncate(batch, entry, scan, run.truncates, writer)


class _Merge:
    """Merges some changes of a batch: all changes of some keys."""

    def __init__(
        self,
        batch: Transaction[Any],
        scans: Sequence[tuple[Entry[Any], FileScan]],
        keys: Sequence[str],
        truncates: Sequence[Truncate],
        writer: FileWriter[Any, Any],
    ) -> None:
        assert batch.schema is not None
        self._schema: pa.Schema = batch.schema
        self._mode = batch.mode
        self._scans = scans
        self._keys = list(keys)
        self._truncates = truncates
        self._writer = writer
        self._source = batch.source

    def apply(self, changes: pa.Table) -> None:
        if not changes.num_rows:
            return
        if self._source is not None:
            names = pa.repeat(pa.scalar(self._source.name), changes.num_rows)
            changes = changes.append_column(self._source.column, names)
        if self._mode == "changelog":
            self._write(self._fresh(changes))
            return
        changes = of_mode(self._filled(typed(changes, self._schema)), self._mode)
        first = pc.min(changes[COMMIT_LSN]).as_py()
        if self._mode == "history":
            self._versions(changes, first)
        else:
            self._rows(changes, first)

    def _write(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._writer.write(fitted(rows, self._schema))

    def _rows(self, changes: pa.Table, first: int) -> None:
        """Replace and delete rows, in the modes current and soft_delete."""
        masks = kept_masks(changes)
        absent = [name for name in self._schema.names if name not in changes.column_names]
        stale = np.zeros(changes.num_rows, bool)
        sources = np.full(changes.num_rows, -1)
        found: list[pa.Table] = []
        count = 0
        for entry, scan, positions, numbers in self._matched(changes.select(self._keys)):
            older = _older(scan, positions, places_of(changes)[numbers], first)
            stale[numbers[~older]] = True
            entry.mark(positions[older])
            if masks or absent:
                found.append(scan.at(positions[older], [*masks, *absent]))
                sources[numbers[older]] = np.arange(count, count + found[-1].num_rows)
                count += found[-1].num_rows
        if found:
            present = pa.concat_tables(found)
            taken = present.take(pa.array(sources, mask=sources < 0))
            for name, mask in masks.items():
                column = pc.if_else(mask, taken[name].combine_chunks(), changes[name].combine_chunks())
                changes = changes.set_column(
                    changes.column_names.index(name), changes.schema.field(name), column
                )
            for name in absent:
                changes = changes.append_column(self._schema.field(name), taken[name])
        rows = changes.filter(pa.array(~stale))
        self._write(rows if self._mode == "soft_delete" else rows.filter(pc.not_equal(rows[OP], "delete")))

    def _versions(self, changes: pa.Table, first: int) -> None:
        """End versions and add new ones, in the mode history."""
        is_close = pc.equal(changes[OP], "close")
        closing, added = (
            changes.filter(is_close).combine_chunks(),
            changes.filter(pc.invert(is_close)).combine_chunks(),
        )
        # A key's end and its versions may be in different parts, so either of them may be missing here.
        keys = _distinct(changes.select(self._keys))
        closed, of_closed = matches(closing, keys, self._keys)
        close_of = np.full(keys.num_rows, -1)
        close_of[of_closed] = closed
        rows, of_key = matches(added, keys, self._keys)
        identity = _identity(of_key, places_of(added.take(pa.array(rows))))
        known = np.zeros(added.num_rows, bool)
        ends = {
            name: closing[start].combine_chunks()
            for name, start in zip(ENDS, (*PLACE, VALID_FROM), strict=True)
        }
        for entry, scan, positions, numbers in self._matched(keys):
            there = scan.at(positions, [*PLACE, IS_CURRENT])
            current = pc.fill_null(there[IS_CURRENT], False).to_numpy()
            places, at = places_of(there), close_of[numbers]
            ending = current & (at >= 0)
            ending[ending] = before(places[ending], places_of(closing)[at[ending]])
            self._end(
                entry,
                scan,
                positions[ending],
                {name: column.take(pa.array(at[ending])) for name, column in ends.items()},
            )
            if (newest := scan.newest()) is not None and newest < first:
                continue
            same = pc.index_in(_identity(numbers, places), value_set=identity)
            is_known = pc.is_valid(same).to_numpy(zero_copy_only=False)
            number = pc.fill_null(same, 0).to_numpy(zero_copy_only=False).astype(np.int64)
            known[number[is_known]] = True
            ended = pc.is_valid(added[VALID_TO_LSN]).to_numpy()
            # A batch that ended earlier has added this version as the current one. Now its end is known.
            late = is_known & current & ~ending
            late[late] = ended[number[late]]
            values = {name: added[name].combine_chunks().take(pa.array(number[late])) for name in ENDS}
            self._end(entry, scan, positions[late], values, exact=True)
        self._write(added.filter(pa.array(~known)))

    def _end(
        self,
        entry: Entry[Any],
        scan: FileScan,
        positions: np.ndarray,
        ends: dict[str, Any],
        *,
        exact: bool = False,
    ) -> None:
        """End versions.

        :param ends: by column of ``ENDS``, its value for each version.
        :param exact: no truncate ends a version before ``ends``.
        """
        if not len(positions):
            return
        entry.mark(positions)
        rows = scan.at(positions, self._schema.names)
        self._writer.write(_past(rows, ends, () if exact else self._truncates))

    def _matched(self, keys: pa.Table) -> Iterator[tuple[Entry[Any], FileScan, np.ndarray, np.ndarray]]:
        """Yield each file with the positions of its rows that have these keys, and the numbers of the rows' keys."""
        wanted = Wanted(keys)
        for entry, scan in self._scans:
            for positions, numbers in wanted.in_file(scan):
                if len(positions):
                    yield entry, scan, positions, numbers

    def _filled(self, changes: pa.Table) -> pa.Table:
        """Fill in the kept values that the table has under another key. In the mode history, fill in all kept values."""
        lacking = lacking_values(changes, self._mode)
        if not lacking.num_rows:
            return changes
        names = [
            name
            for name in pc.unique(pc.list_flatten(lacking[KEPT])).to_pylist()
            if name in self._schema.names
        ]
        wanted = _distinct(origin_keys(lacking, self._keys))
        history = self._mode == "history"
        columns = list(dict.fromkeys([*self._keys, *names]))
        found = [self._schema.empty_table().select(columns)]
        for _, scan, positions, _ in self._matched(wanted):
            rows = scan.at(positions, [*columns, *((IS_CURRENT,) if history else ())])
            found.append(
                (rows.filter(pc.fill_null(rows[IS_CURRENT], False)) if history else rows).select(columns)
            )
        return with_values(changes, pa.concat_tables(found), self._keys, all_rows=history)

    def _fresh(self, changes: pa.Table) -> pa.Table:
        """Return the changes that a changelog does not have yet."""
        first, last = pc.min(changes[COMMIT_LSN]).as_py(), pc.max(changes[COMMIT_LSN]).as_py()
        identity = [*PLACE, OP]
        for _, scan in self._scans:
            if (newest := scan.newest()) is not None and newest < first:
                continue
            for _, rows in scan.live(identity):
                within = pc.and_(
                    pc.greater_equal(rows[COMMIT_LSN], first), pc.less_equal(rows[COMMIT_LSN], last)
                )
                changes = without(changes, rows.filter(within), identity)
        return changes


def _truncate(
    batch: Transaction[Any],
    entry: Entry[Any],
    scan: FileScan,
    truncates: Sequence[Truncate],
    writer: FileWriter[Any, Any],
) -> None:
    """Apply the truncates to a file's rows, except to rows that a change of the batch has replaced."""
    last = truncates[-1]
    newest = scan.newest()
    if batch.mode == "current" and newest is not None and newest < last.lsn:
        batch.drop(entry)
        return
    assert batch.schema is not None
    names = [*PLACE] if batch.mode == "current" else batch.schema.names
    gone = np.array(entry.marked.to_array(), np.int64)
    for positions, rows in scan.live(names):
        older = before(places_of(rows), np.array([last.place]))
        older &= ~np.isin(positions, gone)
        if batch.mode == "soft_delete":
            older &= ~pc.fill_null(rows[DELETED], False).to_numpy()
        elif batch.mode == "history":
            older &= pc.fill_null(rows[IS_CURRENT], False).to_numpy()
        if not older.any():
            continue
        entry.mark(positions[older])
        if batch.mode == "soft_delete":
            writer.write(_deleted(rows.filter(pa.array(older)), truncates))
        elif batch.mode == "history":
            writer.write(_past(rows.filter(pa.array(older)), _nothing(int(older.sum())), truncates))


def _past(rows: pa.Table, ends: dict[str, Any], truncates: Sequence[Truncate]) -> pa.Table:
    """Return current versions with their ends, as ``ended``."""
    rows = replaced(rows, IS_CURRENT, pa.repeat(pa.scalar(False), rows.num_rows))
    return ended(rows, ends, truncates)


def _deleted(rows: pa.Table, truncates: Sequence[Truncate]) -> pa.Table:
    """Return rows as deleted, each by the first truncate after its last change."""
    places = places_of(rows)
    values = {name: rows[name].combine_chunks() for name in PLACE}
    for truncate in reversed(truncates):
        first = pa.array(before(places, np.array([truncate.place])))
        for name, value in zip(PLACE, truncate.place, strict=True):
            values[name] = pc.if_else(first, pa.scalar(value, pa.int64()), values[name])
    rows = replaced(rows, DELETED, pa.repeat(pa.scalar(True), rows.num_rows))
    return reduce(lambda found, name: replaced(found, name, values[name]), PLACE, rows)


def _distinct(keys: pa.Table) -> pa.Table:
    _, first = np.unique(codes(keys, keys.column_names).to_numpy(), return_index=True)
    return keys.take(pa.array(first)).combine_chunks()


def _older(scan: FileScan, positions: np.ndarray, places: np.ndarray, first: int) -> np.ndarray:
    """Return for each of these rows whether it is older than the change of its key.

    :param places: the positions of the changes.
    :param first: the LSN of the first change.
    """
    newest = scan.newest()
    if newest is not None and newest < first:
        return np.ones(len(positions), bool)
    return before(places_of(scan.at(positions, PLACE)), places)


def _identity(keys: np.ndarray, places: np.ndarray) -> pa.Array:
    """Return the identities of versions, as bytes: the number of the key, and the position."""
    whole = np.ascontiguousarray(np.column_stack([keys.astype(np.int64), places]))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(24), len(whole), [None, pa.py_buffer(whole)])


def _nothing(count: int) -> dict[str, Any]:
    kinds = (pa.int64(), pa.int64(), pa.timestamp("us", tz="UTC"))
    return {name: pa.nulls(count, kind) for name, kind in zip(ENDS, kinds, strict=True)}
