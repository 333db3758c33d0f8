"""Writes a batch's changes of one table to its target. Runs on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.collected import BEFORE
from aiorepl.formats.arrow.types import META
from aiorepl.loggers import logger
from aiorepl.spark.lake.columns import ADDED, mode_of, number_of
from aiorepl.spark.lake.table import Commit, Lake, Mode, Place, Run, Target, newest_commit, reached
from aiorepl.spark.mirroring.changes import MirrorChanges
from aiorepl.spark.mirroring.column_types import ColumnTypes
from aiorepl.spark.mirroring.reducing import ReduceLarge, reduce_staged
from aiorepl.spark.mirroring.selected import masked_columns, require_same_key, require_text
from aiorepl.spark.mirroring.settings import Settings
from aiorepl.spark.mirroring.staging import StagedFile
from aiorepl.spark.mirroring.state import Written
from aiorepl.spark.mirroring.versions import Common, relation_of
from aiorepl.spark.reading.selected import key_marks
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.values.types import BUILTIN

_log = logger("aiorepl.spark")

_ORDINALS: Final = 2**63 - 1


class TableWriter:
    """Writes tables of one lake. Thread-safe, if no two threads write the same table.

    :param journal: the journal, whose history has the ``compacted`` files.
    :param staging: the folder of the other files.
    """

    def __init__(
        self, lake: Lake, settings: Settings, journal: Location, staging: Location, reduce_large: ReduceLarge
    ) -> None:
        self.settings = settings
        self._lake = lake
        self._journal = journal
        self._staging = staging
        self._reduce_large = reduce_large
        self._warned: set[TableName] = set()

    def newest(self, application: str, table: TableName) -> Commit | None:
        """Return the commit of an application's newest batch in a table; ``None`` if there is none, or if it is unknown."""
        return newest_commit(self._target(table, self.settings.mode_of(table)), application)

    def columns(self, table: TableName) -> pa.Schema | None:
        """Return the columns of a table's target; ``None`` if there is no target."""
        return self._target(table, self.settings.mode_of(table)).schema()

    def require_types(
        self, table: TableName, columns: pa.Schema, known: Written | None, source: pa.Schema | None = None
    ) -> None:
        """Check the types of a target's columns, as ``ColumnTypes.require_same``."""
        before = {} if known is None else known.types
        if self.settings.types or before:
            self.settings.types_of(table).require_same(columns, before, source)

    def write(
        self,
        table: TableName,
        files: Sequence[StagedFile],
        commit: Commit,
        known: Written | None,
        *,
        behind: bool = False,
    ) -> Written | None:
        """Write the changes that a table lacks. Return what the state has of the table then; ``None`` if it has no target yet.

        :param files: the files with the changes, in the order of their rows.
        :param known: the last batch that was written to the table; ``None`` if there is none.
        :param behind: whether the table was set aside. It may have failed after a commit of some of these changes.
        :raises ConfigurationError: the table cannot be mirrored.
        :raises DataError: a value cannot be mirrored.
        :raises JournalError: a file is missing or damaged.
        """
        oid, again = files[-1].version.oid, known is not None and not known.oid
        known = None if again else known
        columns = self.columns(table)
        mode = self._mode(table, files[-1:] if again else files, columns)
        if again:
            files = self._suffix(table, files, mode)
        self._require_one(table, {file.version.oid for file in files}, known)
        target = self._target(table, mode)
        # The state may be older than the table, so the batch's number alone does not tell which changes the table has.
        applied = target.applied(commit.application, commit.number)
        after = reached(target, commit.application) if applied or behind else None
        commit = replace(commit, last=max(_last(files), after or (0, 0)))
        present = columns is not None
        if columns is not None and self.settings.selection is not None:
            require_text(masked_columns(self.settings.selection, table, columns.names), columns)
        if known is not None:
            _require_target(table, target, known, commit, present=present)
        fresh = [file for file in files if after is None or after < _last([file])]
        if not fresh:
            if not applied:
                target.apply(commit)
            if known is not None:
                return known._replace(oid=oid, batch=commit.number)
            # The process ended before the state was saved, so the state does not know the table's key.
            key = self._key(table, self._runs(table, files, self._common(table, files), mode), mode)
            return self._written(table, target, oid, commit, key)
        with_rows = any(not file.only_truncates for file in fresh)
        common = self._common(table, fresh) if with_rows or present else self._certain(table, fresh)
        if columns is not None:
            self.require_types(table, columns, known, common.schema)
        runs = self._runs(table, fresh, common, mode)
        key = self._key(table, runs, mode)
        if known is not None:
            require_same_key(table, known.key, key)
        created = with_rows or (not present and self._is_complete(table, common, mode))
        if not created and not present:
            return None
        # If the key columns have changed, changes under the former key columns are merged first.
        reduced = [self._reduced(keys, mode, some, common, after) for keys, some in runs]
        target.apply(commit, reduced, *((common.schema, common.defaults) if created else ()))
        _maintain(table, target)
        return self._written(table, target, oid, commit, key)

    def _written(
        self, table: TableName, target: Target, oid: int, commit: Commit, key: dict[str, str]
    ) -> Written:
        columns = target.schema() if self.settings.types else None
        types = {} if columns is None else self.settings.types_of(table).recorded(columns)
        return Written(oid, commit.number, {} if self.settings.selection is None else key, types)

    def _reduced(
        self,
        keys: tuple[str, ...],
        mode: Mode,
        files: Sequence[StagedFile],
        common: Common,
        after: Place | None,
    ) -> Run:
        """Reduce the changes after a position. The same key columns identify the rows of all of them."""
        changes = MirrorChanges(
            self._staging,
            common.rows,
            keys,
            mode,
            self._journal,
            common,
            self.settings.null,
            after,
            self.settings.selection,
        )
        # Files without rows are read for a changelog only, which has a row for each truncate.
        with_rows = [file for file in files if mode == "changelog" or not file.only_truncates]
        truncates = [each for file in files if file not in with_rows for each in file.truncates]
        return reduce_staged(changes, with_rows, truncates, self._reduce_large)

    def _key(
        self, table: TableName, runs: Iterable[tuple[tuple[str, ...], list[StagedFile]]], mode: Mode
    ) -> dict[str, str]:
        """Return the marks of the columns by which the mirror finds the target's rows."""
        found = () if mode == "changelog" else {name for names, _ in runs for name in names}
        return key_marks(self.settings.selection, table, found)

    def _mode(self, table: TableName, files: Sequence[StagedFile], columns: pa.Schema | None) -> Mode:
        """Return the mode of a table: the mode of its target or, without one, the mode of the settings, or changelog if rows have no key.

        :param columns: the target's columns; ``None``: no target yet.
        :raises ConfigurationError: the target has another mode than the settings, and is no changelog.
        """
        wanted, last = self.settings.mode_of(table), files[-1].version
        if columns is not None:
            # In some modes, the source may have a column with the name of another mode's column.
            own = {*last.schema.names} - {field.name for field in (*META, *ADDED[wanted])}
            found = mode_of({field.name for field in columns if number_of(field) is None} - own)
            if found != wanted and found != "changelog":
                raise ConfigurationError(
                    f"the target of {table} has the mode {found}, which cannot be changed to {wanted}: set the former mode, or begin the "
                    "table again with an empty target (aiorepl spark mirror --restart-table) and a snapshot"
                )
        elif wanted == "changelog" or self.settings.keys_of(table):
            return wanted
        else:
            keyed = all(relation_of(version).key for version in {file.version for file in files})
            found = wanted if keyed else "changelog"
        if found != wanted and table not in self._warned:
            self._warned.add(table)
            has = relation_of(last).key or self.settings.keys_of(table)
            _log.warning(
                "%s is mirrored with the mode changelog, a row for each change, because %s. For the mode %s, %sdelete its target, "
                "begin the table again (aiorepl spark mirror --restart-table), and request a snapshot; or set its mode to changelog",
                table,
                "its target is a changelog" if has else "it has no key",
                wanted,
                ""
                if has
                else "give it a primary key, or name the columns that identify a row in keys; then ",
            )
        return found

    def _is_complete(self, table: TableName, common: Common, mode: Mode) -> bool:
        """Whether a table can begin with a truncate: a changelog, whose partitions have known types."""
        layout = self.settings.layout_of(table)
        return mode == "changelog" and {*layout.partition_by, *layout.cluster_by} <= {*common.schema.names}

    def _target(self, table: TableName, mode: Mode) -> Target:
        return self._lake.table((table.schema, table.name), mode, self.settings.layout_of(table))

    def _runs(
        self, table: TableName, files: Sequence[StagedFile], common: Common, mode: Mode
    ) -> list[tuple[tuple[str, ...], list[StagedFile]]]:
        """Group consecutive files with the same key columns."""
        runs: list[tuple[tuple[str, ...], list[StagedFile]]] = []
        given = self.settings.keys_of(table)
        for file in files:
            if mode == "changelog":
                # Only files under REPLICA IDENTITY FULL need a key, to split an update of the key into a delete and an insert.
                # Other files have the delete and the insert already. If a table is a changelog because it has no key, the
                # whole row is the key, so that the changelog has the former row of each update.
                split = BEFORE in file.version.schema.names
                keys: tuple[str, ...] = ()
                if split and given:
                    keys = common.key(file.version, given)
                elif split and self.settings.mode_of(table) != "changelog":
                    keys = tuple(common.schema.names)
            elif file.only_truncates and runs:
                keys = runs[-1][0]
            else:
                keys = common.key(file.version, given)
            if not runs or set(runs[-1][0]) != set(keys):
                runs.append((keys, []))
            runs[-1][1].append(file)
        return runs

    def _types(self, table: TableName) -> ColumnTypes | None:
        return self.settings.types_of(table) if self.settings.types else None

    def _common(self, table: TableName, files: Sequence[StagedFile]) -> Common:
        with_rows = [file for file in files if not file.only_truncates]
        # Only the last place of a repeated description counts: the last description names the columns.
        versions = {file.version.digest: file.version for file in reversed(with_rows or files)}
        return Common(str(table), [*reversed(versions.values())], self._types(table))

    def _certain(self, table: TableName, files: Sequence[StagedFile]) -> Common:
        """Return the columns with built-in types. Others come with the first row, because a truncate has no types."""
        versions = []
        for version in dict.fromkeys(file.version for file in files):
            known = {column.name for column in relation_of(version).columns if column.type_oid in BUILTIN}
            schema = pa.schema([field for field in version.schema if field.name in known])
            versions.append(replace(version, schema=schema))
        return Common(str(table), versions, self._types(table))

    def _suffix(self, table: TableName, files: Sequence[StagedFile], mode: Mode) -> Sequence[StagedFile]:
        """Return the last files that fit into one target, for a table that begins again; a snapshot has the earlier rows."""
        first = len(files) - 1
        while first > 0 and files[first - 1].version.oid == files[-1].version.oid:
            try:
                common = self._common(table, files[first - 1 :])
                if len(self._runs(table, files[first - 1 :], common, mode)) > 1:
                    break
            except ConfigurationError:
                break
            first -= 1
        if first:
            _log.warning("%s begins again without the changes before its last description", table)
        return files[first:]

    def _require_one(self, table: TableName, oids: set[int], known: Written | None) -> None:
        """Check that all rows belong to the table that was mirrored under this name.

        :raises ConfigurationError: some rows belong to another table.
        """
        if len(oids | ({known.oid} if known is not None else set())) > 1:
            raise ConfigurationError(
                f"{table} was dropped and created again, or another table has its name now, and its target cannot have the rows of both. "
                "Delete the target or move it away, begin the table again (aiorepl spark mirror --restart-table), and request a snapshot"
            )


def _last(files: Sequence[StagedFile]) -> Place:
    """Return an upper bound of the positions of the batch's changes. A history's file may also have later changes."""
    return max(
        file.file.last if file.file.last[0] < file.until else (int(file.until) - 1, _ORDINALS)
        for file in files
    )


def _maintain(table: TableName, target: Target) -> None:
    try:
        target.maintain()
    except Exception as error:  # noqa: BLE001 - the batch is written, and upkeep is tried again
        _log.warning("the upkeep of %s failed: %s", table, type(error).__name__)


def _require_target(
    table: TableName, target: Target, known: Written, commit: Commit, *, present: bool
) -> None:
    """Check that the target still has its last batch.

    :raises ConfigurationError: the target is gone, or was replaced.
    """
    if not present:
        raise ConfigurationError(
            f"the target of {table} is gone: put it back; or begin the table again (aiorepl spark mirror "
            "--restart-table), and request a snapshot"
        )
    if not target.applied(commit.application, known.batch):
        raise ConfigurationError(
            f"the target of {table} does not have batch {known.batch}, which it had: it was put back from an older copy. Put the newest "
            "copy back; or delete it, begin the table again (aiorepl spark mirror --restart-table), and request a snapshot"
        )
