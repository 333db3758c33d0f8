"""Records accepted gaps, and the tables that a journal does not have from their first row on. Pure.

A file of its own, which ``position.json`` names, has gaps and tables. Chunks that were published after this file was
written are in ``position.json``. Otherwise each table of a snapshot would need a new file with all tables.

A table is whole for a reader that begins at or before the table's snapshot, if nothing is missing after that. A table that
came into the stream without a snapshot is never whole: rows that were there before are not in the journal. Nobody can tell
whether there were any. Tables are distinguished by oid and name, because readers know them by name: if a name was given to
another table, that table's rows under this name begin in the middle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import filterfalse
from typing import Any, Final, NamedTuple

from aiorepl.errors import DamagedJournal
from aiorepl.lsn import LSN
from aiorepl.storage.checked_json import (
    boolean,
    checksum,
    integer,
    lsn,
    seal,
    text,
    unseal,
)
from aiorepl.table_name import TableName
from aiorepl.transactions.transaction import SnapshotChunk

FOLDER: Final = "completeness"

_UINT32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of the stream that the slot had lost, and that the user has accepted as lost.

    :param after: transactions that committed after this are missing.
    :param until: the end of the gap.
    :param end: the end of the segment before the gap; 0 if there is none.
    """

    after: LSN
    until: LSN
    end: LSN

    @property
    def start_lsn(self) -> LSN:
        """The start of the missing range: after a promotion, the journal may have transactions beyond ``after``."""
        return max(self.after, self.end)


class PublishedChunk(NamedTuple):
    """A chunk of a snapshot in the journal.

    :param commit_lsn: the commit LSN of its transaction.
    :param end_lsn: the end of its transaction.
    """

    chunk: SnapshotChunk
    commit_lsn: LSN
    end_lsn: LSN

    @property
    def decisive(self) -> bool:
        """Whether the chunk begins or completes a snapshot, or has only rows that a condition selects."""
        return self.chunk.number == 1 or self.chunk.last_of_table or self.chunk.partial


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The place of a table's snapshot in the journal.

    A table has at most two snapshots: the last complete one, and one that is being read or was abandoned.

    :param start_lsn: the table is complete for readers that begin at or before this LSN.
    :param complete: the end of the snapshot's last chunk; ``None`` while chunks are read.
    :param abandoned: whether the snapshot will never be complete, because it was cancelled or the table cannot be read.
    :param reading: identifies the reading of the table; empty if the reading began in an initial snapshot, or under an earlier version.
    """

    oid: int
    schema: str
    table: str
    start_lsn: LSN
    complete: LSN | None = None
    abandoned: bool = False
    reading: str = ""

    @property
    def open(self) -> bool:
        """Whether the snapshot is being read."""
        return self.complete is None and not self.abandoned

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Appearance:
    """A table that came into the stream without a snapshot.

    :param after: the journal has its rows from transactions that ended after this LSN.
    :param end: the end of the first segment with its rows.
    :param again: whether the name belonged to another table: it was dropped and created again, or tables were renamed.
    """

    oid: int
    schema: str
    table: str
    after: LSN
    end: LSN
    again: bool

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def reason(self) -> str:
        """Why the table is not whole."""
        if self.again:
            return f"another table has this name since {self.after}, without a snapshot"
        return f"it has been in the stream since {self.after}, without a snapshot"


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A table that a reader does not get whole.

    :param reason: why the table is not whole.
    """

    schema: str
    table: str
    reason: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table} ({self.reason})"


@dataclass(frozen=True)
class Completeness:
    """The gaps and the tables of a journal.

    :param gaps: all gaps that were ever accepted.
    :param tables: the snapshots of tables.
    :param appeared: the tables that came without a snapshot.
    """

    gaps: tuple[Gap, ...] = ()
    tables: tuple[TableSnapshot, ...] = ()
    appeared: tuple[Appearance, ...] = ()

    @cached_property
    def _known(self) -> frozenset[tuple[int, TableName]]:
        tables: tuple[TableSnapshot | Appearance, ...] = (*self.tables, *self.appeared)
        return frozenset((each.oid, TableName(each.schema, each.table)) for each in tables)

    @property
    def names(self) -> set[TableName]:
        """The names of all tables that the journal has, or had."""
        return {table for _, table in self._known}

    def with_rows(self, tables: Iterable[tuple[int, TableName]], after: LSN, end: LSN) -> Completeness:
        """Add tables with rows in a segment of the stream.

        :param tables: oids and names.
        :param after: the end of the previous segment.
        :param end: the end of this segment.
        """
        new = dict.fromkeys(each for each in tables if each not in self._known)
        if not new:
            return self
        renamed = {table for _, table in new}
        others = {table for _, table in self._known if table in renamed}
        return replace(
            self,
            tables=tuple(each for each in self.tables if (each.schema, each.table) not in renamed),
            appeared=(
                *(each for each in self.appeared if (each.schema, each.table) not in renamed),
                *(Appearance(oid, *table, after, end, table in others) for oid, table in new),
            ),
        )

    def with_chunks(self, chunks: Collection[PublishedChunk]) -> Completeness:
        """Add chunks. Looks once at each table, however many chunks there are."""
        if not chunks:
            return self
        oids = {each.chunk.oid for each in chunks}
        names = {(each.chunk.schema, each.chunk.table) for each in chunks}

        def concerned(table: TableSnapshot | Appearance) -> bool:
            return table.oid in oids or (table.schema, table.table) in names

        part = Completeness(
            self.gaps, tuple(filter(concerned, self.tables)), tuple(filter(concerned, self.appeared))
        )
        for each in chunks:
            part = part.with_chunk(*each)
        return replace(
            self,
            tables=(*filterfalse(concerned, self.tables), *part.tables),
            appeared=(*filterfalse(concerned, self.appeared), *part.appeared),
        )

    def with_chunk(self, chunk: SnapshotChunk, commit_lsn: LSN, end_lsn: LSN) -> Completeness:
        """Add a chunk whose transaction has these LSNs."""
        if chunk.partial:
            return self.with_rows([(chunk.oid, TableName(chunk.schema, chunk.table))], commit_lsn, end_lsn)
        if chunk.number == 1:
            # Rows that had changed since the snapshot are not in the chunk, but in the stream before it.
            start = min(commit_lsn, chunk.snapshot_lsn)
            current: TableSnapshot | None = TableSnapshot(
                chunk.oid, chunk.schema, chunk.table, start, reading=chunk.reading
            )
        elif not chunk.last_of_table:
            return self
        else:
            current = next((table for table in self.tables if table.open and _continues(chunk, table)), None)
        if current is None:
            return self
        if chunk.last_of_table:
            current = replace(current, complete=end_lsn)
        name = current.schema, current.table

        def obsolete(table: TableSnapshot) -> bool:
            if (table.schema, table.table) == name:
                return chunk.last_of_table or table.complete is None
            # The table has another name: it was renamed. A complete snapshot under the former name stays.
            return table.oid == chunk.oid and table.complete is None

        return replace(
            self,
            tables=(*(table for table in self.tables if not obsolete(table)), current),
            appeared=tuple(each for each in self.appeared if (each.schema, each.table) != name),
        )

    @property
    def readings(self) -> frozenset[str]:
        """The readings of tables that are complete."""
        return frozenset(
            table.reading for table in self.tables if table.complete is not None and table.reading
        )

    def incomplete(self, begins: LSN, table: TableName | None = None) -> list[Incomplete]:
        """The tables that a reader with an empty target does not get whole, sorted by name.

        :param begins: where the reader begins.
        :param table: look only at this table, which the journal may not know.
        """
        names = sorted(self.names) if table is None else [table]
        found = ((name, self._lacking(begins, name)) for name in names)
        return [Incomplete(*name, reason) for name, reason in found if reason]

    def complete_from(self, table: TableName) -> LSN | None:
        """The position from which on the journal has all rows of a table; ``None`` if there is none."""
        snapshots = self._snapshots_by_name.get(table, ())
        whole = [each.start_lsn for each in snapshots if each.complete and not self._gap(each)]
        return max(whole, default=None)

    def is_whole(self, table: TableName, after: LSN, until: LSN) -> bool:
        """Whether a reader that has read up to ``until`` has every row of a table, by a snapshot that begins at or after ``after``.

        A table that came without a snapshot is whole from its first change on, if ``after`` is 0.
        """

        def lost(begins: LSN) -> bool:
            return any(begins < gap.until <= until for gap in self.gaps)

        snapshots = self._snapshots_by_name.get(table, ())
        if not snapshots and not after:
            return not any(lost(each.after) for each in self._appeared_by_name.get(table, ()))
        return any(
            each.complete is not None
            and each.complete <= until
            and each.start_lsn >= after
            and not lost(each.start_lsn)
            for each in snapshots
        )

    def _lacking(self, begins: LSN, table: TableName) -> str:
        reason = "the journal has neither a snapshot nor a change of it"
        for came in self._appeared_by_name.get(table, ()):
            reason = came.reason
        for snapshot in self._snapshots_by_name.get(table, ()):
            start, gap = snapshot.start_lsn, self._gap(snapshot)
            if snapshot.abandoned:
                reason = "its snapshot was not completed"
            elif gap is not None:
                reason = (
                    f"transactions from {gap.after} to {gap.until} are missing, after its snapshot at {start}"
                )
            elif begins > start:
                reason = f"its snapshot is before that, at {start}"
            else:
                return ""
        return reason

    @cached_property
    def _snapshots_by_name(self) -> dict[TableName, list[TableSnapshot]]:
        found: dict[TableName, list[TableSnapshot]] = {}
        for each in self.tables:
            found.setdefault(TableName(each.schema, each.table), []).append(each)
        return found

    @cached_property
    def _appeared_by_name(self) -> dict[TableName, list[Appearance]]:
        found: dict[TableName, list[Appearance]] = {}
        for each in self.appeared:
            found.setdefault(TableName(each.schema, each.table), []).append(each)
        return found

    def _gap(self, snapshot: TableSnapshot) -> Gap | None:
        return next((gap for gap in self.gaps if gap.until > snapshot.start_lsn), None)

    def appeared_between(self, after: LSN, until: LSN) -> list[Appearance]:
        """The tables that came without a snapshot in the segments that end between two positions."""
        return [each for each in self.appeared if after < each.end <= until]

    def abandoned(self, besides: Collection[int]) -> Completeness:
        """Abandon the open snapshots.

        :param besides: the oids of the tables whose snapshots continue.
        """
        tables = tuple(
            replace(table, abandoned=True) if table.open and table.oid not in besides else table
            for table in self.tables
        )
        return replace(self, tables=tables)


def _continues(chunk: SnapshotChunk, table: TableSnapshot) -> bool:
    """Whether a chunk belongs to the same reading of its table. A reading beside the stream may continue the reading of an initial snapshot."""
    return table.oid == chunk.oid and table.reading in ("", chunk.reading)


def completeness_file(name: str) -> str:
    """Return the file of the completeness ``name``."""
    return f"{FOLDER}/{name}.json"


def completeness_name(epoch: int, sequence: int, data: bytes) -> str:
    """Make the name of the file that a writer publishes with this sequence number.

    It ends with a checksum of the file, so that the file of another journal cannot take its place.
    """
    return f"{epoch:08X}-{sequence:012X}-{checksum(data):08X}"


def dump_completeness(completeness: Completeness) -> bytes:
    """Make the bytes of the file."""
    return seal(
        {
            "gaps": [
                {"after": str(gap.after), "until": str(gap.until), "end": str(gap.end)}
                for gap in completeness.gaps
            ],
            "tables": [_dump_table(table) for table in completeness.tables],
            "appeared": [
                [each.oid, each.schema, each.table, str(each.after), str(each.end), each.again]
                for each in completeness.appeared
            ],
        }
    )


def load_completeness(name: str, data: bytes, location: str) -> Completeness:
    """Parse the output of ``dump_completeness``.

    :param name: the name of the file in ``position.json``.
    :param location: the file, for errors.
    :raises JournalError: the file is damaged, has another format, or does not belong to ``name``.
    """
    loaded = unseal(data, location, _completeness)
    if not name.endswith(f"-{checksum(data):08X}"):
        raise DamagedJournal(
            f"{location} is another journal's: its contents do not have the checksum in its name"
        )
    return loaded


def _completeness(fields: Mapping[str, Any]) -> Completeness:
    return Completeness(
        gaps=tuple(Gap(lsn(gap, "after"), lsn(gap, "until"), lsn(gap, "end")) for gap in fields["gaps"]),
        tables=tuple(map(_load_table, fields["tables"])),
        appeared=tuple(map(_load_appearance, fields["appeared"])),
    )


def _dump_table(table: TableSnapshot) -> dict[str, Any]:
    return {
        "oid": table.oid,
        "schema": table.schema,
        "table": table.table,
        "from": str(table.start_lsn),
        "complete": None if table.complete is None else str(table.complete),
        "abandoned": table.abandoned,
        "reading": table.reading,
    }


def _load_table(fields: Mapping[str, Any]) -> TableSnapshot:
    return TableSnapshot(
        integer(fields, "oid", _UINT32),
        text(fields, "schema"),
        text(fields, "table"),
        lsn(fields, "from"),
        None if fields["complete"] is None else lsn(fields, "complete"),
        boolean(fields, "abandoned"),
        # Files of earlier versions have no ``reading``.
        text(fields, "reading") if "reading" in fields else "",
    )


def _load_appearance(fields: Any) -> Appearance:
    found = dict(zip(("oid", "schema", "table", "after", "end", "again"), fields, strict=True))
    return Appearance(
        integer(found, "oid", _UINT32),
        text(found, "schema"),
        text(found, "table"),
        lsn(found, "after"),
        lsn(found, "end"),
        boolean(found, "again"),
    )
