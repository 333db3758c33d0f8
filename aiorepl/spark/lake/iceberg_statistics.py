"""The statistics of data files in the manifests of an Iceberg table: exact ones, or none. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import pyarrow as pa
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from aiorepl.spark.lake.statistics import Bounds, Collector, shortened

_EPOCH: Final = date(1970, 1, 1)
_DAYS: Final = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_DAY: Final = 86_400_000_000
_INTEGERS: Final = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)
_FLOATS: Final = (FloatType, DoubleType)


def has_bounds(kind: pa.DataType) -> bool:
    """Whether columns of a type have bounds."""
    kinds = pa.types
    return bool(
        kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_decimal(kind)
        or kinds.is_string(kind)
        or kinds.is_date32(kind)
        or kinds.is_timestamp(kind)
    )


def statistics_of(statistics: Collector, fields: Mapping[str, NestedField]) -> dict[str, Any]:
    """Return the statistics of a file as arguments of ``DataFile``.

    :param fields: by name, the table's fields.
    """
    least, greatest = {}, {}
    for name, found in statistics.bounds.items():
        kind: Any = fields[name].field_type
        values = _storable(found[0], kind), _storable(found[1], kind, upper=True)
        if None not in values:
            number = fields[name].field_id
            least[number], greatest[number] = (to_bytes(kind, value) for value in values)
    numbers = {fields[field.name].field_id: field for field in statistics.fields}
    return {
        "record_count": statistics.rows,
        "value_counts": dict.fromkeys(numbers, statistics.rows),
        "null_value_counts": {number: statistics.nulls[field.name] for number, field in numbers.items()},
        # A column with bounds has no NaN.
        "nan_value_counts": {
            number: 0
            for number, field in numbers.items()
            if pa.types.is_floating(field.type) and number in least
        },
        "lower_bounds": least,
        "upper_bounds": greatest,
    }


def bounds(file: DataFile, field: NestedField) -> Bounds | None:
    """Return the least and the greatest value of a column; ``None`` if they are unknown, or cannot be read."""
    found = [(each or {}).get(field.field_id) for each in (file.lower_bounds, file.upper_bounds)]
    try:
        least, greatest = (None if data is None else _parsed(data, field.field_type) for data in found)
    except ValueError:
        return None
    return None if least is None or greatest is None else (least, greatest)


def _storable(value: Any, kind: Any, *, upper: bool = False) -> Any:
    """Return a bound in a form that every reader can use; ``None`` if there is none."""
    if isinstance(value, str):
        return shortened(value, upper=upper)
    if isinstance(value, float) and value == 0:
        # Some readers count -0 as less than 0, so a zero gets the sign that includes both.
        return 0.0 if upper else -0.0
    if isinstance(kind, DateType):
        return value if _DAYS[0] <= value <= _DAYS[1] else None
    if isinstance(kind, (TimestampType, TimestamptzType)):
        return value if _DAYS[0] * _DAY <= value < (_DAYS[1] + 1) * _DAY else None
    return value


def _parsed(data: bytes, kind: Any) -> Any:
    # The column may have been narrower when the file was written.
    if isinstance(kind, _INTEGERS):
        return int.from_bytes(data, "little", signed=True)
    if isinstance(kind, _FLOATS):
        return from_bytes(FloatType() if len(data) == 4 else DoubleType(), data)
    if isinstance(kind, (DecimalType, StringType)):
        return from_bytes(kind, data)
    return None
