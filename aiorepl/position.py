"""Positions in the stream of a slot. Pure.

An LSN alone does not identify a position: after a restore, a failover or a recreated slot the same LSN is another position.
Nor does the timeline's number: two promoted standbys of one primary get the same number. So a position also has its
timeline's history and the last transaction before it, which a server with the same stream can send again
(``source.continuity``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN

History = tuple[tuple[int, LSN], ...]
"""A timeline's ancestors, the oldest first, each with the LSN where the next timeline branched off."""


class Timelines:
    """The timeline that a server is on, and its ancestors.

    All positions of a running stream share one ``Timelines``. When a standby is promoted, ``grow`` updates it. From then
    on, each LSN has the timeline on which it was reached.

    :param ancestors: the earlier timelines, each with the LSN where the next one branched off.
    :param known: whether the server reported ``ancestors``. If not, they may be a guess, or empty.
    """

    __slots__ = ("_state",)

    def __init__(
        self, current: int, ancestors: Iterable[tuple[int, LSN]] = (), *, known: bool = True
    ) -> None:
        # A single attribute, replaced as a whole, because sinks read it from their own threads.
        self._state: tuple[int, History, bool] = current, tuple(sorted(ancestors)), known

    @property
    def current(self) -> int:
        """The timeline that the server is on."""
        return self._state[0]

    def at(self, lsn: LSN) -> int:
        """The timeline that ``lsn`` lies on."""
        current, ancestors, _ = self._state
        return next((timeline for timeline, end in ancestors if lsn <= end), current)

    def history(self, timeline: int) -> History | None:
        """The ancestors of ``timeline``; ``None`` if they are not known."""
        if timeline == 1:
            return ()
        _, ancestors, known = self._state
        return tuple(ancestor for ancestor in ancestors if ancestor[0] < timeline) if known else None

    def grow(self, later: Timelines) -> None:
        """Adopt the timelines that a later server reports."""
        self._state = later._state


class Header(Protocol):
    """The identity of a committed transaction. A ``Transaction`` is one."""

    @property
    def commit_lsn(self) -> LSN:
        """The LSN where the commit record starts."""

    @property
    def xid(self) -> int:
        """The transaction id."""

    @property
    def commit_timestamp(self) -> int:
        """The time of the commit, in microseconds since 2000-01-01 00:00 UTC."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The identity of a committed transaction.

    :param commit_lsn: the LSN where its commit record starts.
    :param commit_timestamp: microseconds since 2000-01-01 00:00 UTC.
    """

    commit_lsn: LSN
    xid: int
    commit_timestamp: int

    @classmethod
    def of(cls, header: Header) -> Commit:
        """The identity of the transaction with this header."""
        return cls(header.commit_lsn, header.xid, header.commit_timestamp)


class Trail:
    """The transactions that were recently delivered to one sink, for the positions that it keeps."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: list[tuple[LSN, Header | None]] = []

    def begin(self, position: Position) -> None:
        """Start at ``position``."""
        self._ends = [(position.lsn, position.last)]

    def add(self, end_lsn: LSN, header: Header) -> None:
        """Record that the transaction ``header``, which ended at ``end_lsn``, was delivered."""
        self._ends.append((end_lsn, header))

    def forget(self, before: LSN) -> None:
        """Drop the entries that only positions before ``before`` need."""
        if (index := self._index(before)) > 0:
            del self._ends[:index]

    def last(self, lsn: LSN) -> Commit | None:
        """The last transaction with changes that ended at or before ``lsn``; ``None`` if it is not known."""
        index = self._index(lsn)
        header = self._ends[index][1] if index >= 0 else None
        return header if header is None or isinstance(header, Commit) else Commit.of(header)

    def _index(self, lsn: LSN) -> int:
        # Search backwards, because look-ups are nearly always for the last entry.
        index = len(self._ends) - 1
        while index >= 0 and self._ends[index][0] > lsn:
            index -= 1
        return index


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to ``lsn`` in the stream of one slot.

    :param system_identifier: the cluster, from IDENTIFY_SYSTEM.
    :param timeline: the timeline that the position was reached on.
    :param slot: the replication slot's name.
    :param lsn: the end LSN of the last transaction that it covers.
    :param timelines: the running stream's timelines; ``None`` in a position that was read back.
    :param database: the slot's database; ``None`` in a position that was read back.
    :param history: the timeline's ancestors; ``None`` if the server did not report them.
    :param last: the last transaction with changes that it covers; ``None`` if it is not known.
    :param trail: the recent transactions of the sink that keeps this position.
    """

    system_identifier: str
    timeline: int
    slot: str
    lsn: LSN
    timelines: Timelines | None = field(default=None, compare=False, repr=False)
    database: str | None = field(default=None, compare=False, repr=False)
    history: History | None = None
    last: Commit | None = None
    trail: Trail | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.timeline == 1 and self.history is None:
            # The first timeline has no ancestors, so its history is always known.
            object.__setattr__(self, "history", ())

    def at(self, lsn: LSN) -> Position:
        """The position at another LSN of the same stream, with its timeline and the last transaction before it.

        Call this on the position of the sink's context. A position that was read back has neither the stream's timelines
        nor the delivered transactions.
        """
        timeline, history = self.timeline, self.history
        if self.timelines is not None:
            timeline = max(timeline, self.timelines.at(lsn))
            history = self.timelines.history(timeline)
        last = None if self.trail is None else self.trail.last(lsn)
        return replace(self, timeline=timeline, lsn=lsn, history=history, last=last)

    def followed(self) -> Position:
        """Return the position with a new trail, for one sink."""
        return replace(self, trail=Trail())

    def require_same_source(self, found: Position, holder: str) -> None:
        """Check that this position, which ``holder`` kept, belongs to the source that was ``found``.

        :raises SlotError: the position belongs to another cluster or slot, or to a later timeline.
        """
        if self.system_identifier != found.system_identifier:
            raise SlotError(
                f"{holder} holds a position of cluster {self.system_identifier}, but this server belongs to "
                f"{found.system_identifier}: point the DSN at the old cluster, or start {holder} empty; if pg_upgrade made this cluster "
                "from the old one, use `aiorepl upgrade` to prove that the stream continues"
            )
        if self.slot != found.slot:
            raise SlotError(
                f"{holder} holds a position of slot {self.slot!r}, not of {found.slot!r}: "
                f"use that slot, or start {holder} empty"
            )
        newest = found.timeline if found.timelines is None else found.timelines.current
        if self.timeline > newest:
            raise SlotError(
                f"{holder} holds a position of timeline {self.timeline}, this server is on {newest}: "
                "the server was restored from an earlier state, or is not the primary"
            )

    def to_json(self) -> dict[str, Any]:
        """The position as a JSON object, which ``from_json`` reads."""
        last = self.last
        return {
            "system_identifier": self.system_identifier,
            "timeline": self.timeline,
            "history": None
            if self.history is None
            else [[timeline, str(left)] for timeline, left in self.history],
            "slot": self.slot,
            "lsn": str(self.lsn),
            "last": None
            if last is None
            else {
                "commit_lsn": str(last.commit_lsn),
                "xid": last.xid,
                "commit_timestamp": last.commit_timestamp,
            },
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Position:
        """Read what ``to_json`` wrote.

        :raises ValueError: a field is missing or malformed.
        :raises SlotError: an earlier version of aiorepl wrote it.
        """
        try:
            if "history" not in fields and {"system_identifier", "timeline", "slot", "lsn"} <= fields.keys():
                raise SlotError(_EARLIER_VERSION)
            history, last = fields["history"], fields["last"]
            return cls(
                str(fields["system_identifier"]),
                int(fields["timeline"]),
                str(fields["slot"]),
                LSN.parse(str(fields["lsn"])),
                history=None
                if history is None
                else tuple((int(timeline), LSN.parse(str(left))) for timeline, left in history),
                last=None
                if last is None
                else Commit(
                    LSN.parse(str(last["commit_lsn"])), int(last["xid"]), int(last["commit_timestamp"])
                ),
            )
        except KeyError as error:
            raise ValueError(f"the position lacks {error}") from None
        except (AttributeError, TypeError):
            raise ValueError("the position is malformed") from None


_EARLIER_VERSION: Final = (
    "a position of an earlier version of aiorepl has neither the history of its timeline nor its last transaction, so it "
    "cannot be compared with the server: start with an empty sink and an empty journal, and load the tables again into the "
    "journal (resnapshot=True, on the command line --resnapshot)"
)
