"""Stretches of the stream that are gone: refused, unless the user has said that they are accepted."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aiorepl.delivery.timelines import parted
from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position

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
        lost = (
            f"{holder} stands at {held.lsn} of timeline {held.timeline}, which the promoted server left at {left}: what "
            f"committed between them is lost on the server and not in {holder}"
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
