"""Completeness of a mirror's tables by time: the time until which a table has every transaction.

The journal has the commit times that heartbeats have proven (``journal.times``). A batch records those at its end in the commit of each
table, and in the mirror's state. While the journal has no new changes, heartbeats still prove later times: they are in ``complete.json``
beside the state, so an idle database needs no commits. The process that applies batches writes both files; between batches, the process
that plans them writes ``complete.json``.

A table is held at an earlier time while it lacks rows: its snapshot is not complete, it is set aside, or transactions are lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from aiorepl.durable import reason
from aiorepl.errors import JournalError
from aiorepl.journal.completeness import Completeness
from aiorepl.journal.times import NO_TIMES, Times
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.storage.checked_json import lsn, seal, text, unseal
from aiorepl.storage.store import Store, reading
from aiorepl.table_name import TableName
from aiorepl.transactions.transaction import to_datetime

_log = logger("aiorepl.spark")

FILE: Final = "complete.json"


@dataclass(frozen=True, slots=True)
class Hold:
    """A table that lacks rows.

    :param until: the table was complete until this time, as ``Times.until``; ``None`` if it never was.
    :param after: a snapshot that begins at or after this LSN completes the table; ``None`` for a table that is complete once it is no
        longer set aside.
    """

    until: int | None
    reason: str = ""
    after: LSN | None = None


@dataclass(frozen=True, slots=True)
class Lapse:
    """A time during which a table lacked rows.

    :param table: the table.
    :param until: its versions of then are complete until this time; ``None`` if they never are.
    :param end: the end of the batch that completed the table.
    """

    table: TableName
    until: int | None
    end: LSN


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The range of a batch.

    :param begins: the LSN at which the mirror began; it does not have earlier snapshots.
    :param start: the LSN up to which the tables had all transactions before the batch.
    :param end: the LSN up to which they have all transactions after it.
    :param lsn: the batch's end in the commits of its tables.
    :param times: the commit times at the batch's end; ``None`` if they are not known.
    """

    begins: LSN
    start: LSN
    end: LSN
    lsn: LSN
    times: Times | None


@dataclass(frozen=True, slots=True)
class Complete:
    """The completeness of a mirror's tables at the end of a batch.

    :param times: the commit times up to that end.
    :param held: the tables that lack rows.
    :param lapses: the tables that lacked rows earlier.
    """

    times: Times = NO_TIMES
    held: Mapping[TableName, Hold] = field(default_factory=dict)
    lapses: tuple[Lapse, ...] = ()

    def until(self, table: TableName) -> int | None:
        """Return the time until which a table is complete; ``None`` if it is unknown, or the table never was."""
        hold = self.held.get(table)
        return self.times.until if hold is None else hold.until

    def had(self, table: TableName, time: int, at: LSN) -> bool:
        """Whether the version of a table at ``at``, the end of a batch that is complete until a time, is complete until this time too."""
        until = self.until(table)
        return (
            until is not None
            and until >= time
            and all(
                at >= each.end or (each.until is not None and each.until >= time)
                for each in self.lapses
                if each.table == table
            )
        )

    def by_table(self, tables: Collection[TableName]) -> dict[TableName, int | None]:
        """Return the time until which each table is complete, sorted by table."""
        return {table: self.until(table) for table in sorted(tables)}

    def after(
        self,
        batch: BatchRange,
        journal: Completeness,
        tables: Collection[TableName],
        new: Collection[TableName],
        aside: Collection[TableName] = (),
        lacking: Collection[TableName] = (),
    ) -> Complete:
        """Return the completeness after a batch.

        :param tables: all tables of the mirror, including those that are set aside.
        :param new: the tables that earlier batches did not have.
        :param aside: the tables that are set aside.
        :param lacking: the new tables whose earlier rows are not in the journal.
        """
        held: dict[TableName, Hold] = {}
        lapses = list(self.lapses)
        gap = next((gap for gap in reversed(journal.gaps) if batch.start < gap.until <= batch.end), None)
        for table in sorted(tables):
            hold = self.held.get(table)
            if table in new:
                came = any((each.schema, each.table) == (table.schema, table.name) for each in journal.tables)
                hold = Hold(None, "it lacks a complete snapshot", batch.begins if came else ZERO)
            if table in lacking:
                hold = Hold(None, "its earlier rows are missing: request a snapshot", batch.start)
            if gap is not None and (table not in new or hold is None):
                reason = f"transactions from {gap.after} to {gap.until} are lost: request a snapshot"
                hold = Hold(self.until(table), reason, gap.until)
            if table in aside:
                hold = Hold(self.times.until) if hold is None else hold
                hold = replace(hold, reason="it is set aside")
            elif hold is not None:
                whole = hold.after is None or journal.is_whole(table, hold.after, batch.end)
                if whole and table not in new:
                    lapses.append(Lapse(table, hold.until, batch.lsn))
                hold = None if whole else hold
            if hold is not None:
                held[table] = hold
        times = batch.times
        times = self.times if times is None else times.proven(self.times.until)
        return Complete(times, held, tuple(lapses))

    def restarted(self, table: TableName, at: LSN) -> Complete:
        """Return the completeness after a restart of a table with an empty target."""
        return replace(
            self, held={**self.held, table: Hold(None, "it was restarted: request a snapshot", at)}
        )

    def to_json(self) -> list[Any]:
        """Convert to a list for JSON, for ``from_json``."""
        return [
            self.times.to_json(),
            [
                [
                    table.schema,
                    table.name,
                    hold.until,
                    hold.reason,
                    None if hold.after is None else str(hold.after),
                ]
                for table, hold in self.held.items()
            ],
            [[each.table.schema, each.table.name, each.until, str(each.end)] for each in self.lapses],
        ]

    @classmethod
    def from_json(cls, found: Any) -> Complete:
        """Parse the output of ``to_json``.

        :raises Exception: a field is wrong.
        """
        times, held, lapses = found
        return cls(
            Times.from_json(times),
            {
                TableName(text({"schema": schema}, "schema"), text({"name": name}, "name")): Hold(
                    None if until is None else int(until),
                    text({"reason": reason}, "reason"),
                    None if after is None else LSN.parse(after),
                )
                for schema, name, until, reason, after in held
            },
            tuple(
                Lapse(TableName(schema, name), None if until is None else int(until), LSN.parse(end))
                for schema, name, until, end in lapses
            ),
        )


class CompleteFile:
    """Reads and writes ``complete.json`` beside the state of a mirror: a line with a JSON object, which schedulers may read too.

    :param store: the folder of the state.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def times(self, query: str, at: LSN) -> Times | None:
        """Return the commit times after the batch of a query that ended at ``at``; ``None`` if there are none.

        :raises JournalError: the file is damaged, or cannot be read.
        """

        def read(fields: Mapping[str, Any]) -> Times | None:
            found = text(fields, "query"), lsn(fields, "lsn")
            return Times.from_json(fields["times"]) if found == (query, at) else None

        with reading(self._store):
            try:
                data, _ = self._store.load(FILE)
            except FileNotFoundError:
                return None
        return unseal(
            data, f"{FILE} in {self._store.url}", read, remedy="Delete it: the mirror writes it again"
        )

    def write(self, query: str, at: LSN, complete: Complete, tables: Collection[TableName]) -> bool:
        """Replace the file. An error is logged only, because the next batch or heartbeat writes the file again.

        :returns: whether the file was written.
        """
        times, untils = complete.times, complete.by_table(tables)
        fields = {
            "complete_until": _iso(least(untils.values())),
            "tables": {str(table): _iso(until) for table, until in untils.items()},
            "late_transactions": times.late,
            "late_since": _iso(times.late_since),
            "lsn": str(at),
            "query": query,
            "times": times.to_json(),
        }
        try:
            self._store.write(FILE, seal(fields))
        except (OSError, JournalError) as error:
            problem = reason(error) if isinstance(error, OSError) else error
            _log.warning("%s in %s cannot be written: %s", FILE, self._store.url, problem)
            return False
        return True


def least(untils: Collection[int | None]) -> int | None:
    """Return the earliest time; ``None`` if there is none, or one is unknown."""
    known = [until for until in untils if until is not None]
    return min(known) if known and len(known) == len(untils) else None


def moment(time: int | None) -> datetime | None:
    """Convert a time in microseconds since 2000."""
    return None if time is None else to_datetime(time)


def _iso(time: int | None) -> str | None:
    return None if time is None else to_datetime(time).isoformat()
