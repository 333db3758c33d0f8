"""Merges reduced changes into rows in memory, for formats whose library has no MERGE. Pure; the same result as ``statements``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.spark.lake.columns import COMMIT_LSN, ORDINAL
from aiorepl.spark.lake.rows import Key, fitted, kept_masks, keys_of
from aiorepl.spark.lake.table import (
    DELETED,
    IS_CURRENT,
    VALID_FROM,
    VALID_TO,
    VALID_TO_LSN,
    VALID_TO_ORDINAL,
    Mode,
    Place,
    Truncate,
)


def merged(
    present: pa.Table,
    changes: pa.Table,
    keys: Sequence[str],
    mode: Mode,
    truncates: Sequence[Truncate],
    *,
    rest: bool,
) -> pa.Table:
    """Return the rows that replace the present ones.

    :param present: rows of the target: all rows whose key is in ``changes``, in the mode history all their versions; if ``rest``,
        also all rows older than the last truncate. May contain others.
    :param changes: with the mode's columns, and with the kept values of other keys filled in.
    :param rest: as in ``statements.merge``.
    """
    both = pa.concat_tables([present, fitted(changes, present.schema)]).combine_chunks()
    run = _Merge(both, present.num_rows, changes["_op"].to_pylist(), keys, truncates)
    if mode == "history":
        run.versions(rest=rest)
    else:
        run.rows(mode, kept_masks(changes), rest=rest)
    return run.result()


class _Merge:
    """Collects which present rows and which changes remain, and the values that replace theirs."""

    def __init__(
        self, both: pa.Table, count: int, ops: list[str], keys: Sequence[str], truncates: Sequence[Truncate]
    ) -> None:
        self._both = both
        self._count = count
        self._ops = ops
        self._truncates = truncates
        self._keys: list[Key] = list(keys_of(both, keys))
        # A row that another writer wrote has no position, and counts as older than every change.
        positions = (both[name].fill_null(0).to_pylist() for name in (COMMIT_LSN, ORDINAL))
        self._places: list[Place] = list(zip(*positions, strict=True))
        self._kept: list[int] = []
        self._from: dict[str, dict[int, int]] = {}
        self._values: dict[str, dict[int, Any]] = {}

    def rows(self, mode: Mode, masks: dict[str, pa.Array], *, rest: bool) -> None:
        there: dict[Key, list[int]] = {}
        for row in range(self._count):
            there.setdefault(self._keys[row], []).append(row)
        flags = {name: mask.to_pylist() for name, mask in masks.items()}
        gone: set[int] = set()
        matched: set[int] = set()
        for number, op in enumerate(self._ops):
            change = self._count + number
            # Only a table that another program or an earlier version has written can have a key twice.
            present = there.get(self._keys[change], ())
            matched.update(present)
            older = [row for row in present if self._places[row] < self._places[change]]
            gone.update(older)
            if len(older) < len(present) or (mode == "current" and op == "delete"):
                continue
            self._kept.append(change)
            for name, flag in flags.items():
                if older and flag[number]:
                    self._from.setdefault(name, {})[change] = older[-1]
        deleted = self._both[DELETED].to_pylist() if mode == "soft_delete" else []
        for row in range(self._count):
            truncate = self._truncate_after(row) if rest and row not in matched else None
            if row in gone or (truncate is not None and mode == "current"):
                continue
            self._kept.append(row)
            if truncate is not None and not deleted[row]:
                self._set(row, {DELETED: True, COMMIT_LSN: truncate.lsn, ORDINAL: truncate.ordinal})

    def versions(self, *, rest: bool) -> None:
        current = self._both[IS_CURRENT].to_pylist()
        times = self._both[VALID_FROM].to_pylist()
        # Between two parts of a batch, a key may have two: the version that ends, and the next one.
        open_rows: dict[Key, list[int]] = {}
        for row in range(self._count):
            if current[row]:
                open_rows.setdefault(self._keys[row], []).append(row)
        known = {(self._keys[row], self._places[row]): row for row in range(self._count)}
        ends = list(
            zip(
                *(self._both[name].to_pylist() for name in (VALID_TO_LSN, VALID_TO_ORDINAL, VALID_TO)),
                strict=True,
            )
        )
        self._kept.extend(range(self._count))
        ended: set[int] = set()
        for number, op in enumerate(self._ops):
            change = self._count + number
            if op != "close":
                there = known.get((self._keys[change], self._places[change]))
                if there is None:
                    self._kept.append(change)
                elif current[there] and not current[change]:
                    # An earlier attempt of this batch, with an earlier end, has merged this version already.
                    self._end(there, Truncate(*ends[change]))
                    ended.add(there)
                continue
            for row in open_rows.get(self._keys[change], ()):
                if self._places[row] < self._places[change]:
                    truncate = self._truncate_after(row)
                    end = Truncate(*self._places[change], times[change])
                    self._end(row, end if truncate is None or end.place < truncate.place else truncate)
                    ended.add(row)
        for row in (row for rows in open_rows.values() for row in rows):
            truncate = self._truncate_after(row) if rest and row not in ended else None
            if truncate is not None:
                self._end(row, truncate)

    def result(self) -> pa.Table:
        kept = pa.array(self._kept, pa.int64())
        arrays = []
        for field in self._both.schema:
            sources, values = self._from.get(field.name), self._values.get(field.name)
            rows = (
                kept
                if sources is None
                else pa.array([sources.get(row, row) for row in self._kept], pa.int64())
            )
            column = self._both[field.name].take(rows)
            if values is not None:
                own = pa.array([values.get(row) for row in self._kept], field.type)
                column = pc.if_else(pa.array([row in values for row in self._kept]), own, column)
            arrays.append(column)
        return pa.table(arrays, schema=self._both.schema)

    def _truncate_after(self, row: int) -> Truncate | None:
        return next((each for each in self._truncates if self._places[row] < each.place), None)

    def _end(self, row: int, end: Truncate) -> None:
        self._set(
            row,
            {IS_CURRENT: False, VALID_TO: end.time, VALID_TO_LSN: end.lsn, VALID_TO_ORDINAL: end.ordinal},
        )

    def _set(self, row: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._values.setdefault(name, {})[row] = value
