"""Whether the stream continues where a sink, a journal or this process left off. Pure.

Neither the LSN of a position nor its timeline proves that. A server that was restored from a backup reuses the same LSNs on
the same timeline, and two promoted standbys of one primary get the same timeline number, perhaps at the same LSN. So a
position is compared in three steps:

1. Timelines: the server's history must contain the position.
2. The slot and the end of WAL: the slot must not be past the position, and the server's WAL must reach it.
3. The last transaction with changes before the position: the server still has every transaction that the slot has not
   confirmed, so this transaction is requested again and must be identical (``Continuity``). If the slot has confirmed it, no
   transaction may come between the slot's position and the claimed one. A server that decodes the transaction again may find
   no changes in it and send nothing; then its commit must be in the WAL (``server.logged``).

A position that fails a step is a gap. ``GapPolicy`` rejects gaps, or accepts them if the user has asked for that.

Source: "Continuous Archiving and Point-in-Time Recovery", timelines; ``readTimeLineHistory`` in timeline.c.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from aiorepl.errors import SlotError, SlotLost
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pgoutput.messages import CommitPrepared
from aiorepl.position import Commit, Position, Timelines
from aiorepl.source.lineage import Upgrade
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

_log = logger("aiorepl.gaps")

GAP_ADVICE: Final = (
    "start with an empty one, read all tables again (resnapshot=True, on the command line --resnapshot, with a journal or "
    "state_dir), or continue without them (accept_gap=True, --accept-gap)"
)

_Branches = tuple[tuple[int, LSN | None], ...]
"""Timelines, the oldest first, each with the LSN where the next one branched off; ``None`` for the last one."""


def parse_history(content: str | None, current: int) -> Timelines:
    """Read a timeline history file.

    :param content: the file of the timeline ``current``; ``None`` if it could not be read.
    """
    lines = (line.split() for line in (content or "").splitlines())
    ancestors = [
        (int(words[0]), LSN.parse(words[1])) for words in lines if len(words) >= 2 and words[0].isdigit()
    ]
    return Timelines(current, ancestors, known=current == 1 or bool(ancestors))


def divergence(position: Position, timelines: Timelines) -> LSN | None:
    """Return the LSN before ``position`` where the server's history left the position's; ``None`` if it did not.

    :raises SlotError: the two histories have no timeline in common.
    """
    server = timelines.history(timelines.current)
    if server is None:
        return None
    history = position.history
    if history is None:
        # The position has only the number of its timeline, so take the ancestors from the server's history.
        history = tuple(ancestor for ancestor in server if ancestor[0] < position.timeline)
    lsn = _diverged((*history, (position.timeline, None)), (*server, (timelines.current, None)))
    if lsn == 0:
        raise SlotError(
            f"this server is on timeline {timelines.current}, which does not descend from {position.timeline}, the "
            "timeline of the delivered data: the server was restored from an earlier state; point the DSN at the right one"
        )
    return lsn if lsn is not None and lsn < position.lsn else None


def _diverged(history: _Branches, server: _Branches) -> LSN | None:
    """Return the LSN where two histories diverge; 0 if they have nothing in common, ``None`` if they do not diverge."""
    common = LSN(0)
    for (timeline, end), (server_timeline, server_end) in zip(history, server, strict=False):
        if timeline != server_timeline:
            return common
        if end != server_end:
            return min(lsn for lsn in (end, server_end) if lsn is not None)
        common = end or common
    return None


def _is_ancestor(position: Position, timelines: Timelines) -> bool:
    """Whether the position's timeline is an ancestor of the server's, judged by its number."""
    ancestors = timelines.history(timelines.current) or ()
    return any(timeline == position.timeline for timeline, _ in ancestors)


def require_history(received: Position, timelines: Timelines, partial: LSN | None = None) -> None:
    """Check after a reconnect that the server's history contains everything that was received.

    :param received: the end of the received data.
    :param partial: the commit LSN of the transaction that was received in part, if ``received`` is within this transaction.
    :raises SlotLost: the server has lost some of it.
    """
    lsn = divergence(received, timelines)
    if lsn is None:
        return
    server = (
        f"the promoted server left timeline {received.timeline} at {lsn}"
        if _is_ancestor(received, timelines)
        else f"the server's history left timeline {received.timeline} at {lsn}"
    )
    if partial is not None:
        raise SlotLost(
            f"{server}, but this pipeline has received a part of the transaction that commits at {partial}: the server has "
            "lost that transaction. Sinks that keep no position may have written rows of it; the others roll it back. Start "
            "again to continue without it (on PostgreSQL 17 and later synchronized_standby_slots prevents this)"
        )
    raise SlotLost(
        f"{server}, but this pipeline has received up to {received.lsn}: the server has lost the last transactions, and the "
        "sinks have them. Start with empty sinks, or start again with resnapshot=True (--resnapshot, with a journal or "
        "state_dir) or accept_gap=True (--accept-gap) (on PostgreSQL 17 and later synchronized_standby_slots prevents this)"
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """The position up to which ``holder`` claims to have the stream."""

    holder: str
    position: Position


class Continuity:
    """Compares the received slices with the claims.

    :param begins: where the server begins to send; earlier transactions cannot be compared.
    :param logged: transactions that are in the server's WAL, although the server may not send them.
    """

    def __init__(self, claims: Iterable[Claim], begins: LSN, logged: Iterable[Commit] = ()) -> None:
        self.begins = begins
        self._logged = frozenset(logged)
        self._open = sorted(
            (claim for claim in claims if claim.position.last is not None and claim.position.lsn > begins),
            key=lambda claim: claim.position.lsn,
        )
        self._last: Commit | None = None

    @property
    def open(self) -> list[Claim]:
        """The claims that are neither proven nor refuted yet, sorted by LSN."""
        return self._open

    def since(self, after: LSN) -> LSN:
        """Return the LSN at which the server has to start for a consumer at ``after``, so that open claims can be compared."""
        lasts = (claim.position.last for claim in self._open)
        return min([after, *(last.commit_lsn for last in lasts if last is not None)])

    def take(self, part: Slice) -> list[Claim]:
        """Take the next received slice and return the claims that it refutes."""
        header = part.transaction
        lsn = part.end_lsn if header is None else header.commit_lsn
        refuted = []
        while self._open and lsn is not None and self._open[0].position.lsn <= lsn:
            claim = self._open.pop(0)
            if not self._proven(claim.position):
                refuted.append(claim)
        if header is not None and (identifies(part, header) or self._is_claimed(header)):
            self._last = Commit.of(header)
        return refuted

    def _is_claimed(self, header: Transaction) -> bool:
        """Whether this is the last transaction of an open claim, which may have no changes this time."""
        lasts = (claim.position.last for claim in self._open)
        return not header.prepared and any(last is not None and last == Commit.of(header) for last in lasts)

    def _proven(self, position: Position) -> bool:
        last, found = position.last, self._last
        assert last is not None
        if last.commit_lsn < self.begins:
            return found is None
        skipped = last in self._logged and (found is None or found.commit_lsn < last.commit_lsn)
        return found == last or skipped


def identifies(part: Slice, header: Transaction) -> bool:
    """Whether the slice belongs to a committed transaction that the server sends again in every case.

    It does not send the rows of a snapshot again. A transaction without changes is sent or left out as the server likes: it is
    sent if its changes were streamed before they were rolled back. A PREPARE and a ROLLBACK PREPARED commit nothing.
    """
    if header.prepared or part.two_phase is not None:
        return isinstance(part.two_phase, CommitPrepared)
    return header.xid != 0 and not (part.first and part.last and not part.changes)


@dataclass(frozen=True, slots=True)
class Gap:
    """Transactions that ``holder`` never received: they committed after ``after`` and ended at or before ``until``.

    If a promotion lost transactions that ``holder`` has, ``after`` is where the two histories diverge, and ``holder`` keeps
    the old server's transactions from there on.
    """

    holder: str
    after: LSN
    until: LSN


class GapPolicy:
    """Rejects or accepts the gaps that a start finds.

    :param accept: continue after a gap instead of raising.
    """

    def __init__(self, *, accept: bool) -> None:
        self._accept = accept
        self.accepted: list[Gap] = []

    def check(
        self,
        holder: str,
        position: Position | None,
        slot: Position,
        wal_end: LSN,
        upgrade: Upgrade | None = None,
    ) -> Position | None:
        """Return where ``holder`` continues: at its own position, or where the slot begins if a gap is accepted.

        :param position: the position that ``holder`` keeps; ``None`` if it keeps none.
        :param slot: where the slot begins.
        :param wal_end: the end of the server's WAL.
        :param upgrade: the upgrade that made the server's cluster.
        :raises SlotLost: the slot was confirmed past the position, or the server lacks transactions before it.
        """
        if position is None:
            return None
        if upgrade is not None and upgrade.joins(position, slot):
            _log.info(
                "%s is at %s of the old cluster and continues at %s of the new one",
                holder,
                position.lsn,
                slot.lsn,
            )
            return slot
        diverged = None if slot.timelines is None else divergence(position, slot.timelines)
        if diverged is not None:
            return self._check_diverged(holder, position, diverged, slot, wal_end, upgrade)
        if position.lsn > wal_end:
            raise SlotLost(
                f"{holder} is at {position.lsn}, but the server's WAL ends at {wal_end}: the server lost its last "
                f"transactions, by a failover or a restore, and its new ones would be mistaken for them; start {holder} "
                "empty"
            )
        if position.lsn >= slot.lsn:
            return position
        if not self._accept:
            raise SlotLost(
                f"{holder} is at {position.lsn}, but slot {slot.slot!r} begins at {slot.lsn}: the slot no longer has "
                f"the transactions between them; {GAP_ADVICE}"
            )
        self.accepted.append(Gap(holder, position.lsn, slot.lsn))
        _log.warning(
            "%s continues at %s: transactions committed after %s are missing, as accepted",
            *(holder, slot.lsn, position.lsn),
        )
        return slot

    def _check_diverged(
        self,
        holder: str,
        position: Position,
        diverged: LSN,
        slot: Position,
        wal_end: LSN,
        upgrade: Upgrade | None,
    ) -> Position:
        """Handle a promoted server that never had the last transactions of ``holder``.

        ``holder`` does not continue at ``diverged``, because it has other transactions at the LSNs from there on.
        """
        assert slot.timelines is not None
        server = (
            f"which the promoted server left at {diverged}"
            if _is_ancestor(position, slot.timelines)
            else f"which the server's history left at {diverged}"
        )
        if upgrade is not None and upgrade.old.end == diverged:
            server = f"which ended at {diverged} when `aiorepl upgrade prepare` ran"
        lost = (
            f"{holder} is at {position.lsn} of timeline {position.timeline}, {server}: transactions between them are "
            f"lost on the server and not in {holder}"
        )
        if position.lsn > wal_end:
            raise SlotLost(
                f"{lost}, and the server's WAL ends at {wal_end}, so new transactions would be mistaken for them; start "
                f"{holder} empty, or first move the server's WAL past {position.lsn} (SELECT pg_switch_wal())"
            )
        until = max(position.lsn, slot.lsn)
        if not self._accept:
            raise SlotLost(
                f"{lost}, and the server's transactions since then, up to {until}, would be mistaken for them; {GAP_ADVICE}"
            )
        self.accepted.append(Gap(holder, diverged, until))
        _log.warning(
            "%s continues at %s of timeline %s: transactions committed there after %s are missing, as accepted; it keeps "
            "transactions that only timeline %s has, up to %s",
            *(holder, until, slot.timeline, diverged, position.timeline, position.lsn),
        )
        return slot.at(until)

    def check_pruned(self, holder: str, lsn: LSN, begins: LSN) -> None:
        """Reject or accept that ``holder`` needs transactions that the journal no longer has.

        :param lsn: the position of ``holder``; 0 if it is new.
        :param begins: the journal begins after this LSN.
        :raises SlotError: gaps are not accepted. Otherwise the gap is logged and ``holder`` continues at ``begins``.
        """
        if not self._accept:
            state = f"is at {lsn}" if lsn else "is new"
            raise SlotError(
                f"{holder} {state}, but the journal begins at {begins}: earlier transactions were pruned, or belong to "
                f"another journal; {GAP_ADVICE}"
            )
        self.accepted.append(Gap(holder, lsn, begins))
        _log.warning("%s continues at %s: earlier transactions are missing, as accepted", holder, begins)

    def check_hole(self, holder: str, lsn: LSN, until: LSN) -> None:
        """Reject or accept that ``holder`` is inside a gap of the journal, because the journal was replaced by an older copy.

        :param lsn: the position of ``holder``.
        :param until: the end of the gap.
        :raises SlotError: gaps are not accepted. Otherwise the gap is logged and ``holder`` continues at ``until``.
        """
        if not self._accept:
            raise SlotError(
                f"{holder} is at {lsn}, inside the gap of the journal that ends at {until}: the transactions between them are "
                f"missing; {GAP_ADVICE}"
            )
        self.accepted.append(Gap(holder, lsn, until))
        _log.warning(
            "%s continues at %s: transactions committed after %s are missing, as accepted", holder, until, lsn
        )

    async def check_refuted(
        self, claim: Claim, begins: LSN, source: Literal["slot", "journal"] = "slot"
    ) -> None:
        """Reject or accept a claim that the stream refutes; called before any later transaction is delivered.

        :param begins: where the stream began.
        :param source: where the stream comes from.
        :raises SlotError: gaps are not accepted. Otherwise the gap is logged and the holder continues after its claim.
        """
        if not self._accept:
            raise (SlotLost if source == "slot" else SlotError)(refutation(claim, begins, source))
        position, until = claim.position, claim.position.lsn
        self.accepted.append(Gap(claim.holder, begins, until))
        if position.trail is not None:
            # The last transaction of the claim is not in this stream.
            position.trail.begin(replace(position, last=None))
        _log.warning(
            "%s continues at %s of a %s that does not contain its last transaction: transactions committed there after %s "
            "are missing, as accepted",
            *(claim.holder, until, source, begins),
        )


def refutation(claim: Claim, begins: LSN, source: Literal["slot", "journal"] = "slot") -> str:
    """Return the message for a refuted claim: the reason, and what to do."""
    position = claim.position
    last = position.last
    assert last is not None
    difference = (
        f"its last transaction, xid {last.xid} at {last.commit_lsn}, is not in the {source}"
        if last.commit_lsn >= begins
        else f"after its last transaction, xid {last.xid} at {last.commit_lsn}, the {source} has more"
    )
    server = "this server" if source == "slot" else "the journal's server"
    return (
        f"{claim.holder} is at {position.lsn}, but {difference}: {server} was restored from a backup, or is another "
        f"promoted standby, and its transactions up to there would be mistaken for those that {claim.holder} has; "
        f"{GAP_ADVICE}. If only the publications or options of this source were changed, start once with the old ones"
    )
