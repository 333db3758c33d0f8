"""Messages in, slices of transactions out, in commit order.

Fed with all messages of a read at once and gives back what they complete, so that the cost of a hand-over is paid
for a read and not for a row. Holds at most the changes of that one read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.errors import ProtocolError
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.transactions import changes as c
from aiorepl.transactions.states import TRANSITIONS, State, guard
from aiorepl.transactions.transaction import Slice, Transaction
from aiorepl.values.registry import Types

_ROWS: dict[type, type[c.RowChange]] = {m.Insert: c.Insert, m.Update: c.Update, m.Delete: c.Delete}


@dataclass(frozen=True, slots=True)
class Resume:
    """What a consumer has of a stream that is about to be sent again.

    :param after: an end LSN; transactions that ended at or before it are known whole.
    :param commit_lsn: the one transaction that was under way when the stream broke off, ``None`` without one.
    :param ordinals: how many changes of it are known. They come again the same: a change's identity is for good.
    """

    after: LSN
    commit_lsn: LSN | None = None
    ordinals: int = 0


NOTHING: Final = Resume(LSN(0))
# What a change costs in memory beside its message's bytes: the message, the change, their places in lists.
_OVERHEAD: Final = 400


class Assembler:
    """Assembles the transactions of one connection.

    :param types: how to read the columns.
    :param binary: whether rows may hold columns in binary form.
    :param resume: what was delivered earlier and is dropped when it comes again.
    """

    def __init__(self, types: Types, *, binary: bool = False, resume: Resume = NOTHING) -> None:
        self.types = types
        self.binary = binary
        self._resume = resume
        self._state = State.BETWEEN
        self._layouts: dict[int, c.Layout] = {}
        self._fresh: list[Relation] = []
        self._begin: m.Begin | None = None
        self._transaction: Transaction | None = None
        self._origin: str | None = None
        self._ordinal = 0
        self._first = True
        self._skip = False
        self._known = 0

    @property
    def open(self) -> bool:
        """Whether a transaction has begun that has not ended: what came of it so far is not whole."""
        return self._state is not State.BETWEEN

    def take_fresh(self) -> list[Relation]:
        """The relations described since the last call, for whoever has to look up their types."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def feed(self, messages: Iterable[m.AnyMessage]) -> list[Slice]:
        """Take the next messages and return what can be delivered now.

        :raises ProtocolError: when their order makes no sense.
        """
        slices: list[Slice] = []
        gathered: list[c.Change] = []
        size = 0
        legal = TRANSITIONS[self._state]
        for message in messages:
            kind = type(message)
            following = legal.get(kind)
            if following is None:
                raise ProtocolError(guard(self._state, kind), message=_NAMES.get(kind, kind.__name__))
            row = _ROWS.get(kind)
            if row is not None:
                if self._transaction is None:
                    self._open()
                content: Any = message  # one of the three, as the table of rows says
                gathered.append(
                    row(self._transaction, self._ordinal, self._layout(content.relation), content)
                )
                self._ordinal += 1
                size += len(content.payload) + _OVERHEAD
            elif isinstance(message, m.Begin):
                self._enter(message)
                legal = TRANSITIONS[following]
            elif isinstance(message, m.Commit):
                self._close(message, gathered, size, slices)
                gathered, size = [], 0
                legal = TRANSITIONS[following]
            elif isinstance(message, Relation):
                self._fresh.append(message)
            elif isinstance(message, m.Origin):
                self._set_origin(message.name, gathered, size, slices)
                gathered, size = [], 0
            elif isinstance(message, m.Truncate):
                self._open()
                gathered.append(c.Truncate(self._transaction, self._ordinal, message))
                self._ordinal += 1
                size += len(message.payload) + _OVERHEAD
            elif isinstance(message, m.Message):
                if message.transactional:
                    if following is State.BETWEEN:
                        raise ProtocolError("transactional, but outside of a transaction", message="Message")
                    self._open()
                    gathered.append(c.Message(self._transaction, self._ordinal, message))
                    self._ordinal += 1
                    size += len(message.payload) + _OVERHEAD
                else:
                    self._emit(gathered, size, slices, None)
                    gathered, size = [], 0
                    self._stand_alone(message, slices)
            elif not isinstance(message, Type):
                raise AssertionError(f"{kind.__name__} is legal but not handled")
            self._state = following
        self._emit(gathered, size, slices, None)
        return slices

    def _layout(self, relation: Relation) -> c.Layout:
        layout = self._layouts.get(relation.oid)
        if layout is None or layout.relation is not relation:
            layout = self._layouts[relation.oid] = c.Layout(relation, self.types, binary=self.binary)
        return layout

    def _enter(self, begin: m.Begin) -> None:
        self._begin = begin
        self._transaction = None
        self._origin = None
        self._ordinal = 0
        # A transaction's end is behind its commit record, so it ended by ``after`` if that began before it.
        self._skip = begin.final_lsn < self._resume.after
        self._known = self._resume.ordinals if begin.final_lsn == self._resume.commit_lsn else 0
        self._first = self._known == 0

    def _open(self) -> Transaction:
        if self._transaction is None:
            begin = self._begin
            assert begin is not None
            self._transaction = Transaction(begin.xid, LSN(begin.final_lsn), begin.commit_time, self._origin)
        return self._transaction

    def _set_origin(self, name: str, gathered: list[c.Change], size: int, slices: list[Slice]) -> None:
        # The documents allow several origins in a transaction: what follows carries the new one.
        self._emit(gathered, size, slices, None)
        self._origin = name
        self._transaction = None

    def _close(self, commit: m.Commit, gathered: list[c.Change], size: int, slices: list[Slice]) -> None:
        transaction = self._open()
        if commit.commit_lsn != transaction.commit_lsn:
            raise ProtocolError(
                f"names {LSN(commit.commit_lsn)}, its Begin {transaction.commit_lsn}",
                message="Commit",
                field="commit LSN",
            )
        self._emit(gathered, size, slices, LSN(commit.end_lsn))
        self._begin = self._transaction = None

    def _stand_alone(self, message: m.Message, slices: list[Slice]) -> None:
        if message.lsn > self._resume.after:
            change = c.Message(None, 0, message)
            slices.append(Slice(None, (change,), True, LSN(message.lsn), len(message.payload) + _OVERHEAD))

    def _emit(self, gathered: list[c.Change], size: int, slices: list[Slice], end: LSN | None) -> None:
        if self._known and gathered:
            gathered = [change for change in gathered if change.ordinal >= self._known]
        if (gathered or end is not None) and not self._skip:
            slices.append(Slice(self._open(), gathered, self._first, end, size))
            self._first = False


_NAMES: dict[type, str] = {
    m.StreamStart: "Stream Start",
    m.StreamStop: "Stream Stop",
    m.StreamCommit: "Stream Commit",
    m.StreamAbort: "Stream Abort",
    m.BeginPrepare: "Begin Prepare",
    m.CommitPrepared: "Commit Prepared",
    m.RollbackPrepared: "Rollback Prepared",
    m.StreamPrepare: "Stream Prepare",
}
