"""The filters on metadata columns that a batch query applies itself, by skipping blocks and files outside their LSNs. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from aiorepl.lsn import LSN, ZERO

# The names of metadata columns: in the changes of one table, and in the changes of all tables.
_POSITION: Final = ("_commit_lsn", "commit_lsn")
_TIME: Final = ("_commit_ts", "commit_ts")
_OP: Final = ("_op", "op")
_LAST: Final = LSN(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The conditions on a row that follow from the filters.

    :param after: the row's commit LSN is at least this.
    :param until: the row's commit LSN is less than this.
    :param wanted: an expression over the metadata columns; ``None`` selects every row.
    :param rest: the filters that Spark applies.
    """

    after: LSN = ZERO
    until: LSN = _LAST
    wanted: Any = None
    rest: tuple[Filter, ...] = ()


def pushed(filters: Sequence[Filter], schema: pa.Schema, *, table: bool) -> Pushed:
    """Divide Spark's filters into filters that are applied here, and filters that Spark applies. A row must pass all of them.

    :param table: whether the rows are the changes of one table.
    """
    position, time, op = (names[not table] for names in (_POSITION, _TIME, _OP))
    after, until = ZERO, _LAST
    expressions: list[Any] = []
    rest: list[Filter] = []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        name = path[0] if len(path) == 1 else None
        expression = _expression(each, schema.field(name)) if name in (position, time, op) else None
        if expression is None:
            rest.append(each)
            continue
        expressions.append(expression)
        if name == position and isinstance(value := getattr(each, "value", None), int):
            least, most = _bounds(each, value)
            after, until = max(after, least), min(until, most)
    return Pushed(after, until, reduce(and_, expressions) if expressions else None, tuple(rest))


def _expression(each: Filter, field: pa.Field) -> Any:
    column = pc.field(field.name)
    if isinstance(each, IsNotNull):
        return column.is_valid()
    values = list(each.value) if isinstance(each, In) else [getattr(each, "value", None)]
    if not all(_exact(value, field.type) for value in values):
        return None
    scalars = pa.array(values, field.type)
    match each:
        case In():
            return column.isin(scalars)
        case EqualTo():
            return column == scalars[0]
        case GreaterThan():
            return column > scalars[0]
        case GreaterThanOrEqual():
            return column >= scalars[0]
        case LessThan():
            return column < scalars[0]
        case LessThanOrEqual():
            return column <= scalars[0]
    return None


def _exact(value: object, kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        # A time without a zone is in the session's time zone, which is unknown here.
        return isinstance(value, dt.datetime) and value.tzinfo is not None
    return isinstance(value, str if pa.types.is_string(kind) else int)


def _bounds(each: Filter, value: int) -> tuple[LSN, LSN]:
    value = min(max(value, 0), _LAST - 1)
    match each:
        case EqualTo():
            return LSN(value), LSN(value + 1)
        case GreaterThan():
            return LSN(value + 1), _LAST
        case GreaterThanOrEqual():
            return LSN(value), _LAST
        case LessThan():
            return ZERO, LSN(value)
        case LessThanOrEqual():
            return ZERO, LSN(value + 1)
    return ZERO, _LAST
