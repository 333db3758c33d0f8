"""What a journal lacks: accepted gaps, and from where on it has which tables. Pure.

Kept in a file of its own, which ``position.json`` names and which is written anew only when it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from aiorepl.journal.checked_json import boolean, integer, lsn, seal, text, unseal
from aiorepl.lsn import LSN
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


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The place of a table's snapshot in the journal.

    A table has at most two: the last one that is complete, and the one that is being read or was abandoned.

    :param start_lsn: the table is complete for readers that begin at or before this LSN.
    :param complete: the end of its last chunk; ``None`` while it is being read.
    :param abandoned: whether it will not be completed: it was cancelled, or the table cannot be read.
    """

    oid: int
    schema: str
    table: str
    start_lsn: LSN
    complete: LSN | None = None
    abandoned: bool = False

    @property
    def open(self) -> bool:
        """Whether it is being read."""
        return self.complete is None and not self.abandoned

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Completeness:
    """The gaps and the snapshots of a journal.

    :param gaps: all gaps that were ever accepted.
    :param tables: the snapshots of tables.
    """

    gaps: tuple[Gap, ...] = ()
    tables: tuple[TableSnapshot, ...] = ()

    def with_chunk(self, chunk: SnapshotChunk, commit_lsn: LSN, end_lsn: LSN) -> Completeness:
        """Add a chunk whose transaction has these LSNs."""
        if chunk.partial:
            return self
        if chunk.number == 1:
            # Rows that had changed since the snapshot are not in the chunk, but in the stream before it.
            start = min(commit_lsn, chunk.snapshot_lsn)
            current: TableSnapshot | None = TableSnapshot(chunk.oid, chunk.schema, chunk.table, start)
        elif not chunk.last_of_table:
            return self
        else:
            current = next((table for table in self.tables if table.oid == chunk.oid and table.open), None)
        if current is None:
            return self
        if chunk.last_of_table:
            current = replace(current, complete=end_lsn)
        kept = [
            table
            for table in self.tables
            if table.oid != chunk.oid or (table.complete is not None and not chunk.last_of_table)
        ]
        return replace(self, tables=(*kept, current))

    def abandoned(self, besides: Collection[int]) -> Completeness:
        """Abandon the open snapshots.

        :param besides: the oids of the tables whose snapshots go on.
        """
        tables = tuple(
            replace(table, abandoned=True) if table.open and table.oid not in besides else table
            for table in self.tables
        )
        return replace(self, tables=tables)


def completeness_file(name: str) -> str:
    """Return the file of the completeness ``name``."""
    return f"{FOLDER}/{name}.json"


def completeness_name(epoch: int, sequence: int) -> str:
    """Make the name of the file that a writer publishes with this sequence number."""
    return f"{epoch:08X}-{sequence:012X}"


def dump_completeness(completeness: Completeness) -> bytes:
    """Make the bytes of the file."""
    return seal(
        {
            "gaps": [
                {"after": str(gap.after), "until": str(gap.until), "end": str(gap.end)}
                for gap in completeness.gaps
            ],
            "tables": [_dump_table(table) for table in completeness.tables],
        }
    )


def load_completeness(data: bytes, location: str) -> Completeness:
    """Parse the output of ``dump_completeness``.

    :param location: the file, for errors.
    :raises JournalError: it is damaged, or has another format.
    """
    return unseal(data, location, _completeness)


def _completeness(fields: Mapping[str, Any]) -> Completeness:
    return Completeness(
        gaps=tuple(Gap(lsn(gap, "after"), lsn(gap, "until"), lsn(gap, "end")) for gap in fields["gaps"]),
        tables=tuple(map(_load_table, fields["tables"])),
    )


def _dump_table(table: TableSnapshot) -> dict[str, Any]:
    return {
        "oid": table.oid,
        "schema": table.schema,
        "table": table.table,
        "from": str(table.start_lsn),
        "complete": None if table.complete is None else str(table.complete),
        "abandoned": table.abandoned,
    }


def _load_table(fields: Mapping[str, Any]) -> TableSnapshot:
    return TableSnapshot(
        integer(fields, "oid", _UINT32),
        text(fields, "schema"),
        text(fields, "table"),
        lsn(fields, "from"),
        None if fields["complete"] is None else lsn(fields, "complete"),
        boolean(fields, "abandoned"),
    )
