"""Proves that every connection of a capture continues the same stream: as the holders of positions, and this process, have it.

A transaction may be missing although the server has it: the server sends nothing of a transaction that has no changes when it is
decoded again. That happens if publications were altered while the transaction was in progress. A server that was not restarted
still has the same WAL. On any other, the WAL itself must have the transaction (``server.logged``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace

from aiorepl.errors import SlotError, SlotLost
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.position import Commit, Timelines
from aiorepl.source.continuity import Claim, Continuity, refutation, require_history
from aiorepl.source.ledger import Ledger
from aiorepl.source.preflight import PreflightResult
from aiorepl.source.progress import HOLDER, CaptureProgress
from aiorepl.source.server.logged import UNPROVEN, is_logged
from aiorepl.source.source import Source
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.capture")

Refuted = Callable[[Claim, LSN], Awaitable[None]]
"""Called for a claim that the stream refutes, with the LSN where the server began to send. The stream continues unless it raises."""


async def raise_refuted(claim: Claim, begins: LSN) -> None:
    """Reject the stream.

    :raises SlotLost: always.
    """
    raise SlotLost(refutation(claim, begins))


class SameStream:
    """The proof for one capture. Call ``begin`` for each connection, and ``reconnected`` before it for all but the first.

    :param claims: the positions to verify.
    """

    def __init__(
        self, source: Source, progress: CaptureProgress, claims: Iterable[Claim], refuted: Refuted
    ) -> None:
        self._source = source
        self._progress = progress
        self._claims = list(claims)
        self._on_refuted = refuted
        self._continuity = Continuity((), LSN(0))
        self._refuted: list[Claim] = []
        # The transaction of which an earlier process of the server has sent a part.
        self._restarted_within: LSN | None = None
        # Transactions that were missing, and whether they are in the server's WAL; ``None`` if that needs an extension.
        self._logged: dict[Commit, bool | None] = {}
        self._missing: Commit | None = None

    @property
    def open(self) -> bool:
        """Whether claims are neither proven nor refuted yet."""
        return bool(self._continuity.open)

    def begin(self, begins: LSN) -> LSN:
        """Begin to compare a connection.

        :param begins: where the server begins to send.
        :returns: where it has to begin, so that the claims can be compared.
        """
        logged = [commit for commit, found in self._logged.items() if found]
        self._continuity, self._refuted = Continuity(self._claims, begins, logged), []
        return self._continuity.since(self._progress.after)

    def reconnected(
        self, previous: PreflightResult, result: PreflightResult, ledger: Ledger
    ) -> PreflightResult:
        """Check that the server continues the received stream, and update the stream's timelines after a promotion.

        :raises SlotError: the server has another history, or the stream would have a gap.
        """
        found, position = result.position, previous.position
        timelines, server_timelines = position.timelines, found.timelines
        assert timelines is not None
        assert server_timelines is not None
        position.require_same_source(found, "this pipeline")
        furthest = self._progress.furthest
        require_history(position.at(furthest), server_timelines, self._progress.partial)
        if furthest > result.wal_end:
            raise SlotLost(
                f"the server's WAL ends at {result.wal_end}, but this pipeline has received up to {furthest}: the "
                "server lost its last transactions, by a failover or a restore; start with empty sinks"
            )
        known = max(self._progress.after, ledger.flushed, position.lsn)
        if ledger.resend_from is not None:
            known = min(known, ledger.resend_from)
        if found.lsn > known:
            raise SlotLost(
                f"slot {found.slot!r} was moved to {found.lsn} by another consumer, past {known}, the position of "
                "this pipeline, so the transactions between them would be missing; start again with resnapshot=True "
                "(--resnapshot, with a journal or state_dir) or accept_gap=True (--accept-gap)"
            )
        if result.started != previous.started:
            # A server that was not restarted still has the same WAL.
            own = self._progress.claim(position)
            others = [claim for claim in self._claims if claim.holder != HOLDER]
            self._claims = others if own is None else [*others, own]
            self._restarted_within = self._progress.partial
        current = server_timelines.current
        if current > timelines.current:
            _log.warning("the source was promoted: timeline %s after %s", current, timelines.current)
        if server_timelines.history(current) is not None:
            timelines.grow(server_timelines)
        elif current > timelines.current:
            # The history is unknown, so all later positions count as positions on the new timeline.
            timelines.grow(Timelines(current, [(timelines.current, furthest)], known=False))
        return replace(result, position=replace(found, timelines=timelines))

    async def look_up(self, started: str | None) -> None:
        """Find out whether the transaction that was missing is in the server's WAL. Nobody may read the slot meanwhile.

        :param started: when the server was started.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed; the same request may succeed later.
        """
        if self._missing is not None:
            self._logged[self._missing] = await is_logged(self._source, self._missing, started)
            self._missing = None

    def new(self, slices: list[Slice]) -> list[Slice]:
        """Return the slices without received changes; open claims make the server resend known transactions."""
        if not self.open:
            return slices
        new = []
        for part in slices:
            self._refuted += self._continuity.take(part)
            if (fresh := self._progress.new(part)) is not None:
                new.append(fresh)
        return new

    async def settle(self, slices: list[Slice]) -> list[Slice] | None:
        """Settle what these slices refute, and end a transaction whose rest the server does not send.

        :returns: the slices, with an end of that transaction; ``None`` if a transaction has to be looked up before: the slices
            must be received again.
        :raises SlotError: the server has lost a transaction.
        """
        while self._refuted:
            claim = self._refuted[0]
            if self._must_look_up(claim.position.last):
                return None
            refuted = raise_refuted if claim.holder == HOLDER else self._on_refuted
            with self._advising(claim.position.last):
                await refuted(claim, self._continuity.begins)
            self._claims.remove(claim)
            del self._refuted[0]
        if not self.open:
            self._claims = []
        passed = self._progress.passed(slices)
        if passed is None:
            return slices
        index, partial = passed
        if partial.prepared or partial.commit_lsn == self._restarted_within:
            # The server sends every PREPARE again.
            commit = Commit.of(partial)
            if not partial.prepared and self._must_look_up(commit):
                return None
            if not self._logged.get(commit):
                with self._advising(commit):
                    raise self._progress.lost(slices[index])
        _log.warning(
            "transaction %s, which commits at %s, was received in part, and has no more changes when the server decodes it again",
            *(partial.xid, partial.commit_lsn),
        )
        return [*slices[:index], self._progress.end_of(partial), *slices[index:]]

    @contextlib.contextmanager
    def _advising(self, commit: Commit | None) -> Iterator[None]:
        """Let the error for a missing transaction say what would prove that the server has it."""
        try:
            yield
        except SlotError as error:
            if commit is not None and self._logged.get(commit, False) is None:
                raise type(error)(f"{error}. {UNPROVEN}") from None
            raise

    def _must_look_up(self, commit: Commit | None) -> bool:
        """Whether to receive everything again after a look-up of a transaction."""
        if commit is None or commit in self._logged or self._source.temporary:
            return False
        self._missing = commit
        return True
