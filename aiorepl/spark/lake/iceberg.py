"""Iceberg tables that the driver writes with pyiceberg, without jars. Does not use Spark.

pyiceberg has no MERGE, so rows with the changed keys are read, merged in memory (``merged``) and written again, in one commit.
The same commit sets a table property to the number of the application's last batch; the snapshot's summary has the LSN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, _pyarrow_to_schema_without_ids
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.transforms import IdentityTransform

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.columns import COMMIT_LSN, OP, ORDINAL, Evolution, evolution, number_of, target_schema
from aiorepl.spark.lake.merged import merged
from aiorepl.spark.lake.rows import (
    bounded,
    fitted,
    lacking_values,
    of_mode,
    origins,
    typed,
    with_values,
    without,
)
from aiorepl.spark.lake.summary import commit_of, metadata_of
from aiorepl.spark.lake.table import (
    DEFAULT_LAYOUT,
    DEFAULT_UPKEEP,
    IS_CURRENT,
    KEPT,
    NUMBER,
    Commit,
    Layout,
    Mode,
    Part,
    Truncate,
    Upkeep,
    Version,
)

# Its constructors are not typed as they are called.
_is: Any = expressions
_PART_BYTES: Final = 64 * 1024 * 1024
_NUMBERS: Final = "aiorepl.numbers"
_BATCH: Final = "aiorepl.batch."
_BASE: Final = "aiorepl.base."
_FILLED: Final = "aiorepl.filled."


class IcebergLake:
    """A catalog, with an Iceberg table for each source table, in a namespace with the schema's name.

    :param prefix: a prefix of the namespaces' names.
    """

    def __init__(
        self,
        catalog: Catalog,
        prefix: str = "",
        *,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self._catalog = catalog
        self._prefix = prefix
        self._upkeep = upkeep
        self._part_bytes = part_bytes

    def table(
        self,
        name: tuple[str, str],
        keys: tuple[str, ...],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
    ) -> IcebergTarget:
        """Return the target of a source table, without creating it."""
        identifier = (self._prefix + name[0], name[1])
        return IcebergTarget(
            self._catalog, identifier, keys, mode, layout, upkeep=self._upkeep, part_bytes=self._part_bytes
        )


class IcebergTarget:
    """The Iceberg table ``identifier`` of a catalog. pyiceberg cannot cluster or compact it.

    :param keys: the columns that identify a row.
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, str],
        keys: tuple[str, ...],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
        *,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self.identifier = identifier
        self.keys = keys
        self._catalog = catalog
        self._mode: Mode = mode
        self._layout = layout
        self._upkeep = upkeep
        self._part_bytes = part_bytes
        self._maintained: int | None = None

    def __repr__(self) -> str:
        return f"<Iceberg table {'.'.join(self.identifier)}>"

    @property
    def mode(self) -> Mode:
        return self._mode

    def applied(self, application: str, number: int) -> bool:
        table = self._open()
        return table is not None and int(table.properties.get(_BATCH + application, -1)) >= number

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else _schema(table)

    def evolve(
        self,
        schema: pa.Schema,
        defaults: Mapping[str, pa.Scalar] | None = None,
        commit: Commit | None = None,
    ) -> None:
        wanted = pa.schema(map(_storable, target_schema(schema, self._mode)))
        table = self._open()
        if table is None:
            self._create(wanted)
            return
        steps = evolution(_schema(table), wanted, None if self._mode == "changelog" else defaults)
        if not (steps.rewrites or steps.added or steps.numbered):
            return
        with table.transaction() as transaction:
            self._change(transaction, steps)
            if steps.filled:
                self._fill(table, transaction, steps)
                if commit is not None:
                    snapshot = table.current_snapshot()
                    before = -1 if snapshot is None else snapshot.snapshot_id
                    filled = json.dumps([before, list(steps.filled)])
                    transaction.set_properties({_FILLED + commit.application: filled})

    def merge(self, parts: Sequence[Part], commit: Commit, truncates: Sequence[Truncate] = ()) -> None:
        table = self._open()
        if table is None:
            raise ConfigurationError(
                f"there is no Iceberg table {'.'.join(self.identifier)}: call evolve first"
            )
        base = self._base(table, commit)
        schema = _schema(table)
        groups: list[list[Part]] = list(bounded(parts, self._part_bytes))
        if truncates and not groups and self._mode != "changelog":
            groups.append([])
        for number, some in enumerate(groups):
            last = number == len(groups) - 1
            summary = {}
            properties = {_BASE + commit.application: str(base)}
            if last:
                properties = {_BATCH + commit.application: str(commit.number)}
                summary = metadata_of(commit)
            changes = pa.concat_tables([part.read() for part in some]).combine_chunks() if some else None
            with table.transaction() as transaction:
                self._apply(table, transaction, schema, changes, base, truncates, last, summary)
                transaction.set_properties(properties)
                if last:
                    _unmark(table, transaction, commit.application)
        if not groups:
            with table.transaction() as transaction:
                transaction.set_properties({_BATCH + commit.application: str(commit.number)})
                _unmark(table, transaction, commit.application)

    def undo(self, application: str) -> None:
        table = self._open()
        if table is None:
            return
        base = _unfinished(table, application)
        filled = table.properties.get(_FILLED + application)
        names: list[str] = []
        if filled is not None:
            base, names = json.loads(filled)
        if base is None:
            return
        if base < 0:
            table.delete(_is.AlwaysTrue())
        else:
            table.manage_snapshots().rollback_to_snapshot(base).commit()
        with table.transaction() as transaction:
            if names:
                with transaction.update_schema() as update:
                    for name in names:
                        update.delete_column(name)
            # The next attempt may add new columns first, and then has another base.
            _unmark(table, transaction, application)

    def versions(self) -> list[Version]:
        table = self._open()
        return [] if table is None else list(_versions(table))

    def as_of(self, lsn: LSN) -> int | None:
        return next((each.number for each in self.versions() if each.commit.lsn <= lsn), None)

    def maintain(self) -> None:
        table = self._open()
        if table is None or not self._upkeep.vacuum_every:
            return
        number = len(table.history())
        since, self._maintained = number - 1 if self._maintained is None else self._maintained, number
        if number // self._upkeep.vacuum_every > since // self._upkeep.vacuum_every:
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - self._upkeep.retain).commit()

    def _open(self) -> IcebergTable | None:
        try:
            return self._catalog.load_table(self.identifier)
        except NoSuchTableError:
            return None

    def _base(self, table: IcebergTable, commit: Commit) -> int:
        """Return the snapshot before the first commit of an unfinished batch; -1 if there was none."""
        base = _unfinished(table, commit.application)
        if base is not None:
            return base
        snapshot = table.current_snapshot()
        return -1 if snapshot is None else snapshot.snapshot_id

    def _create(self, wanted: pa.Schema) -> None:
        try:
            self._catalog.create_namespace_if_not_exists(self.identifier[:-1])
        except Exception:
            # Another table of the same new namespace may be created concurrently, and not every catalog raises a specific error for that.
            if not self._catalog.namespace_exists(self.identifier[:-1]):
                raise
        plain = pa.schema([field.remove_metadata() for field in wanted])
        with self._catalog.create_table_transaction(self.identifier, plain) as transaction:
            if self._layout.partition_by:
                with transaction.update_spec() as spec:
                    for name in self._layout.partition_by:
                        # A temporary name, because the column may be renamed, and another column may take its name.
                        spec.add_field(name, IdentityTransform(), f"by_{name}")
            ids = {field.name: field.field_id for field in transaction.table_metadata.schema().fields}
            numbers = {str(ids[field.name]): number for field in wanted if (number := number_of(field))}
            transaction.set_properties({_NUMBERS: json.dumps(numbers)})

    def _change(self, transaction: Transaction, steps: Evolution) -> None:
        """Add, rename and widen columns; only metadata changes."""
        fields = {field.name: field for field in _iceberg_fields(steps.schema)}
        with transaction.update_schema() as update:
            # By way of temporary names, because columns may swap theirs.
            for place, old in enumerate(steps.renamed):
                update.rename_column(old, f"_aiorepl_{place}")
        with transaction.update_schema() as update:
            for place, new in enumerate(steps.renamed.values()):
                update.rename_column(f"_aiorepl_{place}", new)
        with transaction.update_schema() as update:
            for name in steps.widened:
                try:
                    update.update_column(name, fields[name].field_type)
                except Exception as error:
                    raise ConfigurationError(
                        f"column {name!r} of the Iceberg table {'.'.join(self.identifier)} cannot become {steps.widened[name]}: cast "
                        "it in the DataFrame, or mirror into a new table"
                    ) from error
            for added in steps.added:
                update.add_column(added.name, fields[added.name].field_type)
        ids = {field.name: field.field_id for field in transaction.table_metadata.schema().fields}
        numbers = {str(ids[each.name]): number for each in steps.schema if (number := number_of(each))}
        transaction.set_properties({_NUMBERS: json.dumps(numbers)})

    def _fill(self, table: IcebergTable, transaction: Transaction, steps: Evolution) -> None:
        """Write all rows again with the values of new columns."""
        back = {new: old for old, new in steps.renamed.items()}
        transaction.delete(_is.AlwaysTrue())
        for rows in _bounded_tables(table.scan().to_arrow_batch_reader(), self._part_bytes):
            arrays = {}
            for field in steps.schema:
                old = back.get(field.name, field.name)
                value = steps.filled.get(field.name)
                if value is not None:
                    column = pa.repeat(value.cast(field.type), rows.num_rows)
                    if self._mode == "history":
                        column = pc.if_else(rows[IS_CURRENT], column, pa.scalar(None, field.type))
                    arrays[field.name] = column
                elif old in rows.column_names and field.name not in {each.name for each in steps.added}:
                    arrays[field.name] = rows[old]
            transaction.append(fitted(pa.table(arrays), steps.schema))

    def _apply(
        self,
        table: IcebergTable,
        transaction: Transaction,
        schema: pa.Schema,
        changes: pa.Table | None,
        base: int,
        truncates: Sequence[Truncate],
        last: bool,
        summary: dict[str, str],
    ) -> None:
        if self._mode == "changelog":
            if changes is not None:
                transaction.append(fitted(self._fresh(table, changes), schema), snapshot_properties=summary)
            return
        conditions: list[expressions.BooleanExpression] = []
        if changes is None:
            reduced = fitted(schema.empty_table(), schema)
            reduced = reduced.append_column(OP, pa.array([], pa.string()))
            reduced = reduced.append_column(KEPT, pa.array([], pa.list_(pa.string())))
        else:
            reduced = of_mode(self._filled(table, typed(changes, schema), base), self._mode)
            conditions.append(_with_keys(reduced, self.keys))
        if truncates and last:
            older: expressions.BooleanExpression = _is.LessThanOrEqual(COMMIT_LSN, truncates[-1].lsn)
            conditions.append(
                _is.And(_is.EqualTo(IS_CURRENT, True), older) if self._mode == "history" else older
            )
        condition: Any = reduce(_is.Or, conditions)
        present = fitted(table.scan(condition).to_arrow(), schema)
        result = merged(present, reduced, self.keys, self._mode, truncates, rest=last)
        if present.num_rows:
            transaction.delete(condition, snapshot_properties=summary)
        if result.num_rows:
            transaction.append(result, snapshot_properties=summary)

    def _filled(self, table: IcebergTable, changes: pa.Table, base: int) -> pa.Table:
        """Fill in kept values that the target has under another key; in the mode history, all kept values."""
        lacking = lacking_values(changes, self._mode)
        if not lacking.num_rows or base < 0:
            return changes
        wanted = set(origins(lacking, self.keys))
        condition: expressions.BooleanExpression = reduce(
            _is.And,
            (
                _is.In(name, set(values))
                for name, values in zip(self.keys, zip(*wanted, strict=True), strict=True)
            ),
        )
        if self._mode == "history":
            condition = _is.And(condition, _is.EqualTo(IS_CURRENT, True))
        found = table.scan(condition, snapshot_id=base).to_arrow()
        return with_values(changes, found, self.keys, all_rows=self._mode == "history")

    def _fresh(self, table: IcebergTable, changes: pa.Table) -> pa.Table:
        """Return the changes that a changelog does not have yet."""
        if not changes.num_rows:
            return changes
        first, last = pc.min(changes[COMMIT_LSN]).as_py(), pc.max(changes[COMMIT_LSN]).as_py()
        identity = (COMMIT_LSN, ORDINAL, OP)
        condition = _is.And(_is.LessThanOrEqual(COMMIT_LSN, last), _is.GreaterThanOrEqual(COMMIT_LSN, first))
        return without(changes, table.scan(condition, identity).to_arrow(), identity)


def _unfinished(table: IcebergTable, application: str) -> int | None:
    """Return the snapshot before an application's unfinished batch, -1 if it had none; ``None`` if there is no such batch."""
    base = table.properties.get(_BASE + application)
    return None if base is None else int(base)


def _unmark(table: IcebergTable, transaction: Transaction, application: str) -> None:
    """Say that no batch of an application is unfinished."""
    marks = {_BASE + application, _FILLED + application}
    transaction.remove_properties(*sorted(marks & table.properties.keys()))


def _with_keys(changes: pa.Table, keys: Sequence[str]) -> expressions.BooleanExpression:
    condition: expressions.BooleanExpression = reduce(
        _is.And, (_is.In(name, set(changes[name].to_pylist())) for name in keys)
    )
    return condition


def _storable(field: pa.Field) -> pa.Field:
    return field.with_type(_storable_type(field.type))


def _storable_type(kind: pa.DataType) -> pa.DataType:
    """Replace what pyiceberg cannot write: 16-bit integers, and list elements that are not nullable."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _storable_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([_storable(kind.field(number)) for number in range(kind.num_fields)])
    return pa.int32() if kind == pa.int16() else kind


def _iceberg_fields(schema: pa.Schema) -> Sequence[Any]:
    plain = pa.schema([field.remove_metadata() for field in schema])
    return _pyarrow_to_schema_without_ids(plain).fields


def _schema(table: IcebergTable) -> pa.Schema:
    numbers = json.loads(table.properties.get(_NUMBERS, "{}"))
    arrow = _pyarrow_schema_ensure_small_types(table.schema().as_arrow())
    fields = []
    for mine, field in zip(table.schema().fields, arrow, strict=True):
        number = numbers.get(str(mine.field_id))
        fields.append(field.remove_metadata().with_metadata(None if number is None else {NUMBER: number}))
    return pa.schema(fields)


def _bounded_tables(batches: pa.RecordBatchReader, size: int) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= size:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _versions(table: IcebergTable) -> Iterator[Version]:
    seen: set[Commit] = set()
    for snapshot in reversed(table.metadata.snapshots):
        commit = commit_of({} if snapshot.summary is None else snapshot.summary.additional_properties)
        # A merge makes two snapshots in one commit; the newer one has all of its rows.
        if commit is not None and commit not in seen:
            seen.add(commit)
            yield Version(
                snapshot.snapshot_id, commit, datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            )
