"""Keeps at most one row for each key after a change of the key columns, in the mode soft_delete.

The source's rows are unique under their new key, but the target's deleted rows need not be: a deleted row may have the same new
key as a live row, or as another deleted row. A merge would then change all rows of that key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.spark.lake.columns import COMMIT_LSN, ORDINAL
from aiorepl.spark.lake.find import matches
from aiorepl.spark.lake.rows import zeros
from aiorepl.spark.lake.table import DELETED
from aiorepl.spark.lake.transaction import Entry, Transaction

_LIVE: Final = "_aiorepl_live"
_ROW: Final = "_aiorepl_row"


def unite(batch: Transaction[Any], keys: Sequence[str]) -> None:
    """Remove deleted rows that share a key with another row, after a change of the key columns."""
    if batch.is_united(keys):
        return
    batch.set_united(keys)
    scans = list(batch.scans())
    names = list(keys)
    assert batch.schema is not None

    def rows(*, deleted: bool, columns: Sequence[str]) -> Iterator[tuple[Entry[Any], np.ndarray, pa.Table]]:
        for entry, scan in scans:
            for positions, found in scan.live(list(dict.fromkeys([*columns, DELETED]))):
                mask = pc.equal(pc.fill_null(found[DELETED], False), deleted)
                yield entry, positions[mask.to_numpy()], found.filter(mask).select(columns)

    empty = batch.schema.empty_table()
    deleted = pa.concat_tables(
        [empty.select(names), *(zeros(found, names) for *_, found in rows(deleted=True, columns=names))]
    )
    if not deleted.num_rows:
        return
    live = (
        part for *_, found in rows(deleted=False, columns=names) for part in zeros(found, names).to_batches()
    )
    shared = _shared_keys(deleted, live, names)
    if not shared.num_rows:
        return
    found, columns = [empty], batch.schema.names
    for entry, positions, some in rows(deleted=True, columns=columns):
        at, _ = matches(some, shared.select(names).combine_chunks(), names)
        entry.mark(positions[at])
        found.append(some.take(pa.array(at)))
    with batch.writing(keys) as writer:
        writer.write(_survivors(pa.concat_tables(found), shared, names))


def _shared_keys(deleted: pa.Table, live: Iterable[pa.RecordBatch], keys: Sequence[str]) -> pa.Table:
    """Return the keys that a deleted row shares with another row, and in the column ``_LIVE`` whether that row is live.

    Keys with a null are not shared: a null equals no other null.

    :param deleted: the keys of the deleted rows.
    :param live: the keys of the live rows.
    """
    names = list(keys)
    present = reduce(pc.and_, (pc.is_valid(deleted[name]) for name in names))
    counted = deleted.select(names).filter(present).group_by(names).aggregate([([], "count_all")])
    distinct = counted.select(names)
    several = counted.filter(pc.greater(counted["count_all"], 1)).select(names)
    found = [several.append_column(_LIVE, pa.repeat(False, several.num_rows))]
    for batch in live:
        rows = pa.Table.from_batches([batch]).select(names).cast(distinct.schema)
        same = distinct.join(rows, names, join_type="left semi").select(names)
        found.append(same.append_column(_LIVE, pa.repeat(True, same.num_rows)))
    either = pa.concat_tables(found).group_by(names).aggregate([(_LIVE, "any")])
    return either.rename_columns([*names, _LIVE])


def _survivors(rows: pa.Table, shared: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last deleted row of each shared key that no live row has.

    :param rows: all deleted rows with these keys.
    """
    wanted = shared.filter(pc.invert(shared[_LIVE])).select(keys).combine_chunks()
    rows = rows.take(pa.array(matches(rows, wanted, keys)[0]))
    # Rows that one truncate deleted share a position. Their columns decide, so that every attempt keeps the same row.
    others = [field.name for field in rows.schema if _sortable(field.type)]
    order = [(name, "descending") for name in (COMMIT_LSN, ORDINAL)] + [
        (name, "ascending") for name in others
    ]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order))
    numbers = pa.array(range(rows.num_rows), pa.int64())
    numbered = zeros(rows.select(list(keys)), keys).append_column(_ROW, numbers)
    first = numbered.group_by(list(keys)).aggregate([(_ROW, "min")])
    return rows.take(first[f"{_ROW}_min"])


def _sortable(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_string(kind) or kinds.is_decimal(kind))
