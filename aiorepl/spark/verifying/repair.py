"""Repairs a lake: conditions of snapshots that read differing rows again, and deletes of rows that the source does not have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.types import META
from aiorepl.lsn import LSN
from aiorepl.snapshot.conditions import require_simple
from aiorepl.spark.lake.columns import ADDED, COMMIT_LSN, COMMIT_TS, OP, ORDINAL, XID
from aiorepl.spark.lake.table import Mode, Run
from aiorepl.spark.mirroring.reducing import PART_BYTES
from aiorepl.spark.mirroring.reduction import reduce_changes
from aiorepl.spark.verifying.checksums import Row
from aiorepl.wire.commands import identifier, literal, literals

_MOST_KEYS: Final = 500


def conditions(columns: Sequence[str], rows: Sequence[Row], *, ordered: bool) -> list[str | None]:
    """Return conditions that select these rows of a range, and possibly others between them.

    :param columns: the key's columns.
    :param rows: rows of the source.
    :param ordered: whether the source sorts the first column's values in the order of ``Row.order``.
    :returns: the conditions; ``None`` selects all rows, if no condition can name the keys.
    """
    name = identifier(columns[0])
    texts = {row.first: row.order for row in rows if row.first is not None}
    values = sorted(texts, key=lambda text: (texts[text], text))
    if not values:
        return []
    if ordered:
        found = [f"{name} >= {literal(values[0])} AND {name} <= {literal(values[-1])}"]
    else:
        found = [
            f"{name} IN ({literals(values[at : at + _MOST_KEYS])})"
            for at in range(0, len(values), _MOST_KEYS)
        ]
    for other, of_rows in zip(columns[1:], zip(*(row.others for row in rows), strict=True), strict=False):
        listed = {value for value in of_rows if value is not None}
        if len(listed) <= _MOST_KEYS and None not in of_rows:
            more = f"{identifier(other)} IN ({literals(sorted(listed))})"
            found = [f"{each} AND {more}" for each in found]
    try:
        for each in found:
            require_simple(each)
    except ConfigurationError:
        return [None]
    return list(found)


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
