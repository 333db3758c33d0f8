"""The source as one unbroken sequence of slices, whatever becomes of its connections.

After a loss it connects again, checks that it is still the same slot of the same cluster, and asks for the stream
from the last transaction that was received whole; of one that was under way it drops the changes that are known.
So downstream nothing comes twice within a process, unless somebody there has lost it and asks (``go_back``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from aiorepl.delivery.ledger import Ledger
from aiorepl.delivery.overview import WaitingStatistics
from aiorepl.delivery.readying import Readied, ready
from aiorepl.delivery.retry import RetryPolicy, may_pass
from aiorepl.delivery.session import Session
from aiorepl.delivery.source import Source
from aiorepl.delivery.timelines import require_history
from aiorepl.delivery.undoing import drop
from aiorepl.errors import AioreplError, ConfigurationError, SlotError, SpoolError
from aiorepl.lsn import LSN
from aiorepl.position import Position, Timelines
from aiorepl.transactions.assembler import Resume
from aiorepl.transactions.transaction import Slice
from aiorepl.values.registry import Types
from aiorepl.wire.routes import Connection, CreatedSlot

_log = logging.getLogger("aiorepl.capture")

NOW = "now"

_BRIEFLY = RetryPolicy(seconds=10.0)


class Capture:
    """Use: ``connect``, then ``begin``, then ``receive`` until it returns ``None``, then ``stop``.

    :param retry: how to reconnect; ``None``: not at all.
    :param until: stop before the first transaction that commits at or after this; ``"now"``: at the end of WAL.
    """

    def __init__(self, source: Source, *, retry: RetryPolicy | None, until: LSN | str | None = None) -> None:
        self.source = source
        self.types = Types()
        self._retry = retry
        self._until = _parsed(until)
        self._connection: Connection | None = None
        self._readied: Readied | None = None
        self._session: Session | None = None
        self._ledger = Ledger(LSN(0), ())
        self._partial: tuple[LSN, int] | None = None
        self._after = LSN(0)
        self._going_back = False
        self.reconnects = 0
        self.last_error: str | None = None

    def take_prepared(self) -> None:
        """Everyone downstream keeps prepared transactions: give them out when they are prepared."""
        self.source = replace(self.source, deliver_prepared=self.source.two_phase)

    @property
    def quiet_for(self) -> float | None:
        """Seconds since the server's last sign of life; ``None`` without a stream, and with ``source="sql"``."""
        if self._session is None or self.source.source == "sql":
            return None
        return self._session.quiet_for()

    @property
    def waiting(self) -> WaitingStatistics:
        """What has been received and cannot be given out yet."""
        return WaitingStatistics() if self._session is None else WaitingStatistics(*self._session.waiting)

    async def connect(
        self, *, snapshot: str = "nothing", replace: bool = False, kept: Position | None = None
    ) -> Readied:
        """The first connection, checked; it stays idle until ``begin``, as an exported snapshot needs.

        :param replace: make the slot anew, if it is there.
        :param kept: what the journal holds, of which a slot that is made has to be the source.
        :raises ConnectionFailed, ConfigurationError, SlotError: with what to do.
        """
        self._connection = await self.source.open()
        try:
            self._readied = await ready(
                self._connection,
                self.source,
                create=self.source.create_slot or replace,
                snapshot=snapshot,
                replace=replace,
                kept=kept,
            )
        except BaseException:
            await self._connection.close()
            raise
        return self._readied

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """Ask the server between ``connect`` and ``begin``, which ends an exported snapshot; all columns are text.

        :raises ServerError, ConnectionLost: it cannot be asked.
        """
        connection, _ = self._required()
        return await connection.query(sql)

    async def begin(self, after: LSN, sinks: Iterable[str], *, start: LSN | None = None) -> Ledger:
        """START_REPLICATION behind ``after``.

        :param sinks: whose word the confirmation needs.
        :param start: what counts as durable before the first of them has spoken; ``after`` unless given.
        """
        connection, readied = self._required()
        if self._until == NOW:
            self._until = (await connection.identify_system()).xlogpos
        start = after if start is None else start
        if self.source.holds_prepared:
            # The slot may have been held back for what is prepared and undecided. Nothing tells of that but the
            # PREPARE that comes again, so until then no more is confirmed than was before.
            start = min(start, readied.position.lsn)
        self._ledger = Ledger(start, sinks)
        self._after = after
        await self._start(connection, readied)
        return self._ledger

    async def receive(self) -> list[Slice] | None:
        """The next slices; ``None`` at the end.

        :raises AioreplError: what reconnecting cannot mend.
        """
        while True:
            if self._session is None:
                await self._reconnect()
            assert self._session is not None
            try:
                slices = await self._session.receive()
            except Exception as error:
                # First, because what the session has consumed comes again only on another connection.
                session, self._session = self._session, None
                self.last_error = str(error)
                await session.abandon()
                if self._retry is None or not may_pass(error):
                    raise
                _log.warning("reading from the source broke off, reconnecting: %s", error)
                if isinstance(error, SpoolError):
                    # Connecting would succeed and the disk be as full: give whoever is to make room some time.
                    await asyncio.sleep(self._retry.longest)
                continue
            if slices:
                self._remember(slices)
            return slices

    async def go_back(self, lsn: LSN) -> None:
        """Have everything behind ``lsn`` received once more: somebody downstream has lost it. Not during ``receive``.

        :raises SlotError: where the slot would not outlive that.
        """
        if self.source.temporary:
            raise SlotError(
                f"what a sink has lost cannot be read again: slot {self.source.slot!r} is temporary and would be gone with "
                "its connection; use one that stays, or a journal"
            )
        session, self._session = self._session, None
        if session is not None:
            await session.abandon()
        # Whoever went back before may not have come so far yet.
        self._after = min(self._after, lsn)
        self._partial = None
        self._going_back = True

    async def stop(self) -> None:
        """Send the last status, end the stream in order and close. Safe to call in any state."""
        session, self._session = self._session, None
        connection, self._connection = self._connection, None
        if session is not None:
            await session.stop()
        elif connection is not None:
            await connection.close()

    async def undo(self) -> None:
        """Stop, and drop the slot if ``connect`` has created it: the start has failed, and nobody has anything of it."""
        await self.stop()
        if self.created is not None:
            await drop(self.source, self.created)

    @property
    def created(self) -> CreatedSlot | None:
        """The slot, if ``connect`` has created it; not a temporary one, which ends by itself."""
        return None if self._readied is None or self.source.temporary else self._readied.created

    @property
    def _furthest(self) -> LSN:
        """How far the stream was received whole, also where it is being read again."""
        return max(self._after, self._ledger.end)

    def _required(self) -> tuple[Connection, Readied]:
        if self._connection is None or self._readied is None:
            raise RuntimeError("connect first")
        return self._connection, self._readied

    async def _start(self, connection: Connection, readied: Readied) -> None:
        commit_lsn, ordinals = self._partial or (None, 0)
        until = self._until if isinstance(self._until, LSN) else None
        session = Session(
            connection,
            self.source,
            self.types,
            self._ledger,
            resume=Resume(self._after, commit_lsn, ordinals),
            until=until,
        )
        await session.start(readied)
        self._session = session

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
            _log.warning("the source is read again from %s", self._after)
            return
        self.reconnects += 1
        _log.warning("reconnected to the source, going on from %s", self._after)

    async def _connect_again(self, before: Readied) -> tuple[Readied, Connection]:
        try:
            connection = await self.source.open()
            try:
                followed = before.position.at(self._furthest)
                readied = await ready(connection, self.source, create=False, followed=followed)
                readied = self._same_stream(before.position, readied)
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

    def _same_stream(self, before: Position, readied: Readied) -> Readied:
        """Check that what comes fits to what came, and have every position of the stream know of a promotion.

        :raises SlotError: it would leave a gap, or follow another history.
        """
        found, timelines = readied.position, before.timelines
        assert found.timelines is not None
        assert timelines is not None
        before.require_same_source(found, "this pipeline")
        require_history(before.at(self._furthest), found.timelines)
        if self._furthest > readied.wal_end:
            raise SlotError(
                f"the server's WAL ends at {readied.wal_end}, but this pipeline has received up to {self._furthest}: the "
                "server lost its last transactions, by a failover or a restore; what has them has to begin anew"
            )
        known = max(self._after, self._ledger.flushed, before.lsn)
        if self._ledger.resend_from is not None:
            known = min(known, self._ledger.resend_from)
        if found.lsn > known:
            raise SlotError(
                f"slot {found.slot!r} was moved to {found.lsn} by somebody else, past {known} where this pipeline "
                "stands: what lies between would be lost; start again with resnapshot=True (--resnapshot, with a "
                "journal), or with accept_gap=True (--accept-gap)"
            )
        if found.timeline > before.timeline:
            _log.warning("the source was promoted: timeline %s after %s", found.timeline, before.timeline)
            # Where the server does not tell where it was, all that comes now is of the later one.
            guessed = Timelines(found.timeline, [(before.timeline, self._furthest)])
            timelines.grow(found.timelines if found.timelines.known else guessed)
        return replace(readied, position=replace(found, timelines=timelines))

    def _remember(self, slices: list[Slice]) -> None:
        for part in slices:
            if part.end_lsn is not None:
                self._after = max(self._after, part.end_lsn)
            if part.transaction is None:
                continue
            if part.last:
                self._partial = None
            else:
                before = 0 if self._partial is None else self._partial[1]
                self._partial = (part.transaction.commit_lsn, before + len(part.changes))


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
