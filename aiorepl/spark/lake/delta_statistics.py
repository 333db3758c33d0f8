"""The statistics of data files in the log of a Delta table: exact ones, or none. Pure.

deltalake writes the minima and maxima of decimals as floating-point numbers, which have 15 exact digits, and readers skip files
by them. So longer decimals have no statistics here, and other programs' statistics of them are neither used nor kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import orjson
import pyarrow as pa

from aiorepl.spark.lake.statistics import Bounds, Collector, shortened

_EXACT_DIGITS: Final = 15
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = 999


def exact(kind: pa.DataType) -> bool:
    """Whether deltalake writes exact statistics of a type."""
    if pa.types.is_struct(kind):
        return all(exact(field.type) for field in kind)
    return not pa.types.is_decimal(kind) or kind.precision <= _EXACT_DIGITS


def bounds(statistics: Mapping[str, Any], name: str, kind: pa.DataType) -> Bounds | None:
    """Return the least and the greatest value of a column; ``None`` if they are unknown, or cannot be trusted."""
    if not exact(kind):
        return None
    least, greatest = (statistics.get(each, {}).get(name) for each in ("minValues", "maxValues"))
    if least is None or greatest is None:
        return None
    try:
        return _parsed(least, kind), _parsed(greatest, kind, upper=True)
    except (ValueError, OverflowError):
        return None


def without_rounded(add: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any] | None:
    """Return an add action without the bounds that may be rounded; ``None`` if no bound may be."""
    names = [field.name for field in schema if not exact(field.type)]
    if not names or not add.get("stats"):
        return None
    found = json.loads(add["stats"])
    wrong = [
        each for each in ("minValues", "maxValues") if any(name in found.get(each, {}) for name in names)
    ]
    if not wrong:
        return None
    for each in wrong:
        found[each] = {name: value for name, value in found[each].items() if name not in names}
    return {**add, "stats": json.dumps(found)}


def json_of(statistics: Collector) -> str:
    """Return the statistics of a file as the log has them."""
    least, greatest = {}, {}
    kinds = {field.name: field.type for field in statistics.fields}
    for name, found in statistics.bounds.items():
        texts = _text(found[0], kinds[name]), _text(found[1], kinds[name], upper=True)
        if texts[0] is not None and texts[1] is not None:
            least[name], greatest[name] = texts
    return orjson.dumps(
        {
            "numRecords": statistics.rows,
            "minValues": least,
            "maxValues": greatest,
            "nullCount": statistics.nulls,
        }
    ).decode()


def has_bounds(kind: pa.DataType) -> bool:
    """Whether columns of a type have bounds."""
    kinds = pa.types
    return exact(kind) and not (
        kinds.is_boolean(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)
    )


def _text(value: Any, kind: pa.DataType, *, upper: bool = False) -> Any:
    """Return a bound as JSON; ``None`` if Delta cannot store it."""
    kinds = pa.types
    if kinds.is_date32(kind):
        return _or_none(lambda: date.fromordinal(date(1970, 1, 1).toordinal() + value).isoformat())
    if kinds.is_timestamp(kind):
        moment = pa.scalar(value, pa.timestamp("us", tz="UTC"))
        text = _or_none(lambda: moment.as_py().replace(tzinfo=None).isoformat(timespec="microseconds"))
        return text if text is None or kind.tz is None else f"{text}Z"
    if isinstance(value, Decimal):
        return float(value)
    return shortened(value, upper=upper) if isinstance(value, str) else value


def _or_none(make: Any) -> Any:
    try:
        return make()
    except (ValueError, OverflowError):
        return None


def _parsed(value: Any, kind: pa.DataType, *, upper: bool = False) -> Any:
    kinds = pa.types
    if kinds.is_date32(kind):
        return date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
    if kinds.is_timestamp(kind):
        since = datetime.fromisoformat(value).replace(tzinfo=UTC) - _EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        # Other programs truncate times to milliseconds.
        return micros + _MILLISECOND if upper else micros
    if kinds.is_decimal(kind):
        return Decimal(repr(value))
    if kinds.is_floating(kind):
        found = float(value)
        if not math.isfinite(found):
            raise ValueError
        return found
    if kinds.is_integer(kind):
        return int(value)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return str(value)
    raise ValueError
