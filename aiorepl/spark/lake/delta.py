"""Delta tables that the driver writes with deltalake, in one process and without jars. Does not use Spark.

``table`` describes the protocol, and ``delta_log`` how the log stores it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.attempts import Attempts
from aiorepl.spark.lake.columns import OP, evolution, target_schema
from aiorepl.spark.lake.delta_columns import alter
from aiorepl.spark.lake.delta_encoding import encoding, encoding_of
from aiorepl.spark.lake.delta_log import (
    CREATED,
    abandoned,
    ending,
    is_unique_by,
    record,
    require_replaced,
    restore,
    restored,
    undoing,
    unfinished,
    unique_by,
    upkeep,
    versions,
    was_undone,
    within,
)
from aiorepl.spark.lake.delta_lookup import filled, fresh, shared
from aiorepl.spark.lake.delta_rows import DeltaRows
from aiorepl.spark.lake.delta_statements import run_delete, run_merge, run_truncate
from aiorepl.spark.lake.delta_statistics import correct, was_corrected, wrong_files
from aiorepl.spark.lake.rows import bounded, fitted, of_mode, require_partitions, typed
from aiorepl.spark.lake.table import (
    DEFAULT_LAYOUT,
    DEFAULT_UPKEEP,
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
        self._attempts = Attempts()

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
            attempts=self._attempts,
        )


class DeltaTarget:
    """The Delta table at ``target``.

    :param target: its path or URI.
    :param keys: the columns that identify a row.
    :param attempts: those of the lake; ``None``: the target's own.
    """

    _rounds: ClassVar[bool] = True
    """Whether other programs that write the table as this class does round its statistics."""

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
        attempts: Attempts | None = None,
    ) -> None:
        self.target = target
        self.keys = keys
        self._mode: Mode = mode
        self._layout = layout
        self._storage = None if storage is None else dict(storage)
        self._upkeep = upkeep
        self._part_bytes = part_bytes
        self._attempts = Attempts() if attempts is None else attempts
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
        if restored(table):
            # RESTORE removes rows, but keeps the transaction identifiers.
            raise ConfigurationError(
                f"the Delta table {self.target} was restored to an earlier version, and lacks batches that it had: restore it to the "
                "version before this RESTORE; or begin the table again with an empty target and a snapshot"
            )
        return True

    def schema(self) -> pa.Schema | None:
        return self._columns(self._open())

    def undo(self, application: str) -> None:
        self._attempts.start(self.target)
        table = self._open()
        if table is None:
            return
        if (other := abandoned(table, application)) is not None:
            self._undo(table, other)
        self._undo(table, application)
        # Other programs' compaction may have written rounded statistics, too.
        files = wrong_files(table) if self._rounds or not was_corrected(table) else None
        if files is not None:
            correct(table, files, upkeep(application))

    def _undo(self, table: DeltaTable, application: str) -> None:
        before = unfinished(table, application)
        if before is None:
            return
        properties = undoing(table, application)
        if was_undone(table, application, before):
            record(table, properties)
        elif before == CREATED:
            self._replace(table, self._blank, properties, application, CREATED)
        else:
            restore(table, before, properties)
        table.update_incremental()

    def evolve(
        self,
        schema: pa.Schema,
        defaults: Mapping[str, pa.Scalar] | None = None,
        commit: Commit | None = None,
    ) -> None:
        wanted = target_schema(schema, self._mode)
        table = self._open()
        present = self._columns(table)
        properties = CommitProperties if commit is None else partial(self._within, table, commit.application)
        if table is None:
            self._create(wanted, "ignore", properties())
        elif present is None:
            application = "" if commit is None else commit.application
            self._replace(table, wanted, properties(), application, table.version())
        else:
            # Rows of a changelog, and versions that ended, keep the values of their time.
            steps = evolution(present, wanted, None if self._mode == "changelog" else defaults)
            alter(table, steps, self._mode, properties)

    def merge(
        self,
        parts: Sequence[Part],
        commit: Commit,
        truncates: Sequence[Truncate] = (),
        *,
        ends: bool = True,
    ) -> None:
        table = self._existing()
        if parts:
            self._unite(table, commit)
        base, size = table.version(), self._part_bytes
        groups = bounded(parts, size) if size is not None else [list(parts)] if parts else []
        for number, some in enumerate(groups):
            last = number == len(groups) - 1
            changes = pa.concat_tables([part.read() for part in some]).combine_chunks()
            properties = self._properties(table, commit, ends=last and ends)
            self._apply(table, changes, base, truncates, last, properties)
        if not groups and truncates and self._mode != "changelog":
            properties = self._properties(table, commit, ends=ends)
            run_truncate(table, self._mode, truncates, properties)
        if ends:
            self._finish(table, commit)

    def _unite(self, table: DeltaTable, commit: Commit) -> None:
        """Remove deleted rows whose key another row has too, after a change of the key columns."""
        if self._mode != "soft_delete" or is_unique_by(table, self.keys):
            return
        found, rows = shared(table, self.keys)
        if found.num_rows:
            run_delete(table, found, self.keys, self._within(table, commit.application))
            write_deltalake(
                table,
                rows,
                mode="append",
                writer_properties=encoding_of(table),
                commit_properties=self._within(table, commit.application),
            )
        record(table, unique_by(self._within(table, commit.application), self.keys))

    def _finish(self, table: DeltaTable, commit: Commit) -> None:
        """Record the batch's end, unless the merge has: a merge without changes makes no commit."""
        application = commit.application
        if not self.applied(application, commit.number) or unfinished(table, application) is not None:
            record(table, self._properties(table, commit, ends=True))
        self._attempts.start(self.target)

    def _properties(self, table: DeltaTable, commit: Commit, *, ends: bool) -> CommitProperties:
        if not ends:
            return self._within(table, commit.application)
        self._require(table, commit.application)
        return ending(commit)

    def _within(self, table: DeltaTable | None, application: str) -> CommitProperties:
        self._require(table, application)
        before = CREATED if table is None else unfinished(table, application)
        self._attempts.set(self.target, before if before is not None or table is None else table.version())
        return within(table, application)

    def _require(self, table: DeltaTable | None, application: str) -> None:
        if table is None:
            self._attempts.require(self.target, None)
        elif (found := unfinished(table, application)) is not None:
            self._attempts.require(self.target, found)
        else:
            # If this is still the version before a merge, the merge had no changes, and has made no commit.
            self._attempts.require(self.target, None, table.version())

    def newest(self) -> DeltaRows | None:
        table = self._open()
        return None if table is None else DeltaRows(self.target, table.version(), self._storage)

    def versions(self) -> list[Version]:
        table = self._open()
        return [] if table is None else list(versions(table))

    def as_of(self, lsn: LSN) -> int | None:
        table = self._open()
        if table is None:
            return None
        return next((each.number for each in versions(table) if each.commit.lsn <= lsn), None)

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
        encoded = encoding_of(self._table)
        if self._layout.cluster_by:
            self._table.optimize.z_order(list(self._layout.cluster_by), writer_properties=encoded)
        else:
            self._table.optimize.compact(writer_properties=encoded)

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

    def _existing(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise ConfigurationError(f"there is no Delta table {self.target}: call evolve first")
        return table

    def _columns(self, table: DeltaTable | None) -> pa.Schema | None:
        found = None if table is None else pa.schema(table.schema())
        return None if found is None or set(found.names) == set(self._blank.names) else found

    @property
    def _blank(self) -> pa.Schema:
        """The columns of a table whose creation was undone: those that the mode adds."""
        return target_schema(pa.schema([]), self._mode)

    def _create(
        self, schema: pa.Schema, mode: Literal["ignore", "overwrite"], properties: CommitProperties
    ) -> None:
        partitions = [name for name in self._layout.partition_by if name in schema.names]
        if self._mode == "soft_delete" and self.keys:
            properties = unique_by(properties, self.keys)
        self._table = DeltaTable.create(
            self.target,
            schema=schema,
            mode=mode,
            partition_by=partitions or None,
            storage_options=self._storage,
            commit_properties=properties,
        )

    def _replace(
        self,
        table: DeltaTable,
        schema: pa.Schema,
        properties: CommitProperties,
        application: str,
        before: int,
    ) -> None:
        """Create a table again that has only rows of an unfinished batch, or none.

        :param before: the version before the batch, or ``CREATED``.
        """
        version = table.version()
        self._create(schema, "overwrite", properties)
        require_replaced(self._existing(), version, application, before)

    def _apply(
        self,
        table: DeltaTable,
        changes: pa.Table,
        base: int,
        truncates: Sequence[Truncate],
        last: bool,
        properties: CommitProperties,
    ) -> None:
        """Merge some of a batch's changes in one commit.

        :param base: the version before the first of them.
        """
        schema, mode = pa.schema(table.schema()), self._mode
        require_partitions(changes, table.metadata().partition_columns)
        if mode == "changelog":
            changes = fresh(table, changes)
        else:
            earlier = partial(DeltaTable, self.target, version=base, storage_options=self._storage)
            changes = of_mode(filled(typed(changes, schema), self.keys, mode, earlier), mode)
        if mode == "changelog" or not table.file_uris():
            rows = changes.filter(pc.not_equal(changes[OP], _ABSENT[mode]))
            write_deltalake(
                table,
                fitted(rows, schema),
                mode="append",
                writer_properties=encoding(schema),
                commit_properties=properties,
            )
        else:
            run_merge(table, changes, self.keys, mode, truncates, properties, rest=last)


_ABSENT: Final[Mapping[Mode, str]] = {
    "current": "delete",
    "soft_delete": "",
    "history": "close",
    "changelog": "",
}
"""The changes that add no row to an empty table."""


def folder_name(name: str) -> str:
    """Return a name as a folder name; characters with a meaning in paths or URLs become ~ and their code."""
    return re.sub(
        r"[^\w $.-]|^[._]", lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), name
    )


def _due(every: int, since: int, version: int) -> bool:
    return every > 0 and version // every > since // every
