"""The contents of a journal's small files. Pure.

``journal.json`` (Identity) is written when a journal is first opened for writing and never changes once the journal has
content. ``position.json`` (JournalState) is the only commit point: readers ignore every file that it does not name. It is
replaced whenever segments, a prepared transaction or an outcome become durable, and when the slot confirms WAL without
published changes. ``start.json`` (Start) has the journal's start, which retention moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from aiorepl.journal.completeness import PublishedChunk
from aiorepl.journal.holder import Holder
from aiorepl.journal.index import dump_chunk, load_chunk
from aiorepl.journal.manifest import ManifestRef
from aiorepl.journal.segments import Entry, Segment
from aiorepl.journal.times import NO_TIMES, Times
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.storage.checked_json import (
    integer,
    lsn,
    seal,
    text,
    unseal,
)
from aiorepl.table_name import TableName

_UINT32: Final = 2**32 - 1
_UINT64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Identity:
    """The source of a journal's transactions.

    :param source: the slot and its cluster, at LSN 0.
    :param start_lsn: the slot's position when the journal was made.
    :param journal: a random text, which distinguishes the journal from others of the same source.
    """

    source: Position
    start_lsn: LSN
    journal: str


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
        """The name of the metadata's file, without folder and suffix."""
        return f"{self.lsn:016X}-{self.xid:08X}"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a journal, as retention has moved it. The start never moves back.

    :param journal: the identity's random text.
    :param lsn: the end of the last segment that readers may no longer use.
    :param deleted: the end of the last segment whose file is deleted. It is before ``lsn`` if the deletion was interrupted.
    """

    journal: str
    lsn: LSN = ZERO
    deleted: LSN = ZERO


@dataclass(frozen=True, slots=True)
class JournalState:
    """The durable state of a journal.

    :param journal: the identity's random text.
    :param position: the journal's end, including WAL without transactions; LSN 0 while the journal is empty.
    :param end: the end of the last segment; LSN 0 if there is none.
    :param epoch: the last writer's epoch: each writer takes a higher one before it writes.
    :param sequence: how often ``position.json`` was replaced.
    :param writer: the writer that has the epoch; ``None`` before the first writer.
    :param begins: the lowest position from which a reader misses nothing, if nothing was pruned: the slot's position when the
        journal was made, or 0 if it begins with an initial snapshot; ``None`` while there is no segment.
    :param manifests: the files that name all segments except the last ones.
    :param tail: the last segments.
    :param prepared: the undecided prepared transactions, whose files must exist.
    :param completeness: the name of the file with gaps and snapshots; ``None`` if there are none.
    :param chunks: the decisive chunks that were published since that file was written.
    :param times: the commit times up to ``position``.
    """

    journal: str
    position: Position
    end: Position
    epoch: int = 0
    sequence: int = 0
    writer: Holder | None = None
    begins: LSN | None = None
    manifests: tuple[ManifestRef, ...] = ()
    tail: tuple[Entry, ...] = ()
    prepared: tuple[PreparedTransaction, ...] = ()
    completeness: str | None = None
    chunks: tuple[PublishedChunk, ...] = ()
    times: Times = NO_TIMES

    @classmethod
    def empty(cls, identity: Identity) -> JournalState:
        """The state of a new journal."""
        return cls(identity.journal, identity.source, identity.source)

    @property
    def first_lsn(self) -> LSN:
        """The ``after`` of the journal's first segment; 0 if there is none."""
        if self.manifests:
            return self.manifests[0].after
        return self.tail[0].segment.after if self.tail else ZERO

    @property
    def total_size(self) -> int:
        """The size of all segments in bytes."""
        return sum(ref.size for ref in self.manifests) + sum(entry.segment.size for entry in self.tail)


def dump_identity(identity: Identity) -> bytes:
    """Make the bytes of ``journal.json``."""
    return seal(
        {
            "source": identity.source.to_json(),
            "begins": str(identity.start_lsn),
            "journal": identity.journal,
        }
    )


def load_identity(data: bytes, location: str) -> Identity:
    """Parse the output of ``dump_identity``.

    :param location: the file, for errors.
    :raises JournalError: the file is damaged, or has another format.
    """
    return unseal(
        data,
        location,
        lambda fields: Identity(
            Position.from_json(fields["source"]), lsn(fields, "begins"), text(fields, "journal")
        ),
        remedy=(
            "Put back a copy of the file, which names the source of the segments; if there is none, start with an empty "
            "journal and resnapshot=True (--resnapshot)"
        ),
    )


def dump_start(start: Start) -> bytes:
    """Make the bytes of ``start.json``."""
    return seal({"journal": start.journal, "start": str(start.lsn), "deleted": str(start.deleted)})


def load_start(data: bytes, location: str) -> Start:
    """Parse the output of ``dump_start``; parameters and errors as ``load_identity``."""
    return unseal(data, location, _start)


def _start(fields: Mapping[str, Any]) -> Start:
    start = Start(text(fields, "journal"), lsn(fields, "start"), lsn(fields, "deleted"))
    if start.deleted > start.lsn:
        raise ValueError(f"segments are deleted up to {start.deleted}, after the start {start.lsn}")
    return start


def dump_state(state: JournalState) -> bytes:
    """Make the bytes of ``position.json``."""
    tables: dict[TableName, int] = {}
    return seal(
        {
            "journal": state.journal,
            "position": state.position.to_json(),
            "end": state.end.to_json(),
            "epoch": state.epoch,
            "sequence": state.sequence,
            "writer": None if state.writer is None else state.writer.to_json(),
            "begins": None if state.begins is None else str(state.begins),
            "manifests": [
                {
                    "name": ref.name,
                    "level": ref.level,
                    "after": str(ref.after),
                    "end": str(ref.end),
                    "segments": ref.segments,
                    "size": ref.size,
                    "checksum": ref.checksum,
                }
                for ref in state.manifests
            ],
            # A list of numbers per segment, and each table's name once, because the file is written at every flush.
            "tail": [
                [
                    *(found.after, found.last_end_lsn, found.epoch, found.part, found.parts),
                    *(found.size, found.index_offset, found.blocks, found.published),
                    [tables.setdefault(table, len(tables)) for table in names],
                ]
                for found, names in state.tail
            ],
            "tables": list(map(tuple, tables)),
            "prepared": [dump_prepared(each) for each in state.prepared],
            "completeness": state.completeness,
            "chunks": [
                [dump_chunk(chunk), str(commit_lsn), str(end_lsn)]
                for chunk, commit_lsn, end_lsn in state.chunks
            ],
            "times": state.times.to_json(),
        }
    )


def load_state(data: bytes, location: str) -> JournalState:
    """Parse the output of ``dump_state``; parameters and errors as ``load_identity``."""
    return unseal(data, location, _state)


def dump_prepared(prepared: PreparedTransaction) -> dict[str, Any]:
    """Convert a prepared transaction to a JSON object, for ``load_prepared``."""
    return {"lsn": str(prepared.lsn), "xid": prepared.xid, "gid": prepared.gid}


def load_prepared(fields: Mapping[str, Any]) -> PreparedTransaction:
    """Parse the output of ``dump_prepared``.

    :raises Exception: a field is wrong.
    """
    return PreparedTransaction(lsn(fields, "lsn"), integer(fields, "xid", _UINT32), text(fields, "gid"))


def _state(fields: Mapping[str, Any]) -> JournalState:
    tables = [_table(each) for each in fields["tables"]]
    state = JournalState(
        journal=text(fields, "journal"),
        position=Position.from_json(fields["position"]),
        end=Position.from_json(fields["end"]),
        epoch=integer(fields, "epoch", _UINT32),
        sequence=integer(fields, "sequence"),
        writer=None if fields["writer"] is None else Holder.from_json(fields["writer"]),
        begins=None if fields["begins"] is None else lsn(fields, "begins"),
        manifests=tuple(map(_load_ref, fields["manifests"])),
        tail=tuple(_load_entry(each, tables) for each in fields["tail"]),
        prepared=tuple(map(load_prepared, fields["prepared"])),
        completeness=None if fields["completeness"] is None else text(fields, "completeness"),
        # Journals of format 3 lack this field if an earlier release wrote them.
        chunks=tuple(map(_load_published_chunk, fields.get("chunks", ()))),
        times=Times.from_json(fields.get("times")),
    )
    _require_consistent(state)
    return state


def _require_consistent(state: JournalState) -> None:
    """Check that the segments join.

    :raises ValueError: the segments do not join.
    """
    if state.position.lsn < state.end.lsn:
        raise ValueError(
            f"its position is {state.position.lsn}, before its last segment's end {state.end.lsn}"
        )
    end = state.first_lsn
    for ref in state.manifests:
        if ref.after != end or ref.end <= end or not ref.segments:
            raise ValueError(f"manifest {ref.name} does not follow {end}")
        end = ref.end
    if state.tail:
        first, last = state.tail[0].segment, state.tail[-1].segment
        if first.after != end or first.part or not last.last_part:
            raise ValueError(f"no segment follows {end}")
        for before, segment in pairwise(entry.segment for entry in state.tail):
            if not segment.follows(before):
                raise ValueError(f"segment {segment.name} does not follow {before.name}")
        if any(entry.segment.last_end_lsn <= entry.segment.after for entry in state.tail):
            raise ValueError("a segment ends before it starts")
        end = last.last_end_lsn
    if end != state.end.lsn or (state.begins is None) != (not end):
        raise ValueError(f"its segments end at {end}, and the last one at {state.end.lsn}")


def _load_published_chunk(fields: Any) -> PublishedChunk:
    chunk, commit_lsn, end_lsn = fields
    return PublishedChunk(load_chunk(chunk), LSN.parse(commit_lsn), LSN.parse(end_lsn))


def _load_ref(fields: Mapping[str, Any]) -> ManifestRef:
    return ManifestRef(
        name=text(fields, "name"),
        level=integer(fields, "level", _UINT32),
        after=lsn(fields, "after"),
        end=lsn(fields, "end"),
        segments=integer(fields, "segments", _UINT32),
        size=integer(fields, "size"),
        checksum=integer(fields, "checksum", _UINT32),
    )


def _load_entry(fields: Any, tables: list[TableName]) -> Entry:
    *values, numbers = fields
    if len(values) != 9 or not all(type(value) is int and 0 <= value <= _UINT64 for value in values):
        raise ValueError("a segment has other fields")
    after, end, *rest = values
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a segment has another table")
    return Entry(Segment(LSN(after), LSN(end), *rest), tuple(tables[number] for number in numbers))


def _table(fields: Any) -> TableName:
    schema, name = fields
    if not isinstance(schema, str) or not isinstance(name, str):
        raise TypeError("a table's name is not a string")
    return TableName(schema, name)
