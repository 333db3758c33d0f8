"""One connection, from START_REPLICATION to its end: frames in, slices out, and the ledger told of what they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiorepl.errors import ConnectionLost, ProtocolError, ServerNotice, SpoolError
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.source.catalog.lookups import TableLookups
from aiorepl.source.catalog.types import TypeWatch
from aiorepl.source.feedback.status_updates import StatusUpdates
from aiorepl.source.heartbeat import is_heartbeat
from aiorepl.source.ledger import Ledger
from aiorepl.source.preflight import PreflightResult
from aiorepl.source.source import Source
from aiorepl.transactions.assembler import Assembler, Resume
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.transaction import Slice, TwoPhase
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.frames import runs
from aiorepl.wire.interface import Connection, Restart
from aiorepl.wire.protocol import CopyFrame
from aiorepl.wire.server_errors import missing_publication

_log = logging.getLogger("aiorepl.session")

_IDLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TransactionBufferStatistics:
    """Transactions that are in progress or prepared, and so cannot be delivered yet.

    :param memory: their bytes in memory.
    :param spooled: their bytes on disk.
    """

    memory: int = 0
    spooled: int = 0


class Session:
    """Reads one START_REPLICATION.

    :param ledger: told what is received, asked what may be confirmed.
    :param resume: what of the stream is known already.
    :param tables: looks up tables that were described, before their rows are given out.
    :param until: stop before the first transaction that commits at or after this position.
    :param spool: the spool for transactions in progress that do not fit in memory; a new one by default.
    """

    def __init__(
        self,
        connection: Connection,
        source: Source,
        types: Types,
        ledger: Ledger,
        *,
        resume: Resume,
        tables: TableLookups | None = None,
        until: LSN | None = None,
        spool: Spool | None = None,
    ) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._types = types
        self._watch = TypeWatch(source)
        self._ledger = ledger
        self._until = until
        self._resume = resume
        self._spool = Spool(source.spill_dir) if spool is None else spool
        self._decoder: Decoder
        self._assembler: Assembler
        self._reporting: StatusUpdates
        self._ended = False
        self._idle_again_at = 0.0
        self._at = 0
        # How far this reading has come. The ledger may be further, where what is known is read again.
        self._end = resume.after
        self._failure: ProtocolError | SpoolError | None = None
        # Slices that wait for the types they need: a look-up that fails or is cancelled must not lose them.
        self._waiting: list[Slice] | None = None
        self._missing: set[int] = set()
        self._tables = tables
        self._described: set[int] = set()

    def _begin(self, resume: Resume) -> None:
        """Begin to decode anew, what is known of the stream being ``resume``."""
        source = self._source
        self._decoder = Decoder(source.options().streaming)
        self._assembler = Assembler(
            self._types,
            binary=source.binary,
            resume=resume,
            deliver_prepared=source.deliver_prepared,
            budget=source.transaction_buffer_bytes,
            spool=self._spool,
        )

    async def start(self, readied: PreflightResult) -> None:
        """START_REPLICATION, and the timer from then on.

        :raises SlotError, ConfigurationError, ServerError: when the server refuses.
        """
        begin = self._resume.after
        if readied.holds_prepared:
            # What is prepared and undecided has to come again, and lies before what is known.
            begin = min(begin, readied.position.lsn)
        # The SQL route knows no other beginning than the slot's.
        slot_at = readied.position.lsn
        begins = max(begin, slot_at) if isinstance(self._connection, ReplicationConnection) else slot_at
        self._resume = replace(self._resume, begins=begins)
        self._begin(self._resume)
        # Before the command, because a notice may arrive in the same read as the answer.
        self._connection.on_notice(self._noticed)
        await self._connection.start_replication(
            self._source.slot, begin, readied.plugin_options, confirmed=slot_at
        )
        self._reporting = StatusUpdates(
            self._connection, self._source, self._ledger, readied.wal_sender_timeout
        )

    async def receive(self) -> list[Slice] | None:
        """The slices that have arrived; ``None`` when everything below ``until`` has.

        :raises ProtocolError: naming message, field and LSN; what came before it was returned.
        :raises ServerError, ConnectionLost: the connection is of no use any more.

        A call that is cancelled consumes nothing: the next one returns what it would have returned.
        """
        if self._waiting is None:
            if self._ended:
                return None
            if self._failure is not None:
                raise self._failure
            frames = await self._connection.receive()
            if not frames:
                # A CopyDone from the server is an error, because the stream is not complete.
                raise ConnectionLost(
                    "the server ended the stream: it shuts down, or its walsender was told to"
                )
            self._waiting = self._take(frames)
            fresh = self._assembler.take_fresh()
            oids = {column.type_oid for relation in fresh for column in relation.columns}
            self._missing = set().union(*map(self._types.missing, oids))
            self._described = {relation.oid for relation in fresh}
        if self._missing:
            await self._look_up(self._missing)
            self._missing = set()
        if self._described and self._tables is not None:
            await self._tables.refresh(self._described)
            self._described = set()
        self._waiting = await self._watch.settle(self._assembler, self._waiting)
        self._types = self._assembler.layouts.types
        slices, self._waiting = self._waiting, None
        return slices

    @property
    def transaction_buffer(self) -> TransactionBufferStatistics:
        """The size of the transactions that cannot be delivered yet."""
        waiting = self._assembler.waiting
        return TransactionBufferStatistics(waiting.memory, waiting.spooled)

    def idle_seconds(self) -> float:
        """Seconds since the last sign of life."""
        return self._reporting.idle_seconds()

    async def stop(self) -> None:
        """Send the last status, exchange CopyDone, and close the connection; drop it if this is cancelled."""
        self._assembler.waiting.clear()
        try:
            await self._stop_tasks()
            self._reporting.report()
            await self._connection.stop()
            await self._connection.close()
        except BaseException:
            self._connection.abort()
            raise

    async def abandon(self) -> None:
        """Drop the connection, and the received data that cannot be delivered yet."""
        self._connection.abort()
        self._assembler.waiting.clear()
        await self._stop_tasks()

    def _take(self, frames: Sequence[CopyFrame | Restart]) -> list[Slice]:
        slices: list[Slice] = []
        try:
            for run in runs(frames):
                if isinstance(run, list):
                    slices += self._account(self._assembler.feed(self._decoder.messages(run)))
                    self._at = self._decoder.position
                elif isinstance(run, Restart):
                    self._reporting.report()
                    self._assembler.waiting.clear()
                    self._begin(Resume(self._end, begins=self._resume.begins))
                else:
                    self._at = run.wal_end
                    if not self._assembler.open:
                        slices += self._idle(LSN(run.wal_end))
        except ProtocolError as error:
            # What stands before the damage is good, and is delivered first.
            self._failure = error.at(self._decoder.position)
            return slices + self._account(self._assembler.rescue())
        except SpoolError as error:
            self._failure = error
            return slices + self._account(self._assembler.rescue())
        self._ledger.receive(self._at)
        return slices

    def _account(self, slices: list[Slice]) -> list[Slice]:
        """Tell the ledger what these end, and return those that bring something downstream."""
        downstream = []
        for part in slices:
            if self._beyond(part):
                downstream += self._finish()
                continue
            if part.two_phase is not None and not self._source.deliver_prepared:
                self._decide(part.two_phase)
            if part.end_lsn is not None:
                self._ended_at(part.end_lsn)
                if self._source.heartbeat_interval and is_heartbeat(part):
                    downstream.append(Slice(None, (), True, part.end_lsn, 0))
                    continue
            if part.changes or part.end_lsn is not None:
                downstream.append(part)
        return downstream

    def _decide(self, message: TwoPhase) -> None:
        """A prepared transaction has nobody but us until it ends: hold the confirmation that long."""
        if isinstance(message, (m.Prepare, m.StreamPrepare)):
            self._ledger.hold(message.gid, LSN(message.end_lsn))
        elif isinstance(message, m.CommitPrepared):
            self._ledger.release(message.gid, LSN(message.end_lsn))
        else:
            self._ledger.release(message.gid, LSN(message.rollback_end_lsn))

    def _idle(self, wal_end: LSN) -> list[Slice]:
        if self._until is not None and wal_end >= self._until:
            return self._finish()
        if wal_end <= self._end:
            return []
        # A busy server sends one after every transaction; what is left out is made good by the next, which comes
        # at the latest in answer to our status.
        now = self._loop.time()
        if now < self._idle_again_at:
            self._reporting.wants_keepalive = True
            return []
        self._idle_again_at = now + _IDLE_SECONDS
        self._reporting.wants_keepalive = False
        return self._nothing_until(wal_end)

    def _finish(self) -> list[Slice]:
        """All that committed below ``until`` was sent: the end, and nothing more between here and there."""
        assert self._until is not None
        self._ended = True
        return self._nothing_until(self._until) if self._until > self._end else []

    def _nothing_until(self, lsn: LSN) -> list[Slice]:
        self._ended_at(lsn)
        return [Slice(None, (), True, lsn, 0)]

    def _ended_at(self, lsn: LSN) -> None:
        self._end = max(self._end, lsn)
        self._ledger.complete(lsn)

    def _beyond(self, part: Slice) -> bool:
        if self._until is None:
            return False
        if part.transaction is None or isinstance(part.two_phase, m.RollbackPrepared):
            # Where such a record begins is not told. What ends by then has begun before.
            return part.end_lsn is not None and part.end_lsn > self._until
        return part.transaction.commit_lsn >= self._until

    async def _look_up(self, oids: set[int]) -> None:
        for info in await self._source.look_up(oids):
            self._types.add(info)
        # A type dropped since is not asked for again: its values stay text.
        for oid in oids:
            if self._types.missing(oid):
                self._types.add(TypeInfo(oid, "", str(oid), "p"))

    @staticmethod
    def _noticed(notice: ServerNotice) -> None:
        """Stop at a publication that is missing.

        :raises ConfigurationError: the server passes over changes because of it, as it does from PostgreSQL 18 on.
        """
        if notice.routine == "LoadPublications":
            raise missing_publication(notice.message or "a publication is missing")

    async def _stop_tasks(self) -> None:
        self._watch.close()
        await asyncio.gather(self._reporting.stop(), return_exceptions=True)
