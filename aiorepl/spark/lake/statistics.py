"""The statistics of a data file, collected while it is written. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.spark.lake.columns import COMMIT_LSN, ORDINAL

_COLUMNS: Final = 32
"""The number of columns that have statistics, counted from the first column."""
CHARACTERS: Final = 32
_AFTER_ALL: Final = "\U0010ffff"

Bounds = tuple[Any, Any]
"""A minimum and a maximum, in the form of ``comparable``."""


def comparable(values: Any) -> Any:
    """Return an array whose Python values can be compared with ``Bounds``: days and microseconds since 1970 for dates and times."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def shortened(text: str, *, upper: bool = False) -> str | None:
    """Return a short text that bounds the same values from below, or with ``upper`` from above; ``None`` if there is none."""
    if len(text) <= CHARACTERS:
        return text
    if not upper:
        return text[:CHARACTERS]
    return None if _AFTER_ALL in text else text[:CHARACTERS] + _AFTER_ALL


class Collector:
    """Collects the statistics of one file.

    :ivar rows: the number of rows.
    :ivar nulls: by column, the number of nulls.

    :param keys: columns that always have statistics.
    :param has_bounds: whether columns of a type have bounds.
    """

    def __init__(
        self, schema: pa.Schema, keys: Iterable[str], has_bounds: Callable[[pa.DataType], bool]
    ) -> None:
        wanted = {*schema.names[:_COLUMNS], COMMIT_LSN, ORDINAL, *keys}
        self.fields: list[pa.Field] = [
            field for field in schema if field.name in wanted and not pa.types.is_nested(field.type)
        ]
        self.rows = 0
        self.nulls = dict.fromkeys((field.name for field in self.fields), 0)
        self._bounds: dict[str, Bounds | None] = {
            field.name: None for field in self.fields if has_bounds(field.type)
        }

    @property
    def bounds(self) -> dict[str, Bounds]:
        """The bounds by column. A column without values, or with a value that is not finite, has none."""
        return {name: found for name, found in self._bounds.items() if found is not None}

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for field in self.fields:
            column, name = rows[field.name], field.name
            self.nulls[name] += column.null_count
            if name not in self._bounds or column.null_count == len(column):
                continue
            if pa.types.is_floating(field.type) and not pc.all(pc.is_finite(column)).as_py():
                del self._bounds[name]
                continue
            found = pc.min_max(comparable(column)).as_py()
            present = self._bounds[name]
            if present is None:
                self._bounds[name] = found["min"], found["max"]
            else:
                self._bounds[name] = min(present[0], found["min"]), max(present[1], found["max"])
