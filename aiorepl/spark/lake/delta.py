"""Delta tables that the driver writes with deltalake, in one process and without jars. Does not use Spark.

``table`` describes the protocol. The batch's number is stored as a Delta transaction identifier under the application's id. While
a batch of several commits is unfinished, the identifiers ``id/part`` and ``id/base`` have its number and the version before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.columns import COMMIT_LSN, OP, ORDINAL, Evolution, evolution, target_schema
from aiorepl.spark.lake.delta_rows import DeltaRows
from aiorepl.spark.lake.rows import (
    bounded,
    fitted,
    former_names,
    kept_masks,
    lacking_values,
    of_mode,
    origins,
    require_partitions,
    typed,
    with_values,
    without,
)
from aiorepl.spark.lake.scanning import scan
from aiorepl.spark.lake.statements import Dialect, Merge, merge, truncate
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

_PART_BYTES: Final = 64 * 1024 * 1024


class DeltaLake:
    """A folder, or a URL of an object store, with a Delta table for each source table: ``root/schema/table``.

    :param storage: for deltalake, if the tables are in an object store.
    :param part_bytes: the bytes of changes that one commit merges; a merge needs a small multiple of that in memory. ``None``: a
        batch of any size is one commit.
    """

    def __init__(
        self,
        root: str,
        *,
        storage: Mapping[str, str] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        part_bytes: int | None = _PART_BYTES,
    ) -> None:
        self._root = root.rstrip("/")
        self._storage = storage
        self._upkeep = upkeep
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"<Delta tables in {self._root}>"

    def table(
        self,
        name: tuple[str, str],
        keys: tuple[str, ...],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
    ) -> DeltaTarget:
        """Return the target of a source table, without creating it."""
        return DeltaTarget(
            "/".join((self._root, *map(folder_name, name))),
            keys,
            mode,
            layout,
            storage=self._storage,
            upkeep=self._upkeep,
            part_bytes=self._part_bytes,
        )


class DeltaTarget:
    """The Delta table at ``target``.

    :param target: its path or URI.
    :param keys: the columns that identify a row.
    """

    def __init__(
        self,
        target: str,
        keys: tuple[str, ...],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
        *,
        storage: Mapping[str, str] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        part_bytes: int | None = _PART_BYTES,
    ) -> None:
        self.target = target
        self.keys = keys
        self._mode: Mode = mode
        self._layout = layout
        self._storage = None if storage is None else dict(storage)
        self._upkeep = upkeep
        self._part_bytes = part_bytes
        self._table: DeltaTable | None = None
        self._maintained = 0

    def __repr__(self) -> str:
        return f"<Delta table {self.target}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    @property
    def mode(self) -> Mode:
        return self._mode

    def applied(self, application: str, number: int) -> bool:
        table = self._open()
        last = None if table is None else table.transaction_version(application)
        if table is None or last is None or last < number:
            return False
        if _restored(table):
            # RESTORE removes rows, but keeps the transaction identifiers.
            raise ConfigurationError(
                f"the Delta table {self.target} was restored to an earlier version, and lacks batches that it had: restore it to the "
                "version before that; or begin the table again with an empty target and a snapshot"
            )
        return True

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else pa.schema(table.schema())

    def evolve(
        self,
        schema: pa.Schema,
        defaults: Mapping[str, pa.Scalar] | None = None,
        commit: Commit | None = None,
    ) -> None:
        wanted = target_schema(schema, self._mode)
        table = self._open()
        if table is None:
            self._table = DeltaTable.create(
                self.target,
                schema=wanted,
                mode="ignore",
                partition_by=list(self._layout.partition_by) or None,
                storage_options=self._storage,
            )
            return
        # Rows of a changelog, and versions that ended, keep the values of their time.
        steps = evolution(pa.schema(table.schema()), wanted, None if self._mode == "changelog" else defaults)
        if steps.rewrites:
            self._rewrite(table, steps, commit)
        elif steps.added:
            fields = Schema.from_arrow(pa.schema(steps.added)).fields
            table.alter.add_columns(fields)
            table.update_incremental()
        if not steps.rewrites:
            for name, number in steps.numbered.items():
                table.alter.set_column_metadata(name, {NUMBER: number})
                table.update_incremental()

    def merge(self, parts: Sequence[Part], commit: Commit, truncates: Sequence[Truncate] = ()) -> None:
        table = self._open()
        if table is None:
            raise ConfigurationError(f"there is no Delta table {self.target}: call evolve first")
        base = self._base(table, commit)
        size = self._part_bytes
        groups = bounded(parts, size) if size is not None else [list(parts)] if parts else []
        for number, some in enumerate(groups):
            last = number == len(groups) - 1
            changes = pa.concat_tables([part.read() for part in some]).combine_chunks()
            properties = _properties(commit, None if last else base)
            self._apply(table, changes, base, truncates, last, properties)
        if not groups and truncates:
            self._truncate(table, truncates, _properties(commit, None))
        self._finish(table, commit)

    def _finish(self, table: DeltaTable, commit: Commit) -> None:
        """Record the batch's end, unless the merge has: a merge without changes makes no commit."""
        application = commit.application
        if not self.applied(application, commit.number) or _bases(table, application):
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=_properties(commit, None),
            )

    def undo(self, application: str) -> None:
        table = self._open()
        if table is None:
            return
        bases = _bases(table, application)
        if bases:
            # RESTORE keeps the transaction identifiers, so -1 records that no batch is unfinished.
            marks = [Transaction(f"{application}/{each}", -1) for each in ("part", "filled")]
            table.restore(min(bases), commit_properties=CommitProperties(app_transactions=marks))
            table.update_incremental()

    def newest(self) -> DeltaRows | None:
        table = self._open()
        return None if table is None else DeltaRows(self.target, table.version(), self._storage)

    def versions(self) -> list[Version]:
        table = self._open()
        return [] if table is None else list(_versions(table))

    def as_of(self, lsn: LSN) -> int | None:
        table = self._open()
        if table is None:
            return None
        return next((each.number for each in _versions(table) if each.commit.lsn <= lsn), None)

    def maintain(self) -> None:
        table = self._open()
        if table is None:
            return
        upkeep, version = self._upkeep, table.version()
        since, self._maintained = self._maintained, version
        if _due(upkeep.optimize_every, since, version):
            self._optimize()
            table.update_incremental()
            self._maintained = table.version()
        if _due(upkeep.vacuum_every, since, version):
            hours = round(upkeep.retain.total_seconds() / 3600)
            self._vacuum(hours)
            table.update_incremental()
            self._maintained = table.version()

    def _optimize(self) -> None:
        assert self._table is not None
        if self._layout.cluster_by:
            self._table.optimize.z_order(list(self._layout.cluster_by))
        else:
            self._table.optimize.compact()

    def _vacuum(self, hours: int) -> None:
        assert self._table is not None
        self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False)

    def _open(self) -> DeltaTable | None:
        if self._table is not None:
            self._table.update_incremental()
        elif DeltaTable.is_deltatable(self.target, self._storage):
            self._table = DeltaTable(self.target, storage_options=self._storage)
            self._maintained = self._table.version()
        return self._table

    def _base(self, table: DeltaTable, commit: Commit) -> int:
        """Return the version before the first commit of an unfinished batch, whose next attempt may have another number."""
        base = _unfinished(table, commit.application)
        return table.version() if base is None else base

    def _apply(
        self,
        table: DeltaTable,
        changes: pa.Table,
        base: int,
        truncates: Sequence[Truncate],
        last: bool,
        properties: CommitProperties,
    ) -> None:
        schema = pa.schema(table.schema())
        require_partitions(changes, table.metadata().partition_columns)
        if self._mode == "changelog":
            fresh = self._fresh(table, changes)
            write_deltalake(table, fitted(fresh, schema), mode="append", commit_properties=properties)
            return
        changes, kept = self._flagged(of_mode(self._filled(typed(changes, schema), schema, base), self._mode))
        if not table.file_uris():
            present = changes.filter(pc.not_equal(changes[OP], _ABSENT[self._mode]))
            write_deltalake(table, fitted(present, schema), mode="append", commit_properties=properties)
            return
        columns = [name for name in schema.names if name in changes.column_names]
        self._run(
            table,
            fitted(changes, pa.schema([schema.field(name) for name in columns]), (OP, *kept.values())),
            merge(columns, self.keys, self._mode, _DIALECT, kept, truncates, rest=last),
            properties,
        )

    def _run(
        self, table: DeltaTable, source: pa.Table, statement: Merge, properties: CommitProperties
    ) -> None:
        merger = table.merge(
            source,
            statement.condition,
            source_alias="s",
            target_alias="t",
            # Files outside the range of the source's keys are then skipped.
            streamed_exec=False,
            commit_properties=properties,
        )
        for clause in statement.clauses:
            match clause.kind:
                case "matched_delete":
                    merger = merger.when_matched_delete(clause.condition)
                case "matched_update":
                    merger = merger.when_matched_update(dict(clause.values), clause.condition)
                case "insert":
                    merger = merger.when_not_matched_insert(dict(clause.values), clause.condition)
                case "orphan_delete":
                    merger = merger.when_not_matched_by_source_delete(clause.condition)
                case "orphan_update":
                    merger = merger.when_not_matched_by_source_update(dict(clause.values), clause.condition)
        merger.execute()

    def _truncate(
        self, table: DeltaTable, truncates: Sequence[Truncate], properties: CommitProperties
    ) -> None:
        if self._mode == "changelog":
            return
        clause = truncate(self._mode, _DIALECT, truncates, "")
        if clause.kind == "orphan_delete":
            table.delete(clause.condition, commit_properties=properties)
        else:
            table.update(dict(clause.values), predicate=clause.condition, commit_properties=properties)

    def _filled(self, changes: pa.Table, schema: pa.Schema, base: int) -> pa.Table:
        """Fill in kept values that the target has under another key; in the mode history, all kept values."""
        lacking = lacking_values(changes, self._mode)
        if not lacking.num_rows:
            return changes
        names = pc.unique(pc.list_flatten(lacking[KEPT])).to_pylist()
        wanted = dict.fromkeys(origins(lacking, self.keys))
        earlier = DeltaTable(self.target, version=base, storage_options=self._storage)
        found = self._values(earlier, list(wanted), former_names(schema, pa.schema(earlier.schema())), names)
        return with_values(changes, found, self.keys, all_rows=self._mode == "history")

    def _values(
        self,
        table: DeltaTable,
        wanted: Sequence[tuple[Any, ...]],
        former: Mapping[str, str],
        names: Sequence[str],
    ) -> pa.Table:
        """Read columns of the rows with these keys; ``former`` has the columns' names in ``table``."""
        schema = pa.schema(table.schema())
        condition = pc.field(IS_CURRENT) if self._mode == "history" else None
        for name, values in zip(self.keys, zip(*wanted, strict=True), strict=True):
            kind = schema.field(former[name]).type
            part = _isin(pc.field(former[name]), pa.array(set(values), kind))
            condition = part if condition is None else condition & part
        present = [name for name in (*self.keys, *names) if name in former]
        return scan(table, {name: pc.field(former[name]) for name in present}, condition).to_table()

    def _flagged(self, changes: pa.Table) -> tuple[pa.Table, dict[str, str]]:
        """Turn the names of kept columns into Boolean columns; return their names by column."""
        flags = {}
        for number, (name, mask) in enumerate(kept_masks(changes).items()):
            flags[name] = f"_aiorepl_kept_{number}"
            changes = changes.append_column(flags[name], mask)
        return changes, flags

    def _fresh(self, table: DeltaTable, changes: pa.Table) -> pa.Table:
        """Return the changes that a changelog does not have yet."""
        if not changes.num_rows:
            return changes
        first, last = pc.min(changes[COMMIT_LSN]), pc.max(changes[COMMIT_LSN])
        actions = pa.table(table.get_add_actions(flatten=True))
        if not actions.num_rows:
            return changes
        newest = f"max.{COMMIT_LSN}"
        known = newest in actions.column_names and not actions[newest].null_count
        if known and pc.less(pc.max(actions[newest]), first).as_py():
            return changes
        within = (pc.field(COMMIT_LSN) >= first) & (pc.field(COMMIT_LSN) <= last)
        identity = [COMMIT_LSN, ORDINAL, OP]
        there = scan(table, identity, within).to_table()
        return without(changes, there, identity)

    def _rewrite(self, table: DeltaTable, steps: Evolution, commit: Commit | None) -> None:
        """Write all rows again, with new names, types and defaults, in one commit."""
        present = pa.schema(table.schema())
        columns: dict[str, pc.Expression] = {}
        for field in present:
            name = steps.renamed.get(field.name, field.name)
            columns[name] = pc.field(field.name)
        for field in steps.added:
            value = steps.filled.get(field.name, pa.scalar(None)).cast(field.type)
            column = pc.scalar(value)
            if self._mode == "history":
                column = pc.if_else(pc.field(IS_CURRENT), column, pc.scalar(pa.scalar(None, field.type)))
            columns[field.name] = column
        scanner = scan(table, columns)
        partitions = [steps.renamed.get(name, name) for name in table.metadata().partition_columns]
        batches = pa.RecordBatchReader.from_batches(
            steps.schema,
            (
                fitted(pa.Table.from_batches([batch]), steps.schema).to_batches()[0]
                for batch in scanner.to_batches()
                if batch.num_rows
            ),
        )
        marks = []
        if commit is not None and steps.filled:
            marks = [
                Transaction(f"{commit.application}/filled", commit.number),
                Transaction(f"{commit.application}/before", table.version()),
            ]
        write_deltalake(
            table,
            batches,
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=partitions or None,
            commit_properties=CommitProperties(app_transactions=marks),
        )
        table.update_incremental()


_ABSENT: Final = {"current": "delete", "soft_delete": "", "history": "close"}


def folder_name(name: str) -> str:
    """Return a name as a folder name; characters with a meaning in paths or URLs become ~ and their code."""
    return re.sub(
        r"[^\w $.-]|^[._]", lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), name
    )


def _isin(column: pc.Expression, values: pa.Array) -> pc.Expression:
    # deltalake writes the statistics of merged files as string views, which pyarrow does not compare with strings. A cast makes
    # pyarrow ignore the statistics.
    views = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    kind = views.get(values.type)
    return column.isin(values) if kind is None else column.cast(kind).isin(values.cast(kind))


def _bases(table: DeltaTable, application: str) -> list[int]:
    """Return the versions before an application's unfinished batch, and before the columns that it filled."""
    found = (_unfinished(table, application), _unfinished(table, application, "filled", "before"))
    return [base for base in found if base is not None]


def _unfinished(table: DeltaTable, application: str, number: str = "part", base: str = "base") -> int | None:
    """Return the version before an application's unfinished batch; ``None`` if there is none.

    :param number: the name of the identifier with the batch's number.
    :param base: the name of the identifier with the version.
    """
    part = table.transaction_version(f"{application}/{number}")
    done = table.transaction_version(application)
    if part is None or part < (0 if done is None else done):
        return None
    before = table.transaction_version(f"{application}/{base}")
    if part == done and before is not None:
        # The batch had ended before, and came again with another end: has it ended since?
        commits = (_of_batch(entry) for entry in table.history(table.version() - before))
        if any(commit is not None and commit.application == application for commit in commits):
            return None
    return before


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _time(moment: datetime | None) -> str:
    if moment is None:
        return "NULL"
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return f"arrow_cast({micros}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


_DIALECT: Final = Dialect(_quoted, _time)


def _properties(commit: Commit, base: int | None) -> CommitProperties:
    """Return the properties of a commit.

    :param base: the version before the batch, if this is not its last commit.
    """
    application = commit.application
    if base is not None:
        return CommitProperties(
            app_transactions=[
                Transaction(f"{application}/part", commit.number),
                Transaction(f"{application}/base", base),
            ]
        )
    return CommitProperties(
        custom_metadata=metadata_of(commit),
        app_transactions=[Transaction(application, commit.number)],
    )


def _of_batch(entry: Mapping[str, Any]) -> Commit | None:
    """Return the batch commit of an entry of the log; ``None`` if the entry ends no batch."""
    # Spark stores a writer's metadata as one text.
    if str(entry.get("userMetadata", "")).startswith("{"):
        return commit_of(json.loads(entry["userMetadata"]))
    return commit_of(entry)


_NEWEST: Final = 5
"""The number of log entries that are read first; the last batch is usually among them."""


def _versions(table: DeltaTable) -> Iterator[Version]:
    for entry in table.history():
        commit = _of_batch(entry)
        if commit is not None:
            time = datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
            yield Version(entry["version"], commit, time)


def _restored(table: DeltaTable) -> bool:
    """Whether the table was restored to a version before its last batch."""
    for limit in (_NEWEST, None):
        restored: Mapping[str, Any] | None = None
        for entry in table.history(limit):
            if _of_batch(entry) is not None:
                return restored is not None and int(restored.get("version") or 0) < entry["version"]
            if restored is None and entry.get("operation") == "RESTORE":
                restored = entry.get("operationParameters", {})
    return False


def _due(every: int, since: int, version: int) -> bool:
    return every > 0 and version // every > since // every
