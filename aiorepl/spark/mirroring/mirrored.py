"""Reads the state of a mirror of many tables: its tables, its LSN, and the tables' versions at one LSN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN, ZERO
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.table import Lake, Mode, Rows, SharedTarget, Target, TargetVersion
from aiorepl.spark.mirroring.complete import Complete, least, moment
from aiorepl.spark.mirroring.mirror import open_lake
from aiorepl.spark.mirroring.state import SavedState, StateFile
from aiorepl.storage.opening import Location, open_store
from aiorepl.table_name import TableName
from aiorepl.transactions.transaction import from_datetime, to_datetime
from aiorepl.transforms.patterns import quote
from aiorepl.transforms.selection import Selection


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table.

    :param path: the Delta table's path or URL; for other formats the source table's name.
    :param version: the version's number: ``versionAsOf`` in Spark, ``version`` in deltalake.
    :param lsn: the version has every transaction that ended up to this LSN, as the other tables of the answer have.
    """

    path: str
    version: int
    lsn: LSN = ZERO


@dataclass(frozen=True, slots=True)
class LateTransactions:
    """Transactions that came with a commit time before ``complete_until``, because the source's clock had gone back, or because another
    server's changes made them.

    :param count: their number since the journal began. The lake has them.
    :param since: the earliest commit time of one.
    :param lsn: the commit LSN of the last one.
    """

    count: int
    since: datetime
    lsn: LSN


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

    def _complete(self) -> tuple[SavedState, Complete]:
        """Return the state, and how far its tables are complete."""
        state = self._require()
        while True:
            complete, again = self._file.complete(state), self._require()
            # After a batch, the file is not of the earlier state, whose own times are older than those that the file had.
            if (again.query, again.lsn) == (state.query, state.lsn):
                return state, complete
            state = again

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

    def complete_until(self, *tables: str) -> datetime | None:
        """Return the time until which tables are complete: they have every transaction with an earlier commit time.

        The commit times are those of the source's clock. Heartbeats prove them, so the source needs ``heartbeat_interval``. The time
        never goes back for a table. Transactions that come later although they have an earlier commit time are in
        ``late_transactions``.

        :param tables: ``schema.table``; the answer is the earliest time of these tables; by default, of all tables.
        :returns: ``None`` if no time is proven yet, or a table was never complete: ``incomplete`` has the reason.
        :raises ConfigurationError: the mirror does not have such a table.
        """
        state, complete = self._complete()
        by_name = {str(table): table for table in state.known}
        for name in tables:
            if name not in by_name:
                raise ConfigurationError(f"the mirror has no table {name}, or has no row of it yet")
        untils = complete.by_table([by_name[name] for name in tables or by_name])
        return moment(least(untils.values()))

    @property
    def incomplete(self) -> Mapping[str, str]:
        """The tables that lack rows, for which ``complete_until`` stays where it was, with the reasons."""
        return {str(table): hold.reason for table, hold in self._complete()[1].held.items()}

    @property
    def late_transactions(self) -> LateTransactions | None:
        """The transactions that came with a commit time before ``complete_until``; ``None`` if there were none."""
        times = self._complete()[1].times
        since = moment(times.late_since)
        return None if since is None else LateTransactions(times.late, since, times.late_lsn)

    def as_of(self, lsn: LSN | str | None = None, *, time: datetime | None = None) -> dict[str, TableVersion]:
        """Return the version of every table at the end of one batch: all have the same transactions.

        Tables that are set aside are left out. So are tables that have no version of that batch, or whose version was vacuumed.

        :param lsn: the last batch up to this LSN, also as text like ``0/171B2A8``; ``None`` for the mirror's own LSN.
        :param time: instead of ``lsn``, an aware time: the first batch whose tables have every transaction with an earlier commit time.
            They may have later ones too: the batch's end is the ``lsn`` of each version. Tables that were not complete until then at the end of
            this batch are left out.
        :raises ConfigurationError: the mirror has not reached ``lsn`` yet, the tables are not complete until ``time``, or both are given.
        """
        state, complete = (
            self._complete() if lsn is None and time is not None else (self._require(), Complete())
        )
        if time is not None:
            if lsn is not None or time.tzinfo is None:
                raise ConfigurationError(
                    "as_of takes an LSN or an aware time, such as datetime(..., tzinfo=UTC)"
                )
            lsn = self._first_complete(state, complete, time)
        wanted = state.lsn if lsn is None else LSN.parse(lsn) if isinstance(lsn, str) else lsn
        if wanted > state.lsn:
            raise ConfigurationError(f"the mirror is at {state.lsn}, and not yet at {wanted}")
        found = {}
        for table, each in self._versions(state).items():
            version = next((one for one in each if one.commit.lsn <= wanted), None)
            behind = time is not None and not complete.had(table, from_datetime(time), wanted)
            if version is not None and not behind:
                path = _path(self._target(table)) or str(table)
                found[str(table)] = TableVersion(path, version.number, wanted)
        return found

    def _first_complete(self, state: SavedState, complete: Complete, time: datetime) -> LSN:
        """Return the end of the first batch after which the tables are complete until a time."""
        until = moment(complete.times.until)
        if not _reached(complete.times.until, time):
            raise ConfigurationError(f"the tables are complete until {until}, and not yet until {time}")
        ends = (each.commit for table in self._versions(state).values() for each in table)
        return min(
            (
                each.lsn
                for each in ends
                if each.lsn <= state.lsn and each.complete_until is not None and each.complete_until >= time
            ),
            default=state.lsn,
        )

    def newest(self, table: str) -> Rows:
        """Return the newest version of a table. It may be newer than the mirror's last batch.

        :param table: ``schema.table``.
        :raises ConfigurationError: the target is gone.
        """
        found = next(each for each in self._require().tables if str(each) == table)
        rows = self._own(self._target(found)).newest()
        if rows is None:
            raise ConfigurationError(f"the target of {table} is gone: put it back")
        return rows

    def target(self, table: str, mode: Mode) -> Target:
        """Return the target of a table, to be corrected.

        :param table: ``schema.table``.
        :param mode: which rows the table has.
        """
        found = next(each for each in self._require().tables if str(each) == table)
        return self._own(self._lake.table((found.schema, found.name), mode))

    def _versions(self, state: SavedState) -> dict[TableName, Iterator[TargetVersion]]:
        tables = sorted(state.tables.keys() - state.aside.keys())
        return {table: self._target(table).versions() for table in tables}

    def restart(self, table: str) -> None:
        """Start a table again with an empty target. Delete its target before, and request a snapshot of its rows afterwards.

        If the target has rows of several sources, only the rows of the mirror's own source are deleted, by this call. The next batches skip the
        changes before the table's last incompatible description. The mirror must not be running.

        :param table: ``schema.table``.
        :raises ConfigurationError: the table's target still exists, or another mirror writes the rows of the lake's source.
        """
        state, name = self._require(), TableName.parse(table)
        found = TableName(name.schema, name.name)
        target = self._own(self._target(found))
        if isinstance(target, SharedTarget) and target.source is not None:
            target.forget()
        elif target.schema() is not None:
            raise ConfigurationError(
                f"{table} still has its target {_path(target) or ''}: delete that, or move it away"
            )
        self._file.save(state.beginning_again(found))

    def _own(self, target: Target) -> Target:
        """Check that this mirror writes the target's rows, in a table of several sources."""
        if isinstance(target, SharedTarget) and target.writer() not in (None, self._require().application):
            raise ConfigurationError(
                f"another mirror writes the rows of source {target.source!r} in {target}: pass this mirror's own lake"
            )
        return target

    def _target(self, table: TableName) -> Target:
        return self._lake.table((table.schema, table.name))


def _reached(until: int | None, time: datetime) -> bool:
    return until is not None and to_datetime(until) >= time


def _path(target: Target) -> str | None:
    return target.target if isinstance(target, DeltaTarget) else None
