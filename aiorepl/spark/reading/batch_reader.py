"""The reader of a batch query: reads the journal up to its end at planning. Planned on the driver, pickled to executors.

It applies filters on metadata columns itself, and skips the blocks and files outside their LSNs.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from aiorepl.errors import ConfigurationError
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN, ZERO
from aiorepl.spark.reading.described import Inferred
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.planner import CHOOSE_START, Planner, log_gaps
from aiorepl.spark.session.programs import spare_modules


class BatchReader(DataSourceReader):
    """Plans and reads a batch.

    :param inferred: as in ``Planner``.
    :raises ConfigurationError: an option is not for a batch, or the schema cannot be read.
    """

    def __init__(self, options: ReadOptions, schema: StructType, inferred: Inferred | None = None) -> None:
        self._planner = Planner(options, schema, inferred)
        self._pushed = Pushed()
        if options.start == "latest":
            raise ConfigurationError("option startingPosition cannot be latest for a batch, which ends there")

    def partitions(self) -> Sequence[InputPartition]:
        """Plan everything between the options' positions.

        :raises ConfigurationError: the journal does not reach the ending position.
        :raises SchemaChanged: the table's columns have changed since its schema was read.
        :raises JournalError: the journal is damaged, or does not continue from the start.
        """
        spare_modules()
        planner = self._planner
        reader = JournalReader(planner.options.journal)
        after = planner.start(reader).lsn
        chain = planner.readable(reader, after, "a new query", CHOOSE_START)
        last = planner.last(reader, chain)
        # The filters bound commit LSNs. A transaction ends after its commit LSN, so the bounds keep all wanted transactions.
        after, last = max(after, self._pushed.after), min(last, self._pushed.until)
        if last <= after:
            return []
        log_gaps(chain, after, last)
        start, stop = BlockPosition(after), BlockPosition(last)
        watch = planner.watch(reader)
        if watch is not None and (changed := watch.first_change(reader, chain, start, stop)):
            raise watch.outdated(*changed)
        return planner.partitions(reader, chain, start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition on an executor, perhaps more than once."""
        wanted = self._pushed.wanted
        for batch in self._planner.read(partition):
            chosen = batch if wanted is None else batch.filter(wanted)
            if chosen.num_rows:
                yield chosen


class FilteringReader(BatchReader):
    """A reader that applies filters on metadata columns itself.

    Spark refuses a reader with ``pushFilters`` unless ``spark.sql.python.filterPushdown.enabled`` is set; ``register`` sets it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - pyspark's name
        """Take filters. Return the filters that Spark still has to apply."""
        table = self._planner.options.table is not None
        self._pushed = pushed(filters, self._planner.columns, table=table)
        return self._pushed.rest


# The names of metadata columns: in the changes of one table, and in the changes of all tables.
_POSITION: Final = ("_commit_lsn", "commit_lsn")
_TIME: Final = ("_commit_ts", "commit_ts")
_OP: Final = ("_op", "op")
_LAST: Final = LSN(2**63 - 1)
_COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


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
    return Pushed(after, until, reduce(operator.and_, expressions) if expressions else None, tuple(rest))


def _expression(each: Filter, field: pa.Field) -> Any:
    column = pc.field(field.name)
    if isinstance(each, IsNotNull):
        return column.is_valid()
    values = list(each.value) if isinstance(each, In) else [getattr(each, "value", None)]
    if not all(_exact(value, field.type) for value in values):
        return None
    scalars = pa.array(values, field.type)
    if isinstance(each, In):
        return column.isin(scalars)
    compare = _COMPARISONS.get(type(each))
    return None if compare is None else compare(column, scalars[0])


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
