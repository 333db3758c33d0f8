"""Reads what a mirror of many tables has: which tables, how far, and their versions at one place of the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiorepl.errors import ConfigurationError
from aiorepl.history.manifest import Table
from aiorepl.journal.store import Location, open_store
from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.table import Lake
from aiorepl.spark.lake.table import Table as Target
from aiorepl.spark.mirroring.mirror import open_lake
from aiorepl.spark.mirroring.state import State, StateFile
from aiorepl.spark.reading.blocks import TableName


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table.

    :param path: the Delta table's path or URL; for other formats the source table's name.
    :param version: the number of its version: ``versionAsOf`` in Spark, ``version`` in deltalake.
    """

    path: str
    version: int


class MirroredTables:
    """The target of ``mirror``.

    :param target: as in ``mirror``,
    :param lake: and this as well.
    :raises ConfigurationError: nothing was mirrored into it.
    :raises JournalError: its state is damaged, or cannot be read.
    """

    def __init__(self, target: Location, lake: Lake | None = None) -> None:
        self._lake = open_lake(target) if lake is None else lake
        self._file = StateFile(open_store(target))
        self._require()

    def _require(self) -> State:
        state = self._file.load()
        if state is None:
            raise ConfigurationError(
                f"there is no {self._file.location}: nothing was mirrored into this target"
            )
        return state

    @property
    def lsn(self) -> LSN:
        """The tables have every transaction that ended up to this LSN, but for those that are set aside."""
        return self._require().lsn

    @property
    def tables(self) -> list[str]:
        """The tables that were mirrored, sorted."""
        return sorted(map(str, self._require().tables))

    @property
    def set_aside(self) -> Mapping[str, str]:
        """The tables that could not be written, and why."""
        return {str(table): aside.problem for table, aside in self._require().aside.items()}

    def batches(self) -> list[LSN]:
        """List the ends of batches that changed a table, ascending, as far back as the tables remember."""
        state = self._require()
        found = {version.commit.lsn for table in state.tables for version in self._target(table).versions()}
        return sorted(lsn for lsn in found if lsn <= state.lsn)

    def as_of(self, lsn: LSN | str | None = None) -> dict[str, TableVersion]:
        """Return the version of every table at the last end of a batch up to ``lsn``: all tables at one place of the journal.

        Left out are tables that are set aside, and those that had no version yet, or have it no longer.

        :param lsn: an LSN, also as text like ``0/171B2A8``; ``None``: as far as the mirror is.
        :raises ConfigurationError: the mirror is not there yet.
        """
        state = self._require()
        wanted = state.lsn if lsn is None else LSN.parse(lsn) if isinstance(lsn, str) else lsn
        if wanted > state.lsn:
            raise ConfigurationError(f"the mirror is at {state.lsn}, and not yet at {wanted}")
        found = {}
        for table in sorted(state.tables.keys() - state.aside.keys()):
            target = self._target(table)
            version = target.as_of(wanted)
            if version is not None:
                found[str(table)] = TableVersion(_path(target) or str(table), version)
        return found

    def restart(self, table: str) -> None:
        """Begin a table again, with an empty target: delete its target first, and load its rows with a snapshot.

        Of the changes that come next, those before its last incompatible description are left out. The mirror must not run.

        :param table: ``schema.table``.
        :raises ConfigurationError: its target is still there.
        """
        state, name = self._require(), TableName.parse(table)
        found = Table(name.schema, name.name)
        target = self._target(found)
        if target.schema() is not None:
            raise ConfigurationError(
                f"{table} still has its target {_path(target) or ''}: delete that, or move it away"
            )
        self._file.save(state.beginning_again(found))

    def _target(self, table: Table) -> Target:
        return self._lake.table((table.schema, table.name), ())


def _path(target: Target) -> str | None:
    return target.target if isinstance(target, DeltaTarget) else None
