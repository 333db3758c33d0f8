"""The contents of ``journal.json`` (Manifest) and ``position.json`` (State), and the names of files. Pure.

``journal.json`` is written when a journal is first opened for writing and never changes once the journal has content.
``position.json`` is replaced whenever something becomes durable: a segment, a prepared transaction or its outcome, or the
end of WAL without published changes, which is confirmed to the slot as well. It names the last segment, so that the loss of
a segment at the end is noticed, and the other files that must exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiorepl.journal.checked_json import boolean, integer, lsn, seal, text, unseal
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.transactions.transaction import SnapshotChunk

_UINT32 = 2**32 - 1


def segment_name(after: LSN, last_end: LSN) -> str:
    """Make the name of a segment's files, without a suffix. Names sort in commit order.

    :param after: the end LSN of the previous segment; 0 for the first.
    :param last_end: the end LSN of this segment.
    """
    return f"{after:016X}-{last_end:016X}"


def segment_range(name: str) -> tuple[LSN, LSN]:
    """Parse a segment's name into the end LSN of the previous segment and its own.

    :raises ValueError: ``segment_name`` cannot have made this name.
    """
    first, _, last = name.partition("-")
    after, last_end = LSN(int(first, 16)), LSN(int(last, 16))
    if segment_name(after, last_end) != name or after >= last_end:
        raise ValueError(f"{name!r} is not the name of a segment")
    return after, last_end


@dataclass(frozen=True, slots=True)
class Manifest:
    """The source of a journal's transactions.

    :param source: the slot and its cluster, at LSN 0.
    :param start_lsn: the slot's position when the journal was made.
    """

    source: Position
    start_lsn: LSN


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of the stream that the slot had lost, and that the user has accepted as lost.

    :param after: transactions that committed after this are missing.
    :param until: the end of the gap.
    :param segment: the segment before the gap; ``None`` if there is none.
    """

    after: LSN
    until: LSN
    segment: str | None

    @property
    def start_lsn(self) -> LSN:
        """The start of the missing range: after a promotion, the journal may have transactions beyond ``after``."""
        return self.after if self.segment is None else max(self.after, segment_range(self.segment)[1])


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction without a COMMIT PREPARED or ROLLBACK PREPARED yet, kept beside the segments.

    Xid and PREPARE LSN identify it: a gid can be reused at once, and an xid after 4 billion others.
    """

    lsn: LSN
    xid: int
    gid: str

    @property
    def name(self) -> str:
        """The name of its files without their suffixes."""
        return f"{self.lsn:016X}-{self.xid:08X}"


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
class State:
    """The durable state of a journal.

    :param position: its end, including WAL without transactions; LSN 0 while it is empty.
    :param segment: the name of the last segment; ``None`` if there is none.
    :param gaps: all gaps that were ever accepted.
    :param prepared: the undecided prepared transactions, whose files must exist.
    :param tables: the snapshots of tables.
    """

    position: Position
    segment: str | None = None
    gaps: tuple[Gap, ...] = ()
    prepared: tuple[PreparedTransaction, ...] = ()
    tables: tuple[TableSnapshot, ...] = ()

    @property
    def last_segment_end(self) -> LSN:
        """The end of the last segment."""
        return ZERO if self.segment is None else segment_range(self.segment)[1]

    def with_chunk(self, chunk: SnapshotChunk, commit_lsn: LSN, end_lsn: LSN) -> State:
        """Return the state with a chunk whose transaction has these LSNs."""
        if chunk.partial:
            return self
        if chunk.number == 1:
            # Rows that had changed since the snapshot are not in the chunk, but in the stream before it.
            start = min(commit_lsn, chunk.snapshot_lsn)
            current: TableSnapshot | None = TableSnapshot(chunk.oid, chunk.schema, chunk.table, start)
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


def dump_manifest(manifest: Manifest) -> bytes:
    """Make the bytes of ``journal.json``."""
    return seal({"source": manifest.source.to_json(), "begins": str(manifest.start_lsn)})


def load_manifest(data: bytes, location: str) -> Manifest:
    """Parse the output of ``dump_manifest``.

    :param location: the file, for errors.
    :raises JournalError: it is damaged, or has another format.
    """
    return unseal(
        data,
        location,
        lambda fields: Manifest(Position.from_json(fields["source"]), lsn(fields, "begins")),
        remedy=(
            "Put back a copy of the file, which names the source of the segments; if there is none, start with an empty "
            "journal and resnapshot=True (--resnapshot)"
        ),
    )


def dump_state(state: State) -> bytes:
    """Make the bytes of ``position.json``."""
    return seal(
        {
            "position": state.position.to_json(),
            "segment": state.segment,
            "gaps": [
                {"after": str(gap.after), "until": str(gap.until), "segment": gap.segment}
                for gap in state.gaps
            ],
            "prepared": [dump_prepared(each) for each in state.prepared],
            "tables": [_dump_table(table) for table in state.tables],
        }
    )


def load_state(data: bytes, location: str) -> State:
    """Parse the output of ``dump_state``; parameters and errors as ``load_manifest``."""
    return unseal(data, location, _state)


def dump_prepared(prepared: PreparedTransaction) -> dict[str, Any]:
    """Convert a prepared transaction to a JSON object, for ``load_prepared``."""
    return {"lsn": str(prepared.lsn), "xid": prepared.xid, "gid": prepared.gid}


def load_prepared(fields: Mapping[str, Any]) -> PreparedTransaction:
    """Parse the output of ``dump_prepared``.

    :raises Exception: a field is wrong.
    """
    return PreparedTransaction(lsn(fields, "lsn"), integer(fields, "xid", _UINT32), text(fields, "gid"))


def _state(fields: Mapping[str, Any]) -> State:
    state = State(
        position=Position.from_json(fields["position"]),
        segment=_segment(fields),
        gaps=tuple(Gap(lsn(gap, "after"), lsn(gap, "until"), _segment(gap)) for gap in fields["gaps"]),
        prepared=tuple(map(load_prepared, fields["prepared"])),
        # Earlier versions recorded no tables.
        tables=tuple(map(_load_table, fields.get("tables", ()))),
    )
    if state.position.lsn < state.last_segment_end:
        raise ValueError(
            f"its position is {state.position.lsn}, before its last segment's end {state.last_segment_end}"
        )
    return state


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


def _segment(fields: Mapping[str, Any]) -> str | None:
    if fields["segment"] is None:
        return None
    name = text(fields, "segment")
    segment_range(name)
    return name
