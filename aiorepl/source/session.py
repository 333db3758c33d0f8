"""One connection, from START_REPLICATION to its end: frames in, slices out. Received positions go to the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiorepl.errors import ConnectionLost, ProtocolError, ServerError, ServerNotice, SpoolError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.message_order import MessageOrder
from aiorepl.pgoutput.received_part import ReceivedPart, Resumption, received_part
from aiorepl.pgoutput.relations import Relation
from aiorepl.source.catalog.lookups import ColumnLookups
from aiorepl.source.catalog.table_lookups import TableLookups
from aiorepl.source.catalog.types import TypeWatch
from aiorepl.source.feedback.patience import Patience
from aiorepl.source.feedback.status_updates import StatusUpdates
from aiorepl.source.heartbeat import is_heartbeat
from aiorepl.source.ledger import Ledger
from aiorepl.source.preflight import PreflightResult
from aiorepl.source.server.binary import require_no_money, with_columns
from aiorepl.source.source import Source
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.pending import DoubtfulMessages
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.row_counts import RowCounts
from aiorepl.transactions.slices import Slice, TwoPhase
from aiorepl.transactions.spool import Spool
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.frames import Received, XLogData
from aiorepl.wire.interface import Connection, Restart
from aiorepl.wire.server_errors import missing_publication

_log = logger("aiorepl.session")

# A busy server sends a keepalive after every transaction. Only one keepalive per interval becomes a slice.
_IDLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TransactionBufferStatistics:
    """Transactions that are in progress or prepared, and so cannot be delivered yet.

    :param memory: bytes of these transactions in memory.
    :param spooled: bytes of these transactions on disk.
    """

    memory: int = 0
    spooled: int = 0


class Session:
    """Reads one START_REPLICATION.

    :param types: the known types; types that are looked up are added.
    :param ledger: records what is received, and has the LSN to confirm.
    :param resume: filters out the part of the stream that was received before.
    :param part: the received part of the transaction that ``resume`` names; ``None`` without such a transaction.
    :param tables: look-ups of described tables, made before their rows are returned; ``None`` if no sink needs them.
    :param columns: look-ups of described columns, made before their rows are returned; ``None`` if nothing needs them.
    :param until: stop before the first transaction that commits at or after this LSN.
    :param spool: the spool for transactions in progress that do not fit in memory; a new one by default.
    :param counts: counts the received rows of each table; new ones by default.
    :param patience: limits the wait for a silent server, across connections; by default, a new limit.
    """

    def __init__(
        self,
        connection: Connection,
        source: Source,
        types: Types,
        ledger: Ledger,
        *,
        resume: ReplayFilter,
        part: ReceivedPart | None = None,
        tables: TableLookups | None = None,
        columns: ColumnLookups | None = None,
        until: LSN | None = None,
        spool: Spool | None = None,
        counts: RowCounts | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._types = types
        self._type_watch = TypeWatch(source)
        self._tables = tables
        self._columns = columns
        self._ledger = ledger
        self._until = until
        self._resume = resume
        # Where the server begins to send.
        self._begins = resume.after
        self._spool = Spool(source.spill_dir) if spool is None else spool
        self._counts = RowCounts() if counts is None else counts
        self._patience = Patience() if patience is None else patience
        # Set by ``start``, once the beginning of the stream is known.
        self._decoder: Decoder
        self._message_order: MessageOrder | None = None
        self._resumption = None if part is None else Resumption(part)
        self._part = part
        self._assembler: Assembler
        self._status_updates: StatusUpdates
        self._finished = False
        self._failure: ProtocolError | SpoolError | DoubtfulMessages | None = None
        self._next_idle_at = 0.0
        self._received = 0
        # The end LSN on this connection. The ledger's end LSN may be later while the server sends known transactions again.
        self._end = resume.after
        # Assembled slices whose types and tables are not looked up yet; a failed or cancelled look-up must not lose them.
        self._assembled: list[Slice] | None = None
        self._missing_types: set[int] = set()
        self._described: list[tuple[Relation, int]] = []
        self._cents = True
        self._deliver_prepared = False

    async def start(self, result: PreflightResult) -> None:
        """Send START_REPLICATION and start the status updates.

        :raises SlotError, ConfigurationError, ServerError: the server refuses.
        """
        self._cents = result.cents
        self._deliver_prepared = result.deliver_prepared
        start_lsn = self._resume.after
        slot_lsn = result.position.lsn
        if result.holds_prepared:
            # Undecided prepared transactions must be sent again; they may begin before the resume position.
            start_lsn = min(start_lsn, slot_lsn)
        # SQL functions always begin at the slot's own position.
        walsender = isinstance(self._connection, ReplicationConnection)
        self._begins = max(start_lsn, slot_lsn) if walsender else slot_lsn
        self._start_assembler(self._resume)
        # Set the callback before the command, because a notice may arrive in the same read as the reply.
        self._connection.on_notice(self._on_notice)
        await self._connection.start_replication(
            self._source.slot, start_lsn, result.plugin_options, confirmed=slot_lsn
        )
        self._status_updates = StatusUpdates(
            self._connection, self._source, self._ledger, result.wal_sender_timeout, self._patience
        )

    async def receive(self) -> list[Slice] | None:
        """Return the slices that have arrived; ``None`` once everything before ``until`` was returned.

        A cancelled call consumes nothing: the next call returns the slices that the cancelled call would have returned.

        :raises ProtocolError: names message, field and LSN; everything before it was returned.
        :raises SpoolError: the spool cannot be written.
        :raises ConfigurationError: the server cannot send a column in binary form, or its binary form cannot be read.
        :raises ServerError, ConnectionLost: the connection cannot be used any more.
        """
        if self._assembled is None:
            if self._finished:
                return None
            if self._failure is not None:
                raise self._failure
            try:
                received = await self._connection.receive()
            except ServerError as error:
                raise await with_columns(self._source, error) from None
            if not received:
                # CopyDone from the server is an error, because the stream is not complete.
                raise ConnectionLost(
                    "the server ended the stream: it is shutting down, or its walsender was terminated"
                )
            self._assembled = self._assemble(received)
            self._described = self._assembler.take_relations()
            type_oids = {column.type_oid for relation, _ in self._described for column in relation.columns}
            self._missing_types = set().union(*map(self._types.missing, type_oids))
        if self._missing_types:
            await self._look_up_types(self._missing_types)
            self._missing_types = set()
        if self._described:
            if not self._cents:
                require_no_money((relation for relation, _ in self._described), self._types)
            if self._columns is not None:
                await self._columns.describe(self._described)
            if self._tables is not None:
                # After the look-up of columns: a table that was dropped before that look-up is missing in both.
                await self._tables.refresh(self._described)
            self._described = []
        self._assembled = await self._type_watch.settle(self._assembler, self._assembled)
        self._types = self._assembler.layouts.types
        slices, self._assembled = self._assembled, None
        return slices

    @property
    def received_part(self) -> ReceivedPart | None:
        """The received part of the plain transaction within which the returned slices end. If they end between transactions, this
        is ``None`` or the part of another transaction.
        """
        return self._part

    @property
    def transaction_buffer(self) -> TransactionBufferStatistics:
        """The size of the transactions that cannot be delivered yet."""
        in_progress = self._assembler.in_progress
        return TransactionBufferStatistics(in_progress.memory, in_progress.spooled)

    def idle_seconds(self) -> float:
        """Seconds since the server has sent something."""
        return self._status_updates.idle_seconds()

    async def stop(self) -> None:
        """Send the last status, exchange CopyDone, and close the connection. A cancelled call drops the connection.

        :raises ServerError, ConnectionLost: the stream did not end in order.
        """
        self._assembler.in_progress.clear()
        try:
            await self._stop_tasks()
            self._status_updates.report()
            await self._connection.stop()
            await self._connection.close()
        except BaseException:
            self._connection.abort()
            raise

    async def abandon(self) -> None:
        """Drop the connection, and the received data that cannot be delivered yet."""
        self._connection.abort()
        self._assembler.in_progress.clear()
        await self._stop_tasks()

    def _start_assembler(self, resume: ReplayFilter) -> None:
        source = self._source
        self._decoder = Decoder(source.options().streaming)
        self._message_order = MessageOrder() if source.messages else None
        self._assembler = Assembler(
            self._types,
            binary=source.binary,
            resume=resume,
            part_xid=None if self._part is None else self._part.xid,
            begins=self._begins,
            deliver_prepared=self._deliver_prepared,
            messages=source.messages,
            budget=source.transaction_buffer_bytes,
            spool=self._spool,
            counts=self._counts,
        )

    def _assemble(self, received: Sequence[Received | Restart]) -> list[Slice]:
        slices: list[Slice] = []
        try:
            for item in received:
                if isinstance(item, list):
                    frames = item if self._message_order is None else self._message_order.feed(item)
                    slices += self._feed(frames)
                    self._received = self._decoder.position
                elif isinstance(item, Restart):
                    self._status_updates.report()
                    self._assembler.in_progress.clear()
                    self._start_assembler(ReplayFilter(self._end))
                else:
                    self._received = item.wal_end
                    if not self._assembler.open:
                        slices += self._keepalive(LSN(item.wal_end))
                if self._failure is not None:
                    return slices
        except ProtocolError as error:
            # The slices before the invalid message are delivered first.
            self._failure = error.at(self._decoder.position)
            return slices + self._record(self._assembler.take_slices())
        except (SpoolError, DoubtfulMessages) as error:
            self._failure = error
            return slices + self._record(self._assembler.take_slices())
        self._ledger.receive(self._received)
        return slices

    def _feed(self, frames: Sequence[XLogData]) -> list[Slice]:
        resumption, assembler = self._resumption, self._assembler
        slices: list[Slice] = []
        new: Sequence[XLogData] = ()
        runs = [(False, frames)] if resumption is None or resumption.done else resumption.runs(frames)
        for received, run in runs:
            assembler.received = received
            slices += self._record(assembler.feed(self._decoder.messages(run)))
            if self._failure is not None:
                return slices
            if not received:
                new = [*new, *run] if new else run
        assembler.received = False
        if new and (begun := assembler.begun) is not None:
            self._part = received_part(begun.xid, begun.final_lsn, new, self._part)
        return slices

    def _record(self, slices: list[Slice]) -> list[Slice]:
        """Record in the ledger which LSNs these slices complete, and return the slices to deliver.

        If a slice ends at or before an LSN that was already received, it and all later slices are dropped, and ``receive`` raises
        an error once the earlier ones are returned.
        """
        delivered = []
        for part in slices:
            if self._is_past_until(part):
                delivered += self._finish()
                continue
            if part.two_phase is not None and not self._deliver_prepared:
                self._hold_or_release(part.two_phase)
            if part.end_lsn is not None:
                if part.end_lsn < self._end or (part.transaction is not None and part.end_lsn == self._end):
                    # The sinks would mistake such a slice for a transaction that they already have.
                    self._failure = ProtocolError(
                        f"the stream ran backwards: a transaction ends at {part.end_lsn}, but everything up to {self._end} "
                        "was already sent",
                        lsn=self._decoder.position,
                    )
                    break
                self._complete(part.end_lsn)
                if self._source.heartbeat_interval and is_heartbeat(part):
                    delivered.append(Slice(None, (), True, part.end_lsn, 0))
                    continue
            if part.changes or part.end_lsn is not None:
                delivered.append(part)
        return delivered

    def _hold_or_release(self, message: TwoPhase) -> None:
        """Hold the confirmation while a prepared transaction is only in this process."""
        if isinstance(message, (m.Prepare, m.StreamPrepare)):
            self._ledger.hold(message.gid, LSN(message.end_lsn))
        elif isinstance(message, m.CommitPrepared):
            self._ledger.release(message.gid, LSN(message.end_lsn))
        else:
            self._ledger.release(message.gid, LSN(message.rollback_end_lsn))

    def _keepalive(self, wal_end: LSN) -> list[Slice]:
        if self._until is not None and wal_end >= self._until:
            return self._finish()
        if wal_end <= self._end:
            return []
        now = self._loop.time()
        if now < self._next_idle_at:
            # Drop this keepalive. A later keepalive covers its LSN, at the latest the reply to the next status.
            self._status_updates.wants_keepalive = True
            return []
        self._next_idle_at = now + _IDLE_SECONDS
        self._status_updates.wants_keepalive = False
        return self._empty_slice(wal_end)

    def _finish(self) -> list[Slice]:
        """End the stream at ``until``: everything that committed before it was received."""
        assert self._until is not None
        self._finished = True
        return self._empty_slice(self._until) if self._until > self._end else []

    def _empty_slice(self, lsn: LSN) -> list[Slice]:
        self._complete(lsn)
        return [Slice(None, (), True, lsn, 0)]

    def _complete(self, lsn: LSN) -> None:
        self._end = max(self._end, lsn)
        self._ledger.complete(lsn)

    def _is_past_until(self, part: Slice) -> bool:
        if self._until is None:
            return False
        if part.transaction is None or isinstance(part.two_phase, m.RollbackPrepared):
            # The message does not have the LSN where the record begins, so its end decides.
            return part.end_lsn is not None and part.end_lsn > self._until
        return part.transaction.commit_lsn >= self._until

    async def _look_up_types(self, oids: set[int]) -> None:
        for info in await self._source.look_up(oids):
            self._types.add(info)
        # Do not look up again a type that has been dropped: its values stay text.
        for oid in oids:
            if self._types.missing(oid):
                self._types.add(TypeInfo(oid, "", str(oid), "p"))

    @staticmethod
    def _on_notice(notice: ServerNotice) -> None:
        """Stop if a publication is missing.

        :raises ConfigurationError: the server skips changes because of it, as PostgreSQL 18 and later do.
        """
        if notice.routine == "LoadPublications":
            raise missing_publication(notice.message or "a publication is missing")

    async def _stop_tasks(self) -> None:
        self._type_watch.close()
        await asyncio.gather(self._status_updates.stop(), return_exceptions=True)
