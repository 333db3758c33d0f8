"""The source as one unbroken sequence of slices, whatever becomes of its connections.

After a lost connection it reconnects, checks that the stream is the same one (the slot, its cluster, the server's history,
and ``continuity``), and resumes after the last transaction that was received whole. It drops the changes of an unfinished
transaction that it has already given out. So consumers get no duplicates within a process, unless one calls ``go_back``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from aiorepl.errors import AioreplError, ConfigurationError, SlotError, SpoolError
from aiorepl.lsn import LSN
from aiorepl.position import Position, Timelines
from aiorepl.retry import RetryPolicy, may_pass
from aiorepl.source.catalog.lookups import TableLookups
from aiorepl.source.continuity import Claim, Continuity, refutation, require_history
from aiorepl.source.ledger import Ledger
from aiorepl.source.preflight import PreflightResult, make_failover, preflight
from aiorepl.source.progress import HOLDER, CaptureProgress
from aiorepl.source.server.slot_cleanup import drop
from aiorepl.source.server.standby import StandbyWatch, TimelineChanged
from aiorepl.source.session import Session, TransactionBufferStatistics
from aiorepl.source.source import Source
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.transaction import Slice
from aiorepl.values.registry import Types
from aiorepl.wire.interface import Connection, CreatedSlot

_log = logging.getLogger("aiorepl.capture")

NOW = "now"

_BRIEFLY = RetryPolicy(timeout=10.0)


class Capture:
    """Use: ``connect``, then ``begin``, then ``receive`` until it returns ``None``, then ``stop``.

    :param retry: how to reconnect; ``None``: not at all.
    :param until: stop before the first transaction that commits at or after this; ``"now"``: at the end of WAL.
    :param tables: look-ups of tables in the catalog; ``None`` if no sink needs them.
    """

    def __init__(
        self,
        source: Source,
        *,
        retry: RetryPolicy | None,
        until: LSN | str | None = None,
        tables: TableLookups | None = None,
    ) -> None:
        self.source = source
        self.types = Types()
        self.tables = tables
        self._retry = retry
        self._until = _parsed(until)
        self._connection: Connection | None = None
        self._readied: PreflightResult | None = None
        self._session: Session | None = None
        self._ledger = Ledger(LSN(0), ())
        # Shared by all connections: slices of an earlier one may still be queued for the sinks.
        self._spool = Spool(source.spill_dir)
        self._received = CaptureProgress(LSN(0))
        self._claims: list[Claim] = []
        self._refuted: Callable[[Claim, LSN], Awaitable[None]] = _refuse
        self._continuity: Continuity | None = None
        self._refutations: list[tuple[Claim, LSN]] = []
        self._standby: StandbyWatch | None = None
        # Slices that were received and not given out yet.
        self._fresh: list[Slice] | None = None
        # Already received before the server was asked to send it again.
        self._known = LSN(0)
        self._going_back = False
        self.reconnects = 0
        self.last_error: str | None = None

    def deliver_prepared(self) -> None:
        """Everyone downstream keeps prepared transactions: give them out when they are prepared."""
        self.source = replace(self.source, deliver_prepared=True)

    @property
    def idle_seconds(self) -> float | None:
        """Seconds since the server's last sign of life; ``None`` without a stream, and with ``interface="sql"``."""
        if self._session is None or self.source.interface == "sql":
            return None
        return self._session.idle_seconds()

    @property
    def transaction_buffer(self) -> TransactionBufferStatistics:
        """The size of the transactions that cannot be delivered yet."""
        return TransactionBufferStatistics() if self._session is None else self._session.transaction_buffer

    async def connect(
        self, *, snapshot: str = "nothing", replace: bool = False, kept: Position | None = None
    ) -> PreflightResult:
        """The first connection, checked; it stays idle until ``begin``, as an exported snapshot needs.

        :param replace: make the slot anew, if it is there.
        :param kept: what the journal holds, of which a slot that is made has to be the source.
        :raises ConnectionFailed, ConfigurationError, SlotError: with what to do.
        """
        self._connection = await self.source.open()
        try:
            self._readied = await preflight(
                self._connection,
                self.source,
                create=self.source.create_slot or replace,
                snapshot=snapshot,
                replace=replace,
                kept=kept,
                tables=self.tables,
            )
        except BaseException:
            await self._connection.close()
            raise
        return self._readied

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """Run a query between ``connect`` and ``begin``, which ends an exported snapshot; all columns are text.

        :raises ServerError, ConnectionLost: the query failed.
        """
        connection, _ = self._required()
        return await connection.query(sql)

    async def begin(
        self,
        after: LSN,
        sinks: Iterable[str],
        *,
        start: LSN | None = None,
        claims: Iterable[Claim] = (),
        refuted: Callable[[Claim, LSN], Awaitable[None]] | None = None,
    ) -> Ledger:
        """START_REPLICATION behind ``after``.

        :param sinks: whose word the confirmation needs.
        :param start: what counts as durable before the first of them has spoken; ``after`` unless given.
        :param claims: the holders' positions, to be verified against the stream.
        :param refuted: called for each claim that the stream refutes, with the LSN where the server began to send; the
            stream continues unless it raises.
        """
        connection, readied = self._required()
        if self._until == NOW:
            self._until = (await connection.identify_system()).xlogpos
        start = after if start is None else start
        if readied.holds_prepared:
            # The slot may have been held back for what is prepared and undecided. Nothing tells of that but the
            # PREPARE that comes again, so until then no more is confirmed than was before.
            start = min(start, readied.position.lsn)
        self._ledger = Ledger(start, sinks)
        self._claims = list(claims)
        lasts = [claim.position.last for claim in self._claims if claim.position.lsn == after]
        self._received = CaptureProgress(after, next(iter(lasts), None))
        self._refuted = refuted or _refuse
        await self._start(connection, readied)
        return self._ledger

    async def receive(self) -> list[Slice] | None:
        """The next slices; ``None`` at the end.

        A call that is cancelled consumes nothing: the next one returns what it would have returned.

        :raises AioreplError: what reconnecting cannot mend.
        """
        while True:
            if self._session is None:
                await self._reconnect()
            assert self._session is not None
            try:
                return await self._receive(self._session)
            except Exception as error:
                # First, because what the session has consumed comes again only on another connection.
                await self._abandon(error)
                if not may_pass(error) or (self._retry is None and not isinstance(error, TimelineChanged)):
                    raise
                _log.warning("reading from the source broke off, reconnecting: %s", error)
                if isinstance(error, SpoolError) and self._retry is not None:
                    # Connecting would succeed and the disk be as full: give whoever is to make room some time.
                    await asyncio.sleep(self._retry.wait_max)

    async def _receive(self, session: Session) -> list[Slice] | None:
        if self._fresh is None:
            received = await session.receive()
            if received is None:
                return None
            self._fresh = self._new(received)
        if self._standby is not None and self._fresh:
            await self._standby.require_same_timeline()
        while self._refutations:
            claim, begins = self._refutations[0]
            await (_refuse if claim.holder == HOLDER else self._refuted)(claim, begins)
            self._claims.remove(claim)
            del self._refutations[0]
        if self._continuity is not None and not self._continuity.open:
            self._continuity, self._claims = None, []
            self._ledger.confirm_at_most(None)
        self._received.remember(self._fresh)
        slices, self._fresh = self._fresh, None
        return slices

    async def _abandon(self, error: Exception | None = None) -> None:
        """Drop the connection, and the slices from it that were not given out."""
        if error is not None:
            self.last_error = str(error)
        session, self._session = self._session, None
        standby, self._standby = self._standby, None
        self._fresh, self._refutations = None, []
        if standby is not None:
            standby.abort()
        if session is not None:
            await session.abandon()

    async def rewind(self, lsn: LSN) -> None:
        """Have everything behind ``lsn`` received once more: somebody downstream has lost it. Not during ``receive``.

        :raises SlotError: where the slot would not outlive that.
        """
        if self.source.temporary:
            raise SlotError(
                f"what a sink has lost cannot be read again: slot {self.source.slot!r} is temporary and would be gone with "
                "its connection; use one that stays, or a journal"
            )
        self._received.rewind(lsn)
        self._going_back = True
        await self._abandon()

    async def stop(self) -> None:
        """Send the last status, end the stream in order and close. Safe to call in any state."""
        session, self._session = self._session, None
        standby, self._standby = self._standby, None
        connection, self._connection = self._connection, None
        if standby is not None:
            standby.abort()
        if session is not None:
            await session.stop()
        elif connection is not None:
            await connection.close()

    async def roll_back(self) -> None:
        """Stop, and drop the slot if ``connect`` has created it, after a failed start in which nothing was delivered."""
        try:
            await self.stop()
        finally:
            if self.created is not None:
                await drop(self.source, self.created)

    @property
    def created(self) -> CreatedSlot | None:
        """The slot that ``connect`` created; ``None`` for an existing slot or a temporary one."""
        return None if self._readied is None or self.source.temporary else self._readied.created

    def _required(self) -> tuple[Connection, PreflightResult]:
        if self._connection is None or self._readied is None:
            raise RuntimeError("connect first")
        return self._connection, self._readied

    async def _start(self, connection: Connection, readied: PreflightResult) -> None:
        if readied.becomes_failover:
            # Only now: everybody who holds a position has found it to be of this slot.
            await make_failover(connection, self.source.slot)
        until = self._until if isinstance(self._until, LSN) else None
        continuity = Continuity(self._claims, readied.position.lsn)
        # Before the session's timer starts: the next start cannot compare what a status has confirmed.
        self._ledger.confirm_at_most(readied.position.lsn if continuity.open else None)
        session = Session(
            connection,
            self.source,
            self.types,
            self._ledger,
            resume=self._received.resume(continuity.since(self._received.after)),
            tables=self.tables,
            until=until,
            spool=self._spool,
        )
        await session.start(readied)
        self._session, self._known = session, self._received.after
        timelines = readied.position.timelines
        if readied.standby is not None and timelines is not None:
            self._standby = StandbyWatch(self.source, readied.standby, timelines.current)
        self._continuity = continuity if continuity.open else None
        if self._continuity is None:
            self._claims = []

    async def _reconnect(self) -> None:
        # Whoever does not want to reconnect is connected again where we hung up ourselves.
        retry = self._retry or _BRIEFLY
        _, before = self._required()
        told = self.last_error
        async for attempt in retry.connection():
            with attempt:
                readied, connection = await self._connect_again(before)
                self._connection, self._readied = connection, readied
        if self._going_back:
            # That the slot is still ours for a moment is nothing to be told.
            self._going_back, self.last_error = False, told
            _log.warning("the source is read again from %s", self._received.after)
            return
        self.reconnects += 1
        _log.warning("reconnected to the source, going on from %s", self._received.after)

    async def _connect_again(self, before: PreflightResult) -> tuple[PreflightResult, Connection]:
        try:
            connection = await self.source.open()
            try:
                followed = before.position.at(self._received.furthest)
                readied = await preflight(connection, self.source, create=False, followed=followed)
                readied = self._same_stream(before, readied)
                await self._start(connection, readied)
            except BaseException:
                connection.abort()
                raise
        except AioreplError as error:
            text = str(error)
            if text != self.last_error:
                _log.info("reconnecting to the source failed: %s", text)
                self.last_error = text
            raise
        return readied, connection

    def _same_stream(self, before: PreflightResult, readied: PreflightResult) -> PreflightResult:
        """Check that what comes fits to what came, and have every position of the stream know of a promotion.

        :raises SlotError: it would leave a gap, or follow another history.
        """
        found, position = readied.position, before.position
        timelines, there = position.timelines, found.timelines
        assert timelines is not None
        assert there is not None
        position.require_same_source(found, "this pipeline")
        furthest = self._received.furthest
        require_history(position.at(furthest), there, self._received.begun)
        if furthest > readied.wal_end:
            raise SlotError(
                f"the server's WAL ends at {readied.wal_end}, but this pipeline has received up to {furthest}: the "
                "server lost its last transactions, by a failover or a restore; what has them has to begin anew"
            )
        known = max(self._received.after, self._ledger.flushed, position.lsn)
        if self._ledger.resend_from is not None:
            known = min(known, self._ledger.resend_from)
        if found.lsn > known:
            raise SlotError(
                f"slot {found.slot!r} was moved to {found.lsn} by somebody else, past {known} where this pipeline "
                "stands: what lies between would be lost; start again with resnapshot=True (--resnapshot, with a "
                "journal), or with accept_gap=True (--accept-gap)"
            )
        if readied.started != before.started:
            # A server that was not restarted still has the same WAL.
            own = self._received.claim(position)
            others = [claim for claim in self._claims if claim.holder != HOLDER]
            self._claims = others if own is None else [*others, own]
        if there.current > timelines.current:
            _log.warning("the source was promoted: timeline %s after %s", there.current, timelines.current)
        if there.history(there.current) is not None:
            timelines.grow(there)
        elif there.current > timelines.current:
            # Everything from here on belongs to the new timeline.
            timelines.grow(Timelines(there.current, [(timelines.current, furthest)], known=False))
        return replace(readied, position=replace(found, timelines=timelines))

    def _new(self, slices: list[Slice]) -> list[Slice]:
        """The slices that were not received before; open claims make the server repeat known transactions."""
        continuity = self._continuity
        if continuity is None:
            return slices
        new = []
        for part in slices:
            self._refutations += [(claim, continuity.begins) for claim in continuity.take(part)]
            header, end = part.transaction, part.end_lsn
            known = end is not None and end <= self._known
            if not known and (header is None or header.commit_lsn >= self._known):
                new.append(part)
        return new


async def _refuse(claim: Claim, begins: LSN) -> None:
    raise SlotError(refutation(claim, begins))


def _parsed(until: LSN | str | None) -> LSN | str | None:
    """``NOW``, or a position.

    :raises ConfigurationError: for other text.
    """
    if until is None or until == NOW:
        return until
    try:
        return LSN.parse(until) if isinstance(until, str) else LSN(until)
    except ValueError as error:
        raise ConfigurationError(f"until: {error}, or: now") from None
