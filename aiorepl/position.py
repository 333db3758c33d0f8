"""A position in a stream of transactions: where, and of which slot on which server.

An LSN alone says little: after a restore, a failover or a recreated slot the same number means something else.
So whoever keeps a position keeps all of it, and a position is compared before it is used.

Pure vocabulary, like ``lsn`` and ``errors``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to ``lsn``, an end LSN of a transaction, of one slot.

    :param system_identifier: the cluster, from IDENTIFY_SYSTEM.
    :param timeline: the timeline the position was reached on.
    :param slot: the replication slot's name.
    :param lsn: the end LSN of the last transaction it covers.
    """

    system_identifier: str
    timeline: int
    slot: str
    lsn: LSN

    def at(self, lsn: LSN) -> Position:
        """The same place in the stream of the same slot, at another LSN."""
        return replace(self, lsn=lsn)

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
        if self.timeline > found.timeline:
            raise SlotError(
                f"{holder} holds a position of timeline {self.timeline}, this server is on {found.timeline}: "
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
