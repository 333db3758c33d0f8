"""What a journal's two own files say: ``journal.json``, whose transactions these are, and ``position.json``, its state.

``journal.json`` is written when a journal is first opened for writing and never changes once there is anything in it.
``position.json`` is replaced whenever something becomes durable: a segment, a prepared transaction or how it ended, or
WAL that holds nothing for us, which is confirmed to the slot as well. It names the last segment, so that a segment lost
from the end is noticed, and what else has to be there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiorepl.journal.sealed import integer, lsn, seal, text, unseal
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position

_UINT32 = 2**32 - 1


def segment_name(after: LSN, last_end: LSN) -> str:
    """The name of a segment's files without their endings: the end LSN of the segment before it (0 of the first) and
    its own. Names sort in commit order, and a listing shows whether one is missing in between.
    """
    return f"{after:016X}-{last_end:016X}"


def segment_range(name: str) -> tuple[LSN, LSN]:
    """The end LSN of the segment before ``name``, and its own.

    :raises ValueError: when it is not a name that ``segment_name`` gave.
    """
    first, _, last = name.partition("-")
    after, last_end = LSN(int(first, 16)), LSN(int(last, 16))
    if segment_name(after, last_end) != name or after >= last_end:
        raise ValueError(f"{name!r} is no segment's name")
    return after, last_end


@dataclass(frozen=True, slots=True)
class Manifest:
    """Whose transactions a journal holds.

    :param source: the slot and its cluster, at LSN 0.
    :param begins: where the slot stood when the journal was made.
    """

    source: Position
    begins: LSN


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch that the slot had lost and that somebody chose to go on without.

    :param after: what committed behind this is missing.
    :param until: up to here.
    :param segment: the segment before it, ``None`` without one.
    """

    after: LSN
    until: LSN
    segment: str | None

    @property
    def begins(self) -> LSN:
        """Where the journal has nothing: after a promotion it may hold what only the old server had behind ``after``."""
        return self.after if self.segment is None else max(self.after, segment_range(self.segment)[1])


@dataclass(frozen=True, slots=True)
class KeptPrepared:
    """A prepared transaction that is kept beside the segments, because it is not decided yet.

    Its identity is xid and PREPARE LSN: a gid may be used again at once, and an xid after 4 billion others.
    """

    lsn: LSN
    xid: int
    gid: str

    @property
    def name(self) -> str:
        """The name of its files without their endings."""
        return f"{self.lsn:016X}-{self.xid:08X}"


@dataclass(frozen=True, slots=True)
class State:
    """What is durable in a journal.

    :param position: how far it goes, WAL without transactions included; LSN 0 while it is empty.
    :param segment: the name of the last segment, ``None`` without one.
    :param gaps: all that was ever accepted.
    :param prepared: what has to be there beside the segments.
    """

    position: Position
    segment: str | None = None
    gaps: tuple[Gap, ...] = ()
    prepared: tuple[KeptPrepared, ...] = ()

    @property
    def end(self) -> LSN:
        """Where the last segment ends."""
        return ZERO if self.segment is None else segment_range(self.segment)[1]


def dump_manifest(manifest: Manifest) -> bytes:
    """The bytes of ``journal.json``."""
    return seal({"source": manifest.source.to_json(), "begins": str(manifest.begins)})


def load_manifest(data: bytes, place: str) -> Manifest:
    """Read what ``dump_manifest`` wrote.

    :param place: the file, for errors.
    :raises JournalError: when it is damaged, or of another format.
    """
    return unseal(
        data,
        place,
        lambda fields: Manifest(Position.from_json(fields["source"]), lsn(fields, "begins")),
        remedy=(
            "Put back a copy of the file: it says whose transactions the segments hold. If there is none, begin with an "
            "empty journal and resnapshot=True (--resnapshot)"
        ),
    )


def dump_state(state: State) -> bytes:
    """The bytes of ``position.json``."""
    return seal(
        {
            "position": state.position.to_json(),
            "segment": state.segment,
            "gaps": [
                {"after": str(gap.after), "until": str(gap.until), "segment": gap.segment}
                for gap in state.gaps
            ],
            "prepared": [dump_prepared(kept) for kept in state.prepared],
        }
    )


def load_state(data: bytes, place: str) -> State:
    """Read what ``dump_state`` wrote; as ``load_manifest``."""
    return unseal(data, place, _state)


def dump_prepared(kept: KeptPrepared) -> dict[str, Any]:
    """A kept transaction as JSON; ``load_prepared`` reads it."""
    return {"lsn": str(kept.lsn), "xid": kept.xid, "gid": kept.gid}


def load_prepared(fields: Mapping[str, Any]) -> KeptPrepared:
    """Read what ``dump_prepared`` made.

    :raises Exception: when a field is wrong.
    """
    return KeptPrepared(lsn(fields, "lsn"), integer(fields, "xid", _UINT32), text(fields, "gid"))


def _state(fields: Mapping[str, Any]) -> State:
    state = State(
        position=Position.from_json(fields["position"]),
        segment=_segment(fields),
        gaps=tuple(Gap(lsn(gap, "after"), lsn(gap, "until"), _segment(gap)) for gap in fields["gaps"]),
        prepared=tuple(map(load_prepared, fields["prepared"])),
    )
    if state.position.lsn < state.end:
        raise ValueError(f"its position is {state.position.lsn}, before its last segment's end {state.end}")
    return state


def _segment(fields: Mapping[str, Any]) -> str | None:
    if fields["segment"] is None:
        return None
    name = text(fields, "segment")
    segment_range(name)
    return name
