"""Assembles messages into slices of transactions, in commit order.

``feed`` takes all messages of a read at once, so that the cost of a hand-over is paid per read and not per row. A plain
transaction passes through; streamed and prepared transactions are kept in ``InProgress``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aiorepl.errors import ProtocolError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.transactions import changes as c
from aiorepl.transactions.changes import row_change
from aiorepl.transactions.control_messages import PUBLICATION, is_control, without_content
from aiorepl.transactions.in_progress import InProgress
from aiorepl.transactions.pending import OVERHEAD, SLICE_BYTES, DoubtfulMessages, Pending
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.row_counts import MOST_KEPT, RowCounts
from aiorepl.transactions.rows import Layouts
from aiorepl.transactions.slices import Slice, TwoPhase
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.states import TRANSITIONS, AssemblerState, guard
from aiorepl.transactions.trace import TraceContext, traced
from aiorepl.transactions.transaction import SnapshotChunk, Transaction
from aiorepl.values.registry import Types

_log = logger("aiorepl.snapshot")

# A C number in the compiled form.
_OVERHEAD = OVERHEAD
TRANSACTION_BUFFER_BYTES: Final = 64 * 1024 * 1024


class Assembler:
    """Assembles the transactions of one connection.

    :param types: how to read the columns.
    :param binary: whether rows may hold columns in binary form.
    :param resume: drops changes that an earlier connection has received; it is not changed.
    :param part_xid: the transaction that was received in part, if the caller sets ``received`` for its changes. Received changes
        then get no ordinals, and the first new change has the ordinal that ``resume`` names. Otherwise ``resume`` drops received
        changes by their ordinals.
    :param begins: where the server begins to send; ``resume.after`` by default.
    :param deliver_prepared: deliver prepared transactions at their PREPARE, and their outcome later; otherwise they are
        delivered when they commit, and never if they roll back.
    :param messages: deliver users' logical messages; otherwise only watermarks and signals are delivered, and users' messages get
        no ordinal.
    :param budget: bytes in memory for all transactions in progress.
    :param spool: the spool for content that does not fit in memory; a new one by default.
    :param slice_bytes: the approximate size of a slice, and of a chunk in the spool.
    :param chunks: by commit LSN, the chunks of snapshots that plain transactions are; none for transactions of a server.
    :param counts: counts the rows as they are received; new ones by default.
    """

    def __init__(
        self,
        types: Types,
        *,
        binary: bool = False,
        resume: ReplayFilter | None = None,
        part_xid: int | None = None,
        begins: LSN | None = None,
        deliver_prepared: bool = False,
        messages: bool = True,
        budget: int = TRANSACTION_BUFFER_BYTES,
        spool: Spool | None = None,
        slice_bytes: int = SLICE_BYTES,
        chunks: Mapping[LSN, SnapshotChunk] | None = None,
        counts: RowCounts | None = None,
    ) -> None:
        self.in_progress = InProgress(budget, Spool() if spool is None else spool, slice_bytes)
        self._slice_bytes = slice_bytes
        self.received = False
        """Whether an earlier connection has received the changes that are fed now."""
        self.unknown_prepared = 0
        """The number of outcomes without a PREPARE. PostgreSQL 15 and 16 send outcomes of empty prepared transactions."""
        self._resume = ReplayFilter() if resume is None else resume
        self._part_xid = part_xid
        self._begins = self._resume.after if begins is None else begins
        self._deliver_prepared = deliver_prepared
        self.chunks = chunks
        """As the parameter; a reader replaces it between two parts of a segment."""
        self._user_messages = messages
        self._counts = RowCounts() if counts is None else counts
        self._state = AssemblerState.BETWEEN
        self.layouts = Layouts(types, binary=binary)
        self._relations: list[tuple[Relation, int]] = []
        self._slices: list[Slice] = []
        # The plain transaction that is being received.
        self._begin: m.Begin | None = None
        self._transaction: Transaction | None = None
        self._origin: str | None = None
        self._trace: TraceContext | None = None
        self._changes: list[c.Change] = []
        self._size = 0
        self._ordinal = 0
        self._known = 0
        self._first = True
        self._skip = False
        # The transaction of the open stream block, or between Begin Prepare and Prepare.
        self._pending: Pending | None = None
        self._preparing: m.BeginPrepare | None = None
        # The transactions in progress with a message of the event trigger.
        self._altering: set[int] = set()
        # By transaction in progress, table and subtransaction of its last truncates.
        self._truncated: dict[int, deque[tuple[int, int]]] = {}
        self._handlers = self._handler_table()

    def _handler_table(self) -> dict[type, Callable[[Any], None]]:
        return {
            m.Begin: self._enter,
            m.Commit: self._commit,
            m.Origin: self._set_origin,
            m.Truncate: self._truncate,
            m.Message: self._message,
            Relation: self._describe_relation,
            Type: self._describe,
            m.StreamStart: self._enter_block,
            m.StreamStop: self._leave_block,
            m.StreamCommit: self._stream_commit,
            m.StreamAbort: self._stream_abort,
            m.BeginPrepare: self._begin_prepare,
            m.Prepare: self._prepare,
            m.StreamPrepare: self._stream_prepare,
            m.CommitPrepared: self._commit_prepared,
            m.RollbackPrepared: self._rollback_prepared,
        }

    @property
    def open(self) -> bool:
        """Whether the stream is within a transaction or a stream block."""
        return self._state is not AssemblerState.BETWEEN

    @property
    def begun(self) -> m.Begin | None:
        """The plain transaction that is being received; ``None`` between transactions, and while a whole transaction is dropped."""
        return None if self._skip else self._begin

    def retype(self, types: Types, *, binary: bool | None = None) -> Layouts:
        """Read rows by these types from now on, also the rows of transactions in progress.

        :param binary: whether rows may hold columns in binary form; ``None``: as before.
        :returns: the layouts until now, which delivered slices keep.
        """
        before = self.layouts
        self.layouts = Layouts(types, binary=before.binary if binary is None else binary)
        return before

    def take_relations(self) -> list[tuple[Relation, int]]:
        """Return the relations described since the last call, with the xids of the transactions that they precede rows of."""
        relations, self._relations = self._relations, []
        return relations

    def feed(self, messages: Iterable[m.AnyMessage]) -> list[Slice]:
        """Take the next messages and return what can be delivered now.

        :raises ProtocolError: a message is out of order; ``take_slices`` returns the slices before it.
        :raises SpoolError: the transactions in progress fit neither memory nor disk.
        :raises DoubtfulMessages: a streamed transaction must be received again without streaming.
        """
        self.layouts.refresh()
        legal = TRANSITIONS[self._state]
        relation: Any = None
        count: Any = None
        for message in messages:
            kind = type(message)
            next_state = legal.get(kind)
            if next_state is None:
                raise ProtocolError(guard(self._state, kind), message=_NAMES.get(kind, kind.__name__))
            if isinstance(message, RowMessage):
                row = message  # typed for the compiled form
                if row.relation is not relation:
                    relation = row.relation
                    count = self._counts.of(relation)
                count.add(row)
                if self._pending is None:
                    if self._transaction is None:
                        self._open()
                    layout = self.layouts.of(row.relation)
                    self._changes.append(row_change(self._transaction, self._ordinal, layout, row))
                    self._ordinal += 1
                    self._size += len(row.payload) + _OVERHEAD
                    if layout.binary:
                        expansion = layout.expansion(row)
                        if expansion:
                            # The text of a few bytes can be large, so do not wait for the end of the read.
                            self._size += expansion
                            if self._size >= self._slice_bytes:
                                self._emit(None)
                else:
                    self._content(row)
                continue
            handle = self._handlers.get(kind)
            if handle is not None:
                handle(message)
            if next_state is not self._state:
                self._state = next_state
                legal = TRANSITIONS[next_state]
        return self.take_slices()

    def take_slices(self) -> list[Slice]:
        """Return the complete slices; after an error, the slices before the message that failed."""
        self._emit(None)
        slices, self._slices = self._slices, []
        return slices

    # A plain transaction.

    def _enter(self, begin: m.Begin) -> None:
        self._begin = begin
        self._transaction = None
        self._origin = None
        self._trace = None
        known = self._resume.known(begin.final_lsn)
        self._skip, self._known = known is None, known or 0
        self._ordinal = self._known if begin.xid == self._part_xid else 0
        self._first = self._known == 0

    def _open(self) -> Transaction:
        if self._transaction is None:
            begin = self._begin
            assert begin is not None  # TRANSITIONS allows content only after Begin
            commit_lsn = LSN(begin.final_lsn)
            self._transaction = Transaction(
                begin.xid,
                commit_lsn,
                begin.commit_time,
                self._origin,
                snapshot=None if self.chunks is None else self.chunks.get(commit_lsn),
                trace=self._trace,
            )
        return self._transaction

    def _content(self, message: c.Content) -> None:
        if self._pending is not None:
            if not self.received:
                self.in_progress.add(self._pending, message)
            return
        self._changes.append(c.change_of(self._open(), self._ordinal, message, self.layouts))
        self._ordinal += 1
        self._size += len(message.payload) + _OVERHEAD

    def _message(self, message: m.Message) -> None:
        if not message.transactional:
            self._emit(None)
            wanted = is_control(message) or (self._user_messages and message.prefix != PUBLICATION)
            if wanted and message.lsn > self._resume.after:
                change = c.Message(None, 0, message)
                size = len(message.payload) + _OVERHEAD
                self._slices.append(Slice(None, (change,), True, LSN(message.lsn), size))
        elif self._state is AssemblerState.BETWEEN:
            raise ProtocolError("transactional, but outside of a transaction", message="Message")
        else:
            if message.prefix == PUBLICATION:
                self._altering.add(self._xid())
                return
            emptied = without_content(message)
            if emptied is not None:
                _log.warning(
                    "the transactional message %s at %s is ignored, and its content is not delivered: write it again with "
                    "transactional = false, the first argument of pg_logical_emit_message",
                    message.prefix,
                    LSN(message.lsn),
                )
                message = emptied
            self._take_trace(message)
            if self._user_messages:
                if self._pending is not None:
                    self._pending.messages = True
                self._content(message)

    def _take_trace(self, message: m.Message) -> None:
        pending = self._pending
        if pending is not None:
            pending.trace = traced(pending.trace, message.prefix, message.content)
            return
        trace = traced(self._trace, message.prefix, message.content)
        if trace != self._trace:
            # Changes that follow get a new header.
            self._emit(None)
            self._trace = trace
            self._transaction = None

    def _set_origin(self, origin: m.Origin) -> None:
        if self._pending is not None:
            self._pending.origin = origin.name
            return
        # The protocol allows several origins in a transaction; later changes have the new one.
        self._emit(None)
        self._origin = origin.name
        self._transaction = None

    def _commit(self, commit: m.Commit) -> None:
        transaction = self._open()
        if commit.commit_lsn != transaction.commit_lsn:
            raise ProtocolError(
                f"is {LSN(commit.commit_lsn)}, but Begin announced {transaction.commit_lsn}",
                message="Commit",
                field="commit LSN",
            )
        self._emit(LSN(commit.end_lsn))
        self._committed(transaction.xid, transaction.commit_lsn)
        if self._ordinal and not self._skip:
            self._counts.transactions.observe(self._ordinal)
        self._begin = self._transaction = None

    def _emit(self, end_lsn: LSN | None) -> None:
        changes = self._changes
        if self.received:
            self._ordinal -= len(changes)
            changes, self._size = [], 0
            self._changes = changes
        if not changes and end_lsn is None:
            return
        if not self._skip:
            if self._known:
                changes = [change for change in changes if change.ordinal >= self._known]
            if changes or end_lsn is not None:
                self._slices.append(Slice(self._open(), changes, self._first, end_lsn, self._size))
                self._first = False
        self._changes, self._size = [], 0

    # Transactions in progress, and prepared ones.

    def _enter_block(self, message: m.StreamStart) -> None:
        self._pending = self.in_progress.stream_start(message)
        if message.first_segment and message.xid == self._part_xid:
            self._pending.begin_at(self._resume.ordinal)

    def _leave_block(self, _: m.StreamStop) -> None:
        self._pending = None

    def _stream_commit(self, message: m.StreamCommit) -> None:
        pending = self._take_stream(message, "Stream Commit")
        transaction = Transaction(
            message.xid, LSN(message.commit_lsn), message.commit_time, pending.origin, trace=pending.trace
        )
        self._committed(message.xid, transaction.commit_lsn)
        self._deliver(transaction, pending, LSN(message.end_lsn))

    def _stream_abort(self, message: m.StreamAbort) -> None:
        if message.subxid == message.xid:
            self._forget(message.xid)
        elif (truncated := self._truncated.get(message.xid)) is not None:
            kept = [each for each in truncated if each[1] != message.subxid]
            truncated.clear()
            truncated.extend(kept)
        self.in_progress.stream_abort(message)

    def _begin_prepare(self, message: m.BeginPrepare) -> None:
        self._preparing = message
        self._pending = self.in_progress.begin_prepare(message)

    def _prepare(self, message: m.Prepare) -> None:
        begun, pending = self._preparing, self.in_progress.take_preparing()
        self._preparing = self._pending = None
        if begun is not None and (begun.gid, begun.xid, begun.prepare_lsn) != (
            message.gid,
            message.xid,
            message.prepare_lsn,
        ):
            raise ProtocolError("differs from its Begin Prepare", message="Prepare", field="gid")
        self._prepared(message, self.in_progress.empty(message.xid) if pending is None else pending)

    def _stream_prepare(self, message: m.StreamPrepare) -> None:
        self._prepared(message, self._take_stream(message, "Stream Prepare"))

    def _take_stream(self, message: m.StreamCommit | m.StreamPrepare, name: str) -> Pending:
        pending = self.in_progress.take_stream(message.xid, name)
        if pending.doubtful:
            raise DoubtfulMessages(
                f"transaction {message.xid} has logical messages and rolled-back savepoints: while it is streamed, the server does not "
                'tell which messages were rolled back. It is received again without streaming; use streaming="off" with messages'
            )
        return pending

    def _prepared(self, message: m.Prepare | m.StreamPrepare, pending: Pending) -> None:
        if self._deliver_prepared and not self._late(message.prepare_lsn):
            header = Transaction(
                message.xid,
                LSN(message.prepare_lsn),
                message.prepare_time,
                pending.origin,
                gid=message.gid,
                prepared=True,
                trace=pending.trace,
            )
            self._deliver(header, pending, LSN(message.end_lsn), message)
            return
        self.in_progress.prepare(message, pending)
        self._two_phase_step(None, message)

    def _late(self, prepare_lsn: int) -> bool:
        """Whether a transaction was prepared before the slot had two-phase commit.

        The server sends such a transaction at its COMMIT PREPARED, and it is delivered then. See ``ReorderBufferFinishPrepared``
        and ``two_phase_at`` in PostgreSQL.
        """
        return prepare_lsn < self._begins

    def _commit_prepared(self, message: m.CommitPrepared) -> None:
        pending = self.in_progress.take_prepared(message)
        delivered = self._deliver_prepared and pending is None
        if pending is None:
            if not delivered:
                self.unknown_prepared += 1
            pending = self.in_progress.empty(message.xid)
        header = Transaction(
            message.xid,
            LSN(message.commit_lsn),
            message.commit_time,
            pending.origin,
            gid=message.gid,
            prepared=delivered,
            trace=pending.trace,
        )
        self._committed(message.xid, header.commit_lsn)
        self._deliver(header, pending, LSN(message.end_lsn), message)

    def _rollback_prepared(self, message: m.RollbackPrepared) -> None:
        self._forget(message.xid)
        end_lsn = LSN(message.rollback_end_lsn)
        if end_lsn <= self._resume.after:
            self.in_progress.take_prepared(message)
            self._two_phase_step(None, message)
            return
        if self._deliver_prepared:
            header = Transaction(message.xid, end_lsn, message.rollback_time, gid=message.gid, prepared=True)
            self._deliver(header, self.in_progress.empty(message.xid), end_lsn, message)
            return
        if self.in_progress.take_prepared(message) is None:
            self.unknown_prepared += 1
        self._two_phase_step(end_lsn, message)

    def _deliver(
        self, transaction: Transaction, pending: Pending, end_lsn: LSN, two_phase: TwoPhase | None = None
    ) -> None:
        known = self._resume.known(transaction.commit_lsn)
        if known is None:
            if two_phase is not None:
                self._two_phase_step(None, two_phase)
            return
        if len(pending):
            # The outcome of a delivered prepared transaction has no changes.
            self._counts.transactions.observe(len(pending))
        first = known == 0
        # The assembler holds one slice back, because only the last slice has the end LSN.
        held: Slice | None = None
        for changes, size in pending.slices(transaction, self.layouts, known=known):
            if held is not None:
                self._slices.append(held)
            held = Slice(transaction, changes, first, None, size)
            first = False
        changes, size = (held.changes, held.size) if held is not None else ((), 0)
        first = first if held is None else held.first
        self._slices.append(Slice(transaction, changes, first, end_lsn, size, two_phase))

    def _two_phase_step(self, end_lsn: LSN | None, two_phase: TwoPhase) -> None:
        """Emit a step of two-phase commit that delivers no changes."""
        self._slices.append(Slice(None, (), True, end_lsn, 0, two_phase))

    def _truncate(self, message: m.Truncate) -> None:
        xid = self._xid()
        truncated = self._truncated.get(xid)
        if truncated is None:
            truncated = self._truncated[xid] = deque(maxlen=MOST_KEPT)
        # In a stream, a message has the xid of its subtransaction, as the catalog has.
        truncated.extend([(relation.oid, message.xid or xid) for relation in message.relations])
        self._content(message)

    def _committed(self, xid: int, commit_lsn: LSN) -> None:
        truncated = self._truncated.pop(xid, None)
        if truncated is not None:
            self._counts.truncated(truncated, xid, commit_lsn)
        if xid in self._altering:
            self._altering.remove(xid)
            self._counts.committed(xid, commit_lsn)

    def _forget(self, xid: int) -> None:
        self._altering.discard(xid)
        self._truncated.pop(xid, None)

    def _xid(self) -> int:
        begin = self._begin
        return self._pending.xid if self._pending is not None else begin.xid if begin is not None else 0

    def _describe_relation(self, relation: Relation) -> None:
        self._counts.described()
        self._relations.append((relation, self._xid()))
        self._describe(relation)

    def _describe(self, described: Relation | Type) -> None:
        if self._pending is not None:
            self.in_progress.describe(self._pending, described)


_NAMES: Final[dict[type, str]] = {
    m.StreamStart: "Stream Start",
    m.StreamStop: "Stream Stop",
    m.StreamCommit: "Stream Commit",
    m.StreamAbort: "Stream Abort",
    m.BeginPrepare: "Begin Prepare",
    m.CommitPrepared: "Commit Prepared",
    m.RollbackPrepared: "Rollback Prepared",
    m.StreamPrepare: "Stream Prepare",
}
