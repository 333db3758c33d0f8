"""Reads the state of a mirror of many tables: its tables, its LSN, and the tables' versions at one LSN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.table import Lake, Mode, Rows, Target, TargetVersion
from aiorepl.spark.mirroring.mirror import open_lake
from aiorepl.spark.mirroring.state import SavedState, StateFile
from aiorepl.storage.opening import Location, open_store
from aiorepl.table_name import TableName
from aiorepl.transforms.patterns import quote
from aiorepl.transforms.selection import Selection


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table.

    :param path: the Delta table's path or URL; for other formats the source table's name.
    :param version: the version's number: ``versionAsOf`` in Spark, ``version`` in deltalake.
    """

    path: str
    version: int


@checked("MirroredTables")
class MirroredTables:
    """The target of ``mirror``.

    :param target: as in ``mirror``.
    :param lake: as in ``mirror``.
    :raises ConfigurationError: nothing was mirrored into the target.
    :raises JournalError: the target's state is damaged, or cannot be read.
    """

    def __init__(self, target: Location, lake: Lake | None = None) -> None:
        self._lake = open_lake(target) if lake is None else lake
        self._file = StateFile(open_store(target))
        self._require()

    def _require(self) -> SavedState:
        state = self._file.load()
        if state is None:
            raise ConfigurationError(
                f"there is no {self._file.location}: nothing was mirrored into this target"
            )
        return state

    @property
    def lsn(self) -> LSN:
        """The LSN up to which all tables, except those set aside, have every transaction."""
        return self._require().lsn

    @property
    def tables(self) -> list[str]:
        """The tables that were mirrored, sorted."""
        return sorted(map(str, self._require().tables))

    @property
    def set_aside(self) -> Mapping[str, str]:
        """The tables that were set aside because they could not be written, with the reasons."""
        return {str(table): aside.problem for table, aside in self._require().aside.items()}

    def require_selection(self, selection: Selection | None) -> None:
        """Check that a comparison of the tables with their source knows the columns that the mirror hides.

        :param selection: the selection that the comparison uses; ``None`` without a selection.
        :raises ConfigurationError: the mirror has a selection and the comparison has none, or a key is masked that ``selection`` does not
            mask.
        """
        state = self._require()
        rules = Selection().rules if selection is None else selection.rules
        for table, written in state.tables.items():
            for name, mark in written.key.items():
                if mark and not rules.may_hide(name):
                    raise ConfigurationError(
                        f"the key column {name!r} of {table} is masked in the target, but not by the selection: pass the mirror's selection"
                    )
        if selection is None and state.selection:
            raise ConfigurationError("the mirror has a selection: pass it as selection")

    def types(self, table: str) -> dict[str, str]:
        """Return the types by column that a table was written with, in the form of the option ``types``.

        :param table: ``schema.table``.
        """
        name, written = next(each for each in self._require().tables.items() if str(each[0]) == table)
        return {f"{quote((name.schema, name.name, column))}?": text for column, text in written.types.items()}

    def batches(self) -> list[LSN]:
        """List the LSNs at which batches that changed a table ended, ascending, as far back as the tables' logs reach."""
        state = self._require()
        ends = {each.commit.lsn for table in self._versions(state).values() for each in table}
        return sorted(lsn for lsn in ends if lsn <= state.lsn)

    def as_of(self, lsn: LSN | str | None = None) -> dict[str, TableVersion]:
        """Return the version of every table at the end of the last batch up to ``lsn``: all have the same transactions.

        Tables that are set aside are left out. So are tables that have no version of that batch, or whose version was vacuumed.

        :param lsn: an LSN, also as text like ``0/171B2A8``; ``None`` for the mirror's own LSN.
        :raises ConfigurationError: the mirror has not reached ``lsn`` yet.
        """
        state = self._require()
        wanted = state.lsn if lsn is None else LSN.parse(lsn) if isinstance(lsn, str) else lsn
        if wanted > state.lsn:
            raise ConfigurationError(f"the mirror is at {state.lsn}, and not yet at {wanted}")
        found = {}
        for table, each in self._versions(state).items():
            version = next((one for one in each if one.commit.lsn <= wanted), None)
            if version is not None:
                found[str(table)] = TableVersion(_path(self._target(table)) or str(table), version.number)
        return found

    def newest(self, table: str) -> Rows:
        """Return the newest version of a table. It may be newer than the mirror's last batch.

        :param table: ``schema.table``.
        :raises ConfigurationError: the target is gone.
        """
        found = next(each for each in self._require().tables if str(each) == table)
        rows = self._target(found).newest()
        if rows is None:
            raise ConfigurationError(f"the target of {table} is gone: put it back")
        return rows

    def target(self, table: str, mode: Mode) -> Target:
        """Return the target of a table, to be corrected.

        :param table: ``schema.table``.
        :param mode: which rows the table has.
        """
        found = next(each for each in self._require().tables if str(each) == table)
        return self._lake.table((found.schema, found.name), (), mode)

    def _versions(self, state: SavedState) -> dict[TableName, Iterator[TargetVersion]]:
        tables = sorted(state.tables.keys() - state.aside.keys())
        return {table: self._target(table).versions() for table in tables}

    def restart(self, table: str) -> None:
        """Start a table again with an empty target. Delete its target before, and request a snapshot of its rows afterwards.

        The next batches skip the changes before the table's last incompatible description. The mirror must not be running.

        :param table: ``schema.table``.
        :raises ConfigurationError: the table's target still exists.
        """
        state, name = self._require(), TableName.parse(table)
        found = TableName(name.schema, name.name)
        target = self._target(found)
        if target.schema() is not None:
            raise ConfigurationError(
                f"{table} still has its target {_path(target) or ''}: delete that, or move it away"
            )
        self._file.save(state.beginning_again(found))

    def _target(self, table: TableName) -> Target:
        return self._lake.table((table.schema, table.name), ())


def _path(target: Target) -> str | None:
    return target.target if isinstance(target, DeltaTarget) else None
