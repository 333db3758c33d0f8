"""Reduces the changes of some keys to the rows that a table merges. Pure pyarrow; runs on the driver or on executors.

Input: a batch's changes of one table, including truncates, in the columns of the source and in any order. Output, by mode:

    current, soft_delete   the last change of each key
    history                each version of each row, with its end if that is in the batch; and for each key a row with ``_op``
                           close, at the position of its first change, where the target's current version ends
    changelog              the changes as they are

A value that was not sent is replaced by the last value that was sent in the batch. If there is none, the target has the
value: ``_kept`` names the column. If the row has moved, ``_origin`` is the key under which the target has the value. All
changes of a key, and of keys that are linked by a move with unsent values, must be in the same input; ``lake.table``
describes the output's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from functools import reduce as fold
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.constants import texts
from aiorepl.spark.lake.columns import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED, XID
from aiorepl.spark.lake.rows import ENDS, codes, ended, replaced, zeros
from aiorepl.spark.lake.table import (
    KEPT,
    ORIGIN,
    VALID_FROM,
    VALID_TO,
    VALID_TO_LSN,
    VALID_TO_ORDINAL,
    Mode,
    Part,
    Place,
    Truncate,
)
from aiorepl.spark.mirroring.unchanged import Kept, Row, Step, resolve

CLOSE: Final = "close"
_TRUNCATE: Final = texts(("truncate",))
_META: Final = (OP, COMMIT_LSN, ORDINAL, XID, COMMIT_TS, UNCHANGED)


@dataclass(frozen=True, slots=True)
class Reduced:
    """The reduced changes, and all truncates, ascending."""

    table: pa.Table
    truncates: tuple[Truncate, ...]

    def parts(self, size: int) -> list[Part]:
        """Slice the rows into parts of about ``size`` bytes."""
        rows, total = self.table.num_rows, self.table.nbytes
        count = max(1, min(rows, -(-total // size)))
        step = -(-rows // count) if rows else 1
        return [
            Part(each.nbytes, partial(_itself, each))
            for each in (self.table.slice(start, step) for start in range(0, rows, step))
        ]


def reduce_changes(
    changes: pa.Table, keys: Sequence[str], mode: Mode, truncates: Sequence[Truncate] = ()
) -> Reduced:
    """Reduce changes to the rows that a table merges.

    :param truncates: further truncates, which are not in ``changes``.
    :raises ConfigurationError: a key is null or NaN.
    """
    changes = _in_commit_order(changes)
    gone = pc.equal(changes[OP], "truncate")
    found = tuple(sorted({*truncates, *truncates_of(changes)}))
    if mode == "changelog":
        return Reduced(changes, found)
    rows = changes.filter(pc.invert(gone)).combine_chunks()
    if mode == "current" and found:
        rows = rows.filter(is_after(rows, found[-1].place)).combine_chunks()
    _require_keys(rows, keys)
    rows = zeros(rows, keys)
    if mode == "history":
        return Reduced(_Timeline(rows, keys).versions(found), found)
    if mode == "current" and not pc.any(_incomplete(rows)).as_py():
        return Reduced(_last(rows, keys), found)
    return Reduced(_Timeline(rows, keys).last(found, deletes=mode == "soft_delete"), found)


def linked_keys(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the old and the new key of each row that moved and lacks a value, with the position of the move.

    The old key is missing if the move's delete is not among these changes.
    """
    moves = changes.filter(pc.and_(pc.equal(changes[OP], "insert"), _incomplete(changes)))
    return keys_at(changes, keys, set(places(moves)))


def keys_at(changes: pa.Table, keys: Sequence[str], wanted: set[Place]) -> pa.Table:
    if not wanted:
        # Not a slice, whose pickle has all of the rows' memory.
        return pa.schema([changes.schema.field(name) for name in (*keys, COMMIT_LSN, ORDINAL)]).empty_table()
    mask = pa.array([place in wanted for place in _all_places(changes)], pa.bool_())
    return changes.filter(mask).select([*keys, COMMIT_LSN, ORDINAL])


def places(changes: Any) -> list[Place]:
    return list(_all_places(changes))


def truncates_of(changes: Any) -> Iterator[Truncate]:
    """Yield the truncates among changes."""
    # ``is_in``, because a comparison with a constant would import pandas.
    changes = changes.filter(pc.is_in(changes[OP], value_set=_TRUNCATE))
    times = changes[COMMIT_TS].to_pylist() if COMMIT_TS in changes.schema.names else [None] * changes.num_rows
    for (lsn, ordinal), time in zip(_all_places(changes), times, strict=True):
        yield Truncate(lsn, ordinal, time)


def _all_places(changes: Any) -> Iterator[Place]:
    return zip(changes[COMMIT_LSN].to_pylist(), changes[ORDINAL].to_pylist(), strict=True)


def _itself(table: pa.Table) -> pa.Table:
    return table


def _in_commit_order(changes: pa.Table) -> pa.Table:
    """Sort changes by position, a delete before an insert; usually they are sorted already."""
    order = pa.table(
        {
            "lsn": changes[COMMIT_LSN],
            "ordinal": changes[ORDINAL],
            "new": pc.not_equal(changes[OP], "delete").cast(pa.int8()),
        }
    )
    before, after = order.slice(0, max(0, order.num_rows - 1)), order.slice(1)
    wrong = pa.scalar(False)
    for name in reversed(order.column_names):
        wrong = pc.or_(
            pc.greater(before[name], after[name]), pc.and_(pc.equal(before[name], after[name]), wrong)
        )
    if order.num_rows < 2 or not pc.any(wrong).as_py():
        return changes
    return changes.take(pc.sort_indices(order, [(name, "ascending") for name in order.column_names]))


def _require_keys(rows: pa.Table, keys: Sequence[str]) -> None:
    for name in keys:
        if pa.types.is_nested(rows.schema.field(name).type):
            raise ConfigurationError(
                f"the key column {name!r} is {rows.schema.field(name).type}, which cannot identify rows: name other columns"
            )
        if rows[name].null_count:
            raise ConfigurationError(
                f"a change has null in the key column {name!r}: name columns of the table's replica identity as keys, which are "
                "never null; under replica identity FULL set the source's option keys, too"
            )
        if pa.types.is_floating(rows[name].type) and pc.any(pc.is_nan(rows[name])).as_py():
            # NaN = NaN is true in PostgreSQL, but not in Python and pyiceberg.
            raise ConfigurationError(
                f"a change has NaN in the key column {name!r}, by which a row cannot be found: name other columns as keys"
            )


def _incomplete(rows: pa.Table) -> Any:
    """Return for each row whether some value was not sent."""
    return pc.fill_null(pc.greater(pc.list_value_length(rows[UNCHANGED]), 0), False)


def is_after(rows: Any, place: Place) -> Any:
    """Return for each change whether it comes after a position."""
    lsn, ordinal = place
    return pc.or_(
        pc.greater(rows[COMMIT_LSN], lsn),
        pc.and_(pc.equal(rows[COMMIT_LSN], lsn), pc.greater(rows[ORDINAL], ordinal)),
    )


def _last(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last change of each key, if every value was sent."""
    numbered = pa.table({"group": codes(rows, keys), "row": _range(rows.num_rows)})
    last = numbered.group_by("group").aggregate([("row", "max")])["row_max"]
    found = rows.take(last.combine_chunks()) if rows.num_rows else rows
    return _output(found, keys)


def _output(rows: pa.Table, keys: Sequence[str], kept: pa.Array = None, origin: pa.Array = None) -> pa.Table:
    count = rows.num_rows
    columns = rows.drop_columns([name for name in (XID, COMMIT_TS, UNCHANGED) if name in rows.column_names])
    columns = columns.append_column(KEPT, pa.nulls(count, pa.list_(pa.string())) if kept is None else kept)
    return columns.append_column(ORIGIN, _no_origin(rows, keys) if origin is None else origin)


def _no_origin(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    return pa.nulls(rows.num_rows, pa.struct([pa.field(name, rows.schema.field(name).type) for name in keys]))


def _range(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


class _Timeline:
    """All changes of some keys, ordered by key and position."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        groups = codes(rows, keys) if rows.num_rows else pa.array([], pa.int64())
        order = pc.sort_indices(
            pa.table({"group": groups, "row": _range(rows.num_rows)}),
            [("group", "ascending"), ("row", "ascending")],
        )
        self._keys = keys
        self._rows = rows.take(order).combine_chunks()
        self._groups = groups.take(order)
        count = rows.num_rows
        changes = pc.not_equal(self._groups.slice(1), self._groups.slice(0, max(0, count - 1)))
        edge = pa.array([True] if count else [])
        self._first = pa.concat_arrays([edge.cast(pa.bool_()), changes])
        self._is_last = pa.concat_arrays([changes, edge.cast(pa.bool_())])
        self._deleted = pc.equal(self._rows[OP].combine_chunks(), "delete")
        self._numbers = _range(count)

    def last(self, truncates: Sequence[Truncate], *, deletes: bool) -> pa.Table:
        """Return the last change of each key.

        :param deletes: fill deletes with the deleted rows' values, and turn truncated rows into deletes.
        """
        values, kept, origin = self._whole(deletes=deletes)
        if not deletes:
            # Keep no value of the target for a deleted row, nor for any row if the target is truncated.
            none = self._deleted if not truncates else pa.array([True] * len(self._deleted), pa.bool_())
            kept = {name: pc.and_(mask, pc.invert(none)) for name, mask in kept.items()}
        rows = self._with(values, kept, origin).filter(self._is_last)
        return _truncated(rows, truncates) if deletes else rows

    def versions(self, truncates: Sequence[Truncate]) -> pa.Table:
        """Return each version of each row, and the rows that end the target's versions."""
        values, kept, origin = self._whole(deletes=False)
        ends = {}
        names = {VALID_TO_LSN: COMMIT_LSN, VALID_TO_ORDINAL: ORDINAL, VALID_TO: COMMIT_TS}
        following = pc.if_else(self._is_last, pa.scalar(None, pa.int64()), pc.add(self._numbers, 1))
        for name, source in names.items():
            ends[name] = self._rows[source].combine_chunks().take(following)
        starts = self._rows[COMMIT_TS].combine_chunks()
        rows = self._with(values, kept, origin)
        for name, array in {VALID_FROM: starts, **ends}.items():
            rows = rows.append_column(name, array)
        closing = rows.filter(self._first)
        for name in set(closing.column_names) - {*self._keys, COMMIT_LSN, ORDINAL, VALID_FROM}:
            value = CLOSE if name == OP else None
            array = pa.repeat(pa.scalar(value, closing.schema.field(name).type), closing.num_rows)
            closing = replaced(closing, name, array)
        versions = rows.filter(pc.invert(self._deleted))
        if truncates:
            ends = {name: versions[name].combine_chunks() for name in ENDS}
            versions = ended(versions, ends, truncates)
        return pa.concat_tables([versions, closing])

    def _whole(self, *, deletes: bool) -> tuple[dict[str, pa.Array], dict[str, pa.Array], pa.Array]:
        """Fill the columns that lack values: take each value from the latest earlier change of the key that has it.

        :returns: three parts. The values of each column. For each column, the mask of the rows that keep the target's value.
            For each row, the number of a row whose key the target has for it; null if that is the row's own key.
        """
        rows = self._rows
        lacking = _lacking(rows)
        columns = [
            name
            for name in rows.column_names
            if name in lacking or (deletes and name not in _META and name not in self._keys)
        ]
        start = pc.fill_null_forward(pc.if_else(self._first, self._numbers, pa.scalar(None, pa.int64())))
        sources: dict[str, pa.Array] = {}
        for name in columns:
            unsent = pc.or_(self._deleted, _among(lacking.get(name), self._numbers))
            sent = pc.fill_null_forward(pc.if_else(unsent, pa.scalar(None, pa.int64()), self._numbers))
            found = pc.fill_null(pc.greater_equal(sent, start), False)
            sources[name] = pc.if_else(found, sent, pa.scalar(None, pa.int64()))
        kept = {name: pc.is_null(source) for name, source in sources.items()}
        origin = self._follow_moves(sources, kept, lacking)
        values = {name: rows[name].combine_chunks().take(source) for name, source in sources.items()}
        return values, kept, origin

    def _follow_moves(
        self, sources: dict[str, pa.Array], kept: dict[str, pa.Array], lacking: dict[str, pa.Array]
    ) -> pa.Array | None:
        """Correct ``sources`` and ``kept`` for keys between which a row moved, if a value of the row was not sent."""
        rows = self._rows
        moves = rows.filter(pc.and_(pc.equal(rows[OP], "insert"), _incomplete(rows)))
        if not moves.num_rows:
            return None
        wanted = set(places(moves))
        groups = self._groups.to_pylist()
        at = list(_all_places(rows))
        linked = {group for group, place in zip(groups, at, strict=True) if place in wanted}
        key_rows: dict[int, int] = {}
        numbers = [number for number, group in enumerate(groups) if group in linked]
        for number in numbers:
            key_rows.setdefault(groups[number], number)
        numbers.sort(key=lambda number: (at[number], not self._deleted[number].as_py()))
        columns = list(sources)
        unsent = {name: set(lacking[name].to_pylist()) if name in lacking else set() for name in columns}
        ops = rows[OP].to_pylist()
        steps = (
            Step(
                ops[number],
                at[number],
                groups[number],
                {name: number for name in columns if number not in unsent[name]},
            )
            for number in numbers
        )
        found: dict[int, Row] = dict(zip(numbers, resolve(steps, columns), strict=True))
        origin: list[int | None] = [None] * len(groups)
        for name in columns:
            source, mask = sources[name].to_pylist(), kept[name].to_pylist()
            for number, row in found.items():
                value = row[name]
                mask[number] = isinstance(value, Kept)
                source[number] = None if isinstance(value, Kept) else value
                if isinstance(value, Kept) and value.key != groups[number]:
                    origin[number] = key_rows[value.key]
            sources[name], kept[name] = pa.array(source, pa.int64()), pa.array(mask, pa.bool_())
        return pa.array(origin, pa.int64())

    def _with(
        self, values: dict[str, pa.Array], kept: dict[str, pa.Array], origin: pa.Array | None
    ) -> pa.Table:
        rows = self._rows
        for name, array in values.items():
            rows = replaced(rows, name, array)
        moved = None
        if origin is not None:
            arrays = [rows[name].combine_chunks().take(origin) for name in self._keys]
            moved = pa.StructArray.from_arrays(arrays, list(self._keys), mask=pc.is_null(origin))
        return _output(rows, self._keys, _names(kept, rows.num_rows), moved)


def _lacking(rows: pa.Table) -> dict[str, pa.Array]:
    """Return, by column, the numbers of the rows whose value was not sent."""
    unchanged = rows[UNCHANGED].combine_chunks()
    parents, names = pc.list_parent_indices(unchanged), pc.list_flatten(unchanged)
    return {
        name: parents.filter(pc.equal(names, name)).cast(pa.int64())
        for name in pc.unique(names).to_pylist()
        if name in rows.column_names
    }


def _among(wanted: pa.Array | None, numbers: pa.Array) -> Any:
    return pc.is_in(numbers, value_set=pa.array([], pa.int64()) if wanted is None else wanted)


def _names(masks: dict[str, pa.Array], count: int) -> pa.Array:
    """Return for each row the list of the columns whose mask is true."""
    if not masks:
        return pa.nulls(count, pa.list_(pa.string()))
    numbers = _range(count)
    pairs = pa.concat_tables(
        pa.table({"row": numbers.filter(mask), "name": pa.array([name] * pc.sum(mask).as_py(), pa.string())})
        if count
        else pa.table({"row": numbers, "name": pa.array([], pa.string())})
        for name, mask in masks.items()
    )
    pairs = pairs.sort_by("row")
    counts = fold(pc.add, (mask.cast(pa.int32()) for mask in masks.values()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    return pa.ListArray.from_arrays(offsets, pairs["name"].combine_chunks())


def _truncated(rows: pa.Table, truncates: Sequence[Truncate]) -> pa.Table:
    """Turn rows that a truncate removed into deletes at the position of the truncate."""
    for truncate in truncates:
        gone = pc.and_(pc.invert(is_after(rows, truncate.place)), pc.not_equal(rows[OP], "delete"))
        for name, value in ((COMMIT_LSN, truncate.lsn), (ORDINAL, truncate.ordinal), (OP, "delete")):
            rows = replaced(
                rows, name, pc.if_else(gone, pa.scalar(value, rows.schema.field(name).type), rows[name])
            )
    return rows
