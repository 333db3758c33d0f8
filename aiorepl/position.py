"""A position in a stream of transactions: where, and of which slot on which server.

An LSN alone says little: after a restore, a failover or a recreated slot the same number means something else.
So whoever keeps a position keeps all of it, and a position is compared before it is used.

Pure vocabulary, like ``lsn`` and ``errors``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN


class Timelines:
    """The timeline that a server is on, and where its ancestors were left.

    All positions of a running stream share one of these: when a standby is promoted under the stream, it grows,
    and from then on each LSN has the timeline that it was reached on.

    :param left: the ancestors, and where each was left. Empty where the server does not tell.
    """

    __slots__ = ("_current", "_left")

    def __init__(self, current: int, left: Iterable[tuple[int, LSN]] = ()) -> None:
        self._current = current
        self._left = tuple(sorted(left))

    @property
    def current(self) -> int:
        """The timeline that the server is on."""
        return self._current

    @property
    def known(self) -> bool:
        """Whether the ancestors are known."""
        return self._current == 1 or bool(self._left)

    def left_at(self, timeline: int) -> LSN | None:
        """Where ``timeline`` was left; ``None`` when it is no ancestor."""
        return dict(self._left).get(timeline)

    def at(self, lsn: LSN) -> int:
        """The timeline that ``lsn`` lies on."""
        return next((timeline for timeline, left in self._left if lsn <= left), self._current)

    def grow(self, later: Timelines) -> None:
        """Become what a later server says."""
        # In this order, for sinks look from threads of their own: a timeline that is too late does no harm.
        self._current = later._current
        self._left = later._left


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to ``lsn``, an end LSN of a transaction, of one slot.

    :param system_identifier: the cluster, from IDENTIFY_SYSTEM.
    :param timeline: the timeline the position was reached on.
    :param slot: the replication slot's name.
    :param lsn: the end LSN of the last transaction it covers.
    :param timelines: of a position in a stream that runs; what was kept has none.
    :param database: the database that the slot is in, as far as it is known: what was kept does not say.
    """

    system_identifier: str
    timeline: int
    slot: str
    lsn: LSN
    timelines: Timelines | None = field(default=None, compare=False, repr=False)
    database: str | None = field(default=None, compare=False, repr=False)

    def at(self, lsn: LSN) -> Position:
        """The same stream at another LSN, with the timeline of that.

        Ask the position that the stream was begun with, not one that was read back: only that one learns of promotions.
        """
        timeline = self.timeline if self.timelines is None else max(self.timeline, self.timelines.at(lsn))
        return replace(self, timeline=timeline, lsn=lsn)

    def require_same_source(self, found: Position, holder: str) -> None:
        """Check that this position, which ``holder`` kept, belongs to the source that was ``found``.

        :raises SlotError: when it belongs to another cluster or slot, or to a timeline that is ahead.
        """
        if self.system_identifier != found.system_identifier:
            raise SlotError(
                f"{holder} holds a position of the cluster {self.system_identifier}, but this server is "
                f"{found.system_identifier}: point the DSN at the old one, or have {holder} begin anew, empty"
            )
        if self.slot != found.slot:
            raise SlotError(
                f"{holder} holds a position of slot {self.slot!r}, not of {found.slot!r}: "
                f"use that slot, or have {holder} begin anew, empty"
            )
        newest = found.timeline if found.timelines is None else found.timelines.current
        if self.timeline > newest:
            raise SlotError(
                f"{holder} holds a position of timeline {self.timeline}, this server is on {newest}: "
                "it was restored from before that position, or is not the primary"
            )

    def to_json(self) -> dict[str, str | int]:
        """As a JSON object; ``from_json`` reads it."""
        return {
            "system_identifier": self.system_identifier,
            "timeline": self.timeline,
            "slot": self.slot,
            "lsn": str(self.lsn),
        }

    @classmethod
    def from_json(cls, fields: dict[str, str | int]) -> Position:
        """Read what ``to_json`` wrote.

        :raises ValueError: when a field is missing or malformed.
        """
        try:
            return cls(
                str(fields["system_identifier"]),
                int(fields["timeline"]),
                str(fields["slot"]),
                LSN.parse(str(fields["lsn"])),
            )
        except KeyError as error:
            raise ValueError(f"a position without {error}") from None
