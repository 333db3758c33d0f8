"""Deletes the rows of a lake whose keys the source does not have."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.formats.arrow.types import META
from aiorepl.lsn import LSN
from aiorepl.spark.lake.columns import ADDED, COMMIT_LSN, COMMIT_TS, OP, ORDINAL, XID
from aiorepl.spark.lake.table import Mode, Run
from aiorepl.spark.mirroring.reducing import PART_BYTES
from aiorepl.spark.mirroring.reduction import reduce_changes

LAST_ORDINAL: Final = 2**62
"""An ordinal that is greater than the ordinals of all changes of a transaction."""


def removal(schema: pa.Schema, keys: pa.Table, mode: Mode, lsn: LSN) -> Run:
    """Return deletes directly before an LSN. Rows that were changed at that LSN or later stay.

    :param schema: the lake's columns.
    :param keys: the values of the key's columns. A row with a null or NaN among these values stays: no change has
        such a key.
    """
    for name in keys.column_names:
        keys = keys.filter(pc.invert(pc.is_null(keys[name], nan_is_null=True)))
    keys = keys.group_by(keys.column_names).aggregate([])
    count = keys.num_rows
    ours = {field.name for field in ADDED[mode]}
    columns = {
        field.name: keys[field.name] if field.name in keys.column_names else pa.nulls(count, field.type)
        for field in schema
        if field.name not in ours
    }
    values = {OP: "delete", COMMIT_LSN: lsn - 1, ORDINAL: LAST_ORDINAL, XID: 0, COMMIT_TS: datetime.now(UTC)}
    for field in META:
        columns[field.name] = pa.repeat(pa.scalar(values.get(field.name), field.type), count)
    reduced = reduce_changes(pa.table(columns), keys.column_names, mode)
    return Run(tuple(keys.column_names), reduced.parts(PART_BYTES))
