"""Stretches of the stream that are gone: refused, unless the user has said that they are accepted."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.source.continuity import Claim
from aiorepl.source.timelines import leaves, parted

_log = logging.getLogger("aiorepl.gaps")

HOW = (
    "begin anew with an empty one, load the tables again into a journal (resnapshot=True, on the command line "
    "--resnapshot), or go on without them (accept_gap=True, --accept-gap)"
)


@dataclass(frozen=True, slots=True)
class Gap:
    """What committed behind ``after`` and ended at or before ``until`` never reached ``holder``.

    Behind a promotion that lost what ``holder`` has, ``after`` is where the two histories part, and ``holder`` keeps what
    the old one had from there on.
    """

    holder: str
    after: LSN
    until: LSN


class Gaps:
    """What of the stream is missing at the start of a pipeline.

    :param accept: go on behind a gap instead of refusing it.
    """

    def __init__(self, *, accept: bool) -> None:
        self._accept = accept
        self.accepted: list[Gap] = []

    def check(self, holder: str, held: Position | None, begin: Position, wal_end: LSN) -> Position | None:
        """From where ``holder`` goes on: from what it held, or where the slot begins if a gap was accepted.

        :param wal_end: how far the server's WAL goes.
        :raises SlotError: the slot has been confirmed past what ``holder`` has, or ``holder`` has what the server has
            not.
        """
        if held is None:
            return None
        left = None if begin.timelines is None else parted(held, begin.timelines)
        if left is not None:
            return self._apart(holder, held, left, begin, wal_end)
        if held.lsn > wal_end:
            raise SlotError(
                f"{holder} stands at {held.lsn}, but the server's WAL ends at {wal_end}: the server lost its last "
                "transactions, by a failover or a restore, and what it writes now would be taken for them; begin anew "
                "with an empty one"
            )
        if held.lsn >= begin.lsn:
            return held
        if not self._accept:
            raise SlotError(
                f"{holder} stands at {held.lsn}, but slot {begin.slot!r} begins at {begin.lsn}: what lies between is "
                f"gone from the slot; {HOW}"
            )
        self.accepted.append(Gap(holder, held.lsn, begin.lsn))
        _log.warning(
            "%s goes on at %s: what committed behind %s is missing, as accepted", holder, begin.lsn, held.lsn
        )
        return begin

    def _apart(self, holder: str, held: Position, left: LSN, begin: Position, wal_end: LSN) -> Position:
        """A promoted server never had the last that ``holder`` has: go on where both are behind.

        Not where they part: what the server has written from there on has LSNs that ``holder`` knows for others.
        """
        assert begin.timelines is not None
        server = (
            f"which the promoted server left at {left}"
            if leaves(held, begin.timelines)
            else f"from which the server's history parted at {left}"
        )
        lost = (
            f"{holder} stands at {held.lsn} of timeline {held.timeline}, {server}: what committed between them is lost on "
            f"the server and not in {holder}"
        )
        if held.lsn > wal_end:
            raise SlotError(
                f"{lost}, and the server's WAL ends at {wal_end}, so that what it writes now would be taken for it; begin "
                "anew with an empty one, or let the server come past it first (SELECT pg_switch_wal())"
            )
        until = max(held.lsn, begin.lsn)
        if not self._accept:
            raise SlotError(
                f"{lost}, and what the server has written since, up to {until}, would be taken for it; {HOW}"
            )
        self.accepted.append(Gap(holder, left, until))
        _log.warning(
            "%s goes on at %s of timeline %s: what committed there behind %s is missing, as accepted; it keeps what only "
            "timeline %s had, up to %s",
            *(holder, until, begin.timeline, left, held.timeline, held.lsn),
        )
        return begin.at(until)

    def pruned(self, holder: str, stands: LSN, begins: LSN) -> None:
        """Refuse, or accept, that ``holder`` needs transactions that the journal no longer has.

        :param stands: the position of ``holder``; 0 if it is new.
        :param begins: the journal begins after this LSN.
        :raises SlotError: gaps are not accepted. Otherwise the gap is logged and ``holder`` continues at ``begins``.
        """
        if not self._accept:
            where = f"stands at {stands}" if stands else "is new"
            raise SlotError(
                f"{holder} {where}, but the journal begins at {begins}: earlier transactions were pruned, or belong to "
                f"another journal; {HOW}"
            )
        self.accepted.append(Gap(holder, stands, begins))
        _log.warning("%s goes on at %s: what committed before is missing, as accepted", holder, begins)

    async def refuted(self, claim: Claim, begins: LSN, source: Literal["slot", "journal"] = "slot") -> None:
        """Refuse, or accept, a claim that the stream refutes; called before any later transaction is delivered.

        :param begins: where the stream began.
        :param source: where the stream comes from.
        :raises SlotError: gaps are not accepted. Otherwise the gap is logged and the holder continues after its claim.
        """
        if not self._accept:
            raise SlotError(refutation(claim, begins, source))
        position, until = claim.position, claim.position.lsn
        self.accepted.append(Gap(claim.holder, begins, until))
        if position.trail is not None:
            # Its last transaction is not in this stream.
            position.trail.begin(replace(position, last=None))
        _log.warning(
            "%s goes on at %s of a %s in which it has not come there: what committed there behind %s is missing, as accepted",
            *(claim.holder, until, source, begins),
        )


def refutation(claim: Claim, begins: LSN, source: Literal["slot", "journal"] = "slot") -> str:
    """The message for a refuted claim: the reason, and what to do."""
    position = claim.position
    last = position.last
    assert last is not None
    proof = (
        f"the transaction {last.xid} at {last.commit_lsn} as the last before that, and the {source} does not have it there"
        if last.commit_lsn >= begins
        else f"nothing behind the transaction {last.xid} at {last.commit_lsn}, and the {source} has more there"
    )
    why = (
        "this server was restored from a backup, or is another promoted standby"
        if source == "slot"
        else "the journal is of a server that was restored from a backup, or of another promoted standby"
    )
    return (
        f"{claim.holder} stands at {position.lsn} with {proof}: {why}, and what that wrote up to there would be taken for "
        f"what {claim.holder} has; {HOW}. If only the publications or options of this source were changed, start once with "
        "the old ones"
    )
