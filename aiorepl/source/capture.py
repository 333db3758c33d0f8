"""The source as one unbroken sequence of slices over all of its connections.

After a lost connection it reconnects, checks that the stream is the same one (``same_stream``), and resumes after the last
transaction that was received whole. It drops the changes of an unfinished transaction that it has already returned. So consumers
get no duplicates within a process, unless one calls ``rewind``. A temporary slot is lost with its connection: the capture creates
the slot again, and returns a ``Resync`` before the first change of the new slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic
from typing import Any, Final, Literal

from aiorepl.errors import (
    AioreplError,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    ServerError,
    SlotError,
    shown,
)
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy, may_pass
from aiorepl.source.catalog.lookups import ColumnLookups
from aiorepl.source.catalog.table_lookups import TableLookups
from aiorepl.source.continuity import Claim
from aiorepl.source.feedback.patience import Patience
from aiorepl.source.interruptions import Interruptions
from aiorepl.source.ledger import Ledger
from aiorepl.source.preflight import PreflightResult, SlotRequest, preflight
from aiorepl.source.progress import CaptureProgress
from aiorepl.source.same_stream import Refuted, SameStream, raise_refuted
from aiorepl.source.server.slots import drop_created, make_failover
from aiorepl.source.server.standby import StandbyWatch, TimelineChanged
from aiorepl.source.session import Session, TransactionBufferStatistics
from aiorepl.source.source import Source
from aiorepl.source.visibility import Visibility
from aiorepl.transactions.pending import DoubtfulMessages
from aiorepl.transactions.resync import START, Resync
from aiorepl.transactions.row_counts import RowCounts
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.registry import Types
from aiorepl.wire.interface import Connection, CreatedSlot
from aiorepl.wire.kept_connection import KeptConnection
from aiorepl.wire.server_errors import MissingPublication

_log = logger("aiorepl.capture")


# The policy after this process has dropped its own connection, even if the user wants no reconnects.
_OWN_RECONNECT: Final = RetryPolicy(timeout=10.0)


def _may_be_due_to_streaming(error: Exception, source: Source, *, resyncs: bool) -> bool:
    """Whether the server may send the same transactions without an error if it decodes them after their commit.

    While a transaction is in progress that alters publications or tables, the server may see a wrong catalog. Then it does not
    find the publication, or fails with an internal error.
    """
    if (source.temporary and not resyncs) or source.streaming == "off":
        return False
    match error:
        case DoubtfulMessages() | MissingPublication():
            return True
        case ServerError(sqlstate="XX000"):
            return not may_pass(error)
    return False


class Capture:
    """Reads a slot: ``connect``, then ``begin``, then ``receive`` until it returns ``None``, then ``stop``.

    :param retry: how to reconnect; ``None``: never.
    :param until: stop before the first transaction that commits at or after this LSN; ``"now"``: at the end of WAL.
    :param tables: look-ups of tables in the catalog; ``None`` if no sink needs them.
    :param columns: look-ups of described columns; ``None`` if neither a sink nor a journal needs them.
    :raises ConfigurationError: ``until`` is neither an LSN nor ``"now"``.
    """

    def __init__(
        self,
        source: Source,
        *,
        retry: RetryPolicy | None,
        until: LSN | Literal["now"] | None = None,
        tables: TableLookups | None = None,
        columns: ColumnLookups | None = None,
    ) -> None:
        self.source = source
        self.types = Types()
        self.tables = tables
        self._columns = columns
        self.reconnects = 0
        self.last_error: str | None = None
        self.waiting_for: str | None = None
        """The transaction that the creation of the slot waits for, or that has to become visible; ``None``: there is none."""
        self.ledger: Ledger | None = None
        """The positions of the stream; ``None`` before ``begin``."""
        self._retry = retry
        self._interruptions = Interruptions(retry or _OWN_RECONNECT)
        self._patience = Patience()
        self._until = _checked(until)
        self.ends_now: Final = self._until == "now" and not source.temporary
        """Whether the stream ends at the end that WAL had at the start. ``read_on`` continues it."""
        self.resyncs: Final = source.temporary and retry is not None and self._until is None
        """Whether the stream begins with a ``Resync``, and continues with a ``Resync`` after each lost connection."""
        # For the next ``Resync``: its reason, and the end LSN of the slices returned so far.
        self._lost, self._returned = START, LSN(0)
        # The progress at the last transaction: only a transaction resets the back-off, because each new slot has a later LSN.
        self._advanced = LSN(0)
        # All connections share the spool, because slices of an earlier one may still be queued for the sinks.
        self._spool = Spool(source.spill_dir)
        self.counts = RowCounts()
        """The received rows, over all connections."""
        self.rolled_back = False
        """Whether ``roll_back`` has dropped the slot that ``connect`` created."""
        self._connection: Connection | None = None
        self._preflight: PreflightResult | None = None
        self._session: Session | None = None
        self._standby_watch: StandbyWatch | None = None
        self._visibility = Visibility(KeptConnection(source.connect_sql), source.visible_timeout, self._waits)
        # Set by ``begin``, once the beginning of the stream is known.
        self._progress: CaptureProgress
        self._same: SameStream
        # Whether the stream has not proven all claims yet.
        self._comparing = False
        # Slices that were received and not returned yet.
        self._received: list[Slice] | None = None
        self._rewinding = False
        # The LSNs at which to reconnect, ascending, and the LSN at which the last connection began.
        self._reopenings: list[LSN] = []
        self._began = LSN(0)
        self._deliver_prepared = self._control_messages = False

    def deliver_prepared(self) -> None:
        """Return prepared transactions at their PREPARE, because every consumer can keep them."""
        self._deliver_prepared = True

    def request_control_messages(self) -> None:
        """Return watermarks and signals as well, where the server supports logical messages."""
        self._control_messages = True

    @property
    def idle_seconds(self) -> float | None:
        """Seconds since the server has sent something; ``None`` without a stream, and with ``interface="sql"``."""
        if self._session is None or self.source.interface == "sql":
            return None
        return self._session.idle_seconds()

    @property
    def transaction_buffer(self) -> TransactionBufferStatistics:
        """The size of the transactions that cannot be delivered yet."""
        return TransactionBufferStatistics() if self._session is None else self._session.transaction_buffer

    async def connect(self, request: SlotRequest = SlotRequest()) -> PreflightResult:  # noqa: B008 - immutable
        """Open the first connection and check the source; the connection stays idle until ``begin``.

        An exported snapshot lives until then.

        :raises ConnectionFailed, ConfigurationError, SlotError: the source cannot be used; the message says what to do.
        """
        self._connection = await self.source.open()
        try:
            self._preflight = await self._check(self._connection, request)
        except BaseException:
            await self._connection.close()
            raise
        return self._preflight

    async def _check(self, connection: Connection, request: SlotRequest) -> PreflightResult:
        return await preflight(
            connection,
            self.source,
            request,
            # A reconnect creates no slot, and the tables were loaded at the start.
            tables=self.tables if request.previous is None else None,
            waits=self._waits,
            deliver_prepared=self._deliver_prepared,
            control_messages=self._control_messages,
        )

    def _waits(self, found: str | None) -> None:
        self.waiting_for = found

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """Run a query between ``connect`` and ``begin``. It ends an exported snapshot. All columns are text.

        :raises ServerError, ConnectionLost: the query failed.
        """
        connection, _ = self._connected()
        return await connection.query(sql)

    async def begin(
        self,
        after: LSN,
        sinks: Iterable[str],
        *,
        start: LSN | None = None,
        claims: Iterable[Claim] = (),
        refuted: Refuted | None = None,
    ) -> Ledger:
        """Start streaming after ``after``.

        :param sinks: the sinks that a confirmation waits for.
        :param start: the LSN that counts as durable until the sinks report; ``after`` by default.
        :param claims: the sinks' positions, to be verified against the stream.
        :param refuted: called for each claim that the stream refutes, with the LSN where the server began to send; the
            stream continues unless it raises.
        :raises SlotError, ConfigurationError, ServerError, ConnectionLost: the stream cannot start.
        """
        connection, result = self._connected()
        if self._until == "now":
            self._until = (await connection.identify_system()).xlogpos
        start = after if start is None else start
        if result.holds_prepared:
            # The slot may lag because of prepared transactions that are not decided yet. They are unknown until
            # the server sends their PREPARE again, so nothing more is confirmed before that.
            start = min(start, result.position.lsn)
        ledger = self.ledger = Ledger(start, sinks, result.position.lsn)
        claims = list(claims)
        lasts = [claim.position.last for claim in claims if claim.position.lsn == after]
        self._progress = CaptureProgress(after, next(iter(lasts), None))
        self._same = SameStream(self.source, self._progress, claims, refuted or raise_refuted)
        await self._start(connection, result, ledger)
        if self.resyncs:
            self._received = [Resync(result.position.lsn).slice()]
        return ledger

    async def receive(self) -> list[Slice] | None:
        """Return the next slices; ``None`` at the end.

        A cancelled call consumes nothing: the next call returns the slices that the cancelled call would have returned.

        :raises AioreplError: an error that a reconnect cannot solve.
        """
        while True:
            reopening = self._reopening
            if self._session is not None and reopening is not None and self._progress.reached(reopening):
                await self._reopen(reopening)
            if self._session is None:
                await self._reconnect()
            assert self._session is not None
            try:
                return await self._receive(self._session)
            except Exception as error:
                self._lost = str(error)
                # Reconnect first: only another connection sends the messages again that this session has consumed.
                await self._abandon(error)
                if _may_be_due_to_streaming(error, self.source, resyncs=self.resyncs):
                    # Streaming stays off until the end of the process, because such transactions tend to recur.
                    self.source = replace(self.source, streaming="off")
                    _log.warning(
                        "streaming is off until the next start, because the server may be unable to decode a transaction in progress"
                    )
                elif not may_pass(error) or (self._retry is None and not isinstance(error, TimelineChanged)):
                    raise
                # A new slot alone is no progress.
                progress = self._advanced if self.resyncs else self._progress.furthest
                pause = self._interruptions.pause(error, progress, monotonic())
                if pause is None:
                    raise
                _log.warning("reading from the source failed, reconnecting in %.1f s: %s", pause, error)
                if (advice := self._patience.lost(error, monotonic())) is not None:
                    _log.warning("%s", advice)
                await asyncio.sleep(pause)

    async def _receive(self, session: Session) -> list[Slice] | None:
        if self._received is None:
            received = await session.receive()
            if received is None:
                return None
            self._received = self._same.new(received)
        if self._standby_watch is not None and self._received:
            await self._standby_watch.require_same_timeline()
        settled = await self._same.settle(self._received)
        if settled is None:
            # The slot must be free for the look-up, so the next call reconnects.
            self._rewinding = True
            await self._abandon()
            return []
        self._received = settled
        if self._comparing and not self._same.open:
            assert self.ledger is not None
            self._comparing = False
            self.ledger.confirm_at_most(None)
        count = len(self._received)
        if count and (reopening := self._reopening) is not None:
            count = self._progress.before(reopening, self._received)
            if not count:
                await self._reopen(reopening)
                return []
        if self.source.visible:
            _, result = self._connected()
            count = min(count, await self._visibility.visible(self._received, result.started))
        slices, rest = self._received[:count], self._received[count:]
        self._progress.remember(slices, session.received_part)
        self._patience.received(self._progress.furthest)
        self._received = rest or None
        if self.resyncs:
            self._returned = self._progress.after
            if any(part.transaction is not None for part in slices):
                self._advanced = self._progress.furthest
        return slices

    async def visible(self, transaction: Transaction) -> None:
        """Wait until every new snapshot of the database sees a transaction.

        :raises SlotError: the transaction is not visible after ``visible_timeout``.
        :raises ConnectionLost, ConnectionFailed, ServerError: the server cannot be asked, or was restarted.
        """
        _, result = self._connected()
        await self._visibility.wait(transaction, result.started)

    async def _abandon(self, error: Exception | None = None) -> None:
        """Drop the connection, and its slices that were not returned yet."""
        if error is not None:
            self.last_error = str(error)
        session, self._session = self._session, None
        standby_watch, self._standby_watch = self._standby_watch, None
        self._received = None
        self._visibility.close()
        if standby_watch is not None:
            standby_watch.abort()
        if session is not None:
            await session.abandon()

    async def rewind(self, lsn: LSN) -> None:
        """Receive everything after ``lsn`` again, because a sink has lost it. Do not call this during ``receive``.

        :raises SlotError: the slot is temporary, so it would be dropped with its connection.
        """
        if self.source.temporary:
            raise SlotError(
                f"changes that a sink has lost cannot be read again: slot {self.source.slot!r} is temporary and would be "
                "dropped with its connection; use a permanent slot, or a journal"
            )
        self._progress.rewind(lsn)
        self._rewinding = True
        await self._abandon()

    def reopen(self, lsn: LSN) -> tuple[LSN, ...]:
        """Reconnect before the first transaction that commits at or after ``lsn``.

        Before PostgreSQL 15, only another walsender notices that a partition was attached or detached, and only if it sends no earlier
        row of the partition (``rel_sync_cache_relation_cb`` in pgoutput.c). A temporary slot would be lost. With ``interface="sql"`` each
        poll begins again.

        :returns: all LSNs at which a connection that begins earlier has to end.
        """
        if self.source.interface == "walsender" and not self.source.temporary:
            # No later connection begins before the slot's position.
            begins = LSN(0) if self._preflight is None else self._preflight.position.lsn
            self._reopenings = [*(each for each in self._reopenings if each > begins), lsn]
        return tuple(self._reopenings)

    @property
    def _reopening(self) -> LSN | None:
        if self._comparing:
            # Another connection would begin as early as this one.
            return None
        return next((lsn for lsn in self._reopenings if lsn > self._began), None)

    async def _reopen(self, lsn: LSN) -> None:
        # After a rewind to an earlier LSN, the stream has to reconnect at this LSN again.
        self._reopenings[self._reopenings.index(lsn)] = min(lsn, self._progress.after)
        self._rewinding = True
        await self._abandon()

    async def read_on(self) -> None:
        """Continue past ``until``, which is reached. Do not call this during ``receive``."""
        self._until = None
        self._rewinding = True
        await self._abandon()

    async def stop(self) -> None:
        """Send the last status, end the stream in order and close. Safe to call in any state."""
        session, self._session = self._session, None
        standby_watch, self._standby_watch = self._standby_watch, None
        connection, self._connection = self._connection, None
        self._visibility.close()
        if self.tables is not None:
            self.tables.close()
        if standby_watch is not None:
            standby_watch.abort()
        if session is not None:
            await session.stop()
        elif connection is not None:
            await connection.close()

    async def roll_back(self) -> None:
        """Stop after a failed start in which nothing was delivered, and drop the slot if ``connect`` has created it."""
        try:
            await self.stop()
        finally:
            if self.created is not None:
                await drop_created(self.source, self.created)
                self.rolled_back = True

    @property
    def position(self) -> Position:
        """The slot's position at the last connection, with its cluster and database."""
        _, result = self._connected()
        return result.position

    @property
    def xid(self) -> int:
        """The xid, with its epoch, of the oldest transaction that was in progress when the last connection was made."""
        assert self._preflight is not None
        return self._preflight.xid

    @property
    def server_started(self) -> str | None:
        """When the server of the last connection was started; ``None`` before, and while positions are compared with the stream."""
        return None if self._preflight is None or self._comparing else self._preflight.started

    @property
    def created(self) -> CreatedSlot | None:
        """The slot that ``connect`` created; ``None`` for an existing slot or a temporary one."""
        return None if self._preflight is None or self.source.temporary else self._preflight.created

    def _connected(self) -> tuple[Connection, PreflightResult]:
        if self._connection is None or self._preflight is None:
            raise RuntimeError(
                "the stream is not connected: write `async with aiorepl.connect(…) as stream:`"
            )
        return self._connection, self._preflight

    async def _start(self, connection: Connection, result: PreflightResult, ledger: Ledger) -> None:
        if result.make_failover:
            # Altered only now, when every sink's position is known to belong to this slot.
            await make_failover(connection, self.source.slot)
        since = self._began = self._same.begin(result.position.lsn)
        # Limit the confirmation first. The server does not send confirmed transactions again, so a restart could not check the claims
        # against them.
        self._comparing = self._same.open
        ledger.confirm_at_most(result.position.lsn if self._comparing else None)
        if self._columns is not None:
            self._columns.begin(result.catalog_xmin)
        session = Session(
            connection,
            self.source,
            self.types,
            ledger,
            resume=self._progress.resume(since),
            part=self._progress.part,
            tables=self.tables,
            columns=self._columns,
            until=self._until if isinstance(self._until, LSN) else None,
            spool=self._spool,
            counts=self.counts,
            patience=self._patience,
        )
        await session.start(result)
        self._interruptions.started(monotonic())
        self._patience.started(
            self._progress.furthest, result.wal_end, result.wal_sender_timeout, monotonic()
        )
        self._session = session
        if result.standby_pid is not None:
            self._standby_watch = StandbyWatch(self.source, result.standby_pid, result.server_timeline)

    async def _reconnect(self) -> None:
        _, previous = self._connected()
        async for attempt in (self._retry or _OWN_RECONNECT).connection():
            with attempt:
                self._connection, self._preflight = await self._reconnect_once(previous)
        if self._rewinding:
            # The slot may have been busy for a moment; that is not an error to report.
            self._rewinding, self.last_error = False, None
            _log.warning("reading the source again from %s", self._progress.after)
            return
        self.reconnects += 1
        self.last_error = None
        how = " with a new slot; changes before this LSN may be missing" if self.resyncs else ""
        _log.warning("reconnected to the source, continuing at %s%s", self._progress.after, how)

    async def _reconnect_once(self, previous: PreflightResult) -> tuple[Connection, PreflightResult]:
        assert self.ledger is not None
        try:
            connection = await self.source.open()
            try:
                if self.resyncs:
                    return connection, await self._begin_again(connection, previous, self.ledger)
                furthest = previous.position.at(self._progress.furthest)
                result = await self._check(connection, SlotRequest(previous=furthest))
                result = self._same.reconnected(previous, result, self.ledger)
                await self._same.look_up(result.started)
                await self._start(connection, result, self.ledger)
            except BaseException:
                connection.abort()
                raise
        except AioreplError as error:
            self.last_error = str(error)
            if isinstance(error, (ConnectionFailed, ConnectionLost)):
                self._patience.unreachable(monotonic())
            raise
        return connection, result

    async def _begin_again(
        self, connection: Connection, previous: PreflightResult, ledger: Ledger
    ) -> PreflightResult:
        """Create a temporary slot in place of the lost one, and begin its stream with a ``Resync``.

        The new stream may begin at a lower LSN than the former one, as after a failover that lost transactions.

        The new slot gets the name of the lost slot. Under another name, the lost slot would keep WAL until the server notices the lost
        connection. While the lost slot exists, the attempt fails with ``SlotError`` and is repeated.
        """
        result = await self._check(connection, SlotRequest())
        previous.position.require_same_source(result.position, "this pipeline")
        lsn = result.position.lsn
        ledger.restart(lsn)
        # A server after a failover may have other oids.
        self.types = Types()
        self._progress = CaptureProgress(lsn)
        self._same = SameStream(self.source, self._progress, (), raise_refuted)
        await self._start(connection, result, ledger)
        self._received = [Resync(lsn, self._lost, self._returned or None).slice()]
        return result


def _checked(until: Any) -> LSN | Literal["now"] | None:
    """Return ``until``.

    :raises ConfigurationError: ``until`` is neither ``"now"`` nor an LSN.
    """
    if until is None:
        return None
    if until == "now":
        return "now"
    if not isinstance(until, int) or isinstance(until, bool) or until < 0:
        given = repr(until) if isinstance(until, (str, int)) else shown(until)
        raise ConfigurationError(f'until is {given}, but must be "now" or an LSN: LSN.parse("0/171B2A8")')
    return LSN(until)
