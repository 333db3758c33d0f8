"""Writes the changes that a batch has of one table. Runs on the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from aiorepl.errors import ConfigurationError
from aiorepl.history.manifest import Table
from aiorepl.journal.store import Location
from aiorepl.spark.lake.table import Commit, Lake, Part, Truncate
from aiorepl.spark.mirroring.changes import Changes, truncates_of
from aiorepl.spark.mirroring.reduction import reduce_changes
from aiorepl.spark.mirroring.settings import Settings
from aiorepl.spark.mirroring.staging import StagedFile
from aiorepl.spark.mirroring.versions import Common

_log = logging.getLogger("aiorepl.spark")

LARGE: Final = 64 * 1024 * 1024
"""The bytes of a table's changes in memory, from which on executors reduce them."""
_PART_BYTES: Final = 32 * 1024 * 1024

ReduceLarge = Callable[
    [Changes, Sequence[StagedFile], Sequence[Truncate]], tuple[Sequence[Part], Sequence[Truncate]]
]
"""Reduces many changes on executors: returns the parts, and all truncates, ascending."""


class TableWriter:
    """Writes tables of one lake. Several threads may use it, each for other tables.

    :param journal: its history has the files that are ``compacted``.
    :param staging: the folder of the others.
    """

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        journal: Location,
        staging: Location,
        reduce_large: ReduceLarge,
    ) -> None:
        self.settings = settings
        self._lake = lake
        self._journal = journal
        self._staging = staging
        self._reduce_large = reduce_large

    def exists(self, table: Table) -> bool:
        """Whether a table has a target."""
        target = self._lake.table((table.schema, table.name), (), self.settings.mode_of(table))
        return target.schema() is not None

    def write(
        self,
        table: Table,
        files: Sequence[StagedFile],
        commit: Commit,
        known: int | None,
        *,
        again: bool = False,
    ) -> int | None:
        """Write the changes of a table, unless this batch was applied; return the table's oid, ``None`` if it has no target yet.

        :param files: in the order of their rows.
        :param known: the oid of the table that was mirrored under this name.
        :param again: write them also if a batch with this number was applied, because that one had another end. To merge a
            change twice is harmless.
        :raises ConfigurationError: the table cannot be mirrored.
        :raises DataError: a value cannot be.
        :raises JournalError: a file is missing or damaged.
        """
        oid = files[-1].version.oid
        # If the table was dropped and created again, its earlier rows are gone.
        files = [file for file in files if file.version.oid == oid]
        with_rows = [file for file in files if not file.only_truncates]
        versions = list({file.version.digest: file.version for file in with_rows or files}.values())
        common = Common(str(table), versions)
        mode = self.settings.mode_of(table)
        keys = () if mode == "changelog" else common.key(versions[-1], self.settings.keys_of(table))
        target = self._lake.table((table.schema, table.name), keys, mode, self.settings.layout_of(table))
        if not again and target.applied(commit.application, commit.number):
            return oid
        present = target.schema() is not None
        if known is not None and not present:
            raise ConfigurationError(
                f"the target of {table} is gone, which had its rows: put it back; or begin the table again (aiorepl spark mirror "
                "--restart-table), and load its rows with a snapshot"
            )
        if known not in (None, oid):
            raise ConfigurationError(
                f"{table} was dropped and created again, or another table has its name now: its target has the rows of the "
                "former one. Delete the target or move it away, and begin the table again (aiorepl spark mirror --restart-table)"
            )
        if with_rows:
            target.evolve(common.schema, common.defaults)
        elif not present:
            return None
        changes = Changes(self._journal, self._staging, common, keys, mode, self.settings.null)
        # A log has a row for each truncate.
        with_rows = files if mode == "changelog" else with_rows
        truncates = [each for file in files if file not in with_rows for each in truncates_of(file)]
        if sum(file.memory for file in with_rows) > LARGE:
            parts, found = self._reduce_large(changes, with_rows, truncates)
        else:
            rows = pa.Table.from_batches(
                (batch for file in with_rows for batch in changes.rows(file)), schema=common.rows
            )
            reduced = reduce_changes(rows, keys, mode, truncates)
            parts, found = reduced.parts(_PART_BYTES), reduced.truncates
        target.merge(parts, commit, found)
        try:
            target.maintain()
        except Exception as error:  # noqa: BLE001 - the batch is written, and upkeep is tried again
            _log.warning("the upkeep of %s failed: %s", table, type(error).__name__)
        return oid
