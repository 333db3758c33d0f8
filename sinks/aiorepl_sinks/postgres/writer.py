"""Slices into transactions of the target, on one session; the sink gives it a batch and undoes what failed.

Committed with the data, the position says what the target has: a slice that lies before it is passed over, so a batch may
be written again whatever became of the first attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from aiorepl import (
    LSN,
    CommitPrepared,
    Message,
    PermanentError,
    Relation,
    RollbackPrepared,
    RowChange,
    Slice,
    Transaction,
    TransientError,
    Truncate,
)
from aiorepl_sinks.postgres.apply import Applier
from aiorepl_sinks.postgres.identifiers import TableNames
from aiorepl_sinks.postgres.plan import Plan
from aiorepl_sinks.postgres.session import Session
from aiorepl_sinks.postgres.target import Target, find


@dataclass(frozen=True, slots=True)
class Rules:
    """How the user wants changes to be applied."""

    names: TableNames
    mode: Literal["upsert", "strict"]
    transactions: Literal["batch", "source"]
    replica: bool
    messages: bool
    cascade: bool
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


class Writer:
    """Writes batches on one session.

    :ivar under_way: the commit LSN of the transaction of the source whose beginning is in the open transaction.
    :ivar separable: whether what this call did can be undone alone: a savepoint stands before it.
    """

    def __init__(self, session: Session, name: str, rules: Rules) -> None:
        self.session = session
        self.under_way: LSN | None = None
        self.separable = False
        self._rules = rules
        self._applier = Applier(session.connection, name, strict=rules.mode == "strict")
        self._plan = Plan(compact=rules.mode == "upsert")
        self._targets: dict[Relation, Target] = {}
        self._begun = False
        self._before: LSN | None = None
        # Where the open transaction will bring the target, and when that was committed.
        self._reached: LSN | None = None
        self._moment: datetime | None = None
        # A prepared transaction that is on the target already, and comes again.
        self._passing: LSN | None = None

    async def write(self, parts: Sequence[Slice]) -> None:
        """Apply a batch: committed on return, unless its last transaction goes on in the next."""
        self._before = self.under_way
        if self._begun:
            await self.session.connection.execute("SAVEPOINT aiorepl_call")
            self.separable = True
        for part in parts:
            await self._part(part)
        if self.under_way is None:
            await self._commit()
            return
        await self._apply()
        await self._begin()
        if self.separable:
            await self.session.connection.execute("RELEASE SAVEPOINT aiorepl_call")
            self.separable = False

    async def replay(self, parts: Sequence[Slice]) -> None:
        """Apply a dead letter, whose changes lie before the position, in a transaction that does not move it.

        :raises PermanentError: a part of a large transaction is in the open transaction.
        """
        if self._begun:
            raise PermanentError("postgres: a large transaction is there in part: replay once it is complete")
        for part in parts:
            await self._gather(part)
        await self._commit()

    async def undo(self) -> None:
        """Be as before the failed call, of a transaction that goes on."""
        await self.session.connection.execute(
            "ROLLBACK TO SAVEPOINT aiorepl_call; RELEASE SAVEPOINT aiorepl_call"
        )
        self._forget()
        self.under_way, self._begun = self._before, True

    async def abandon(self) -> None:
        """Roll the open transaction back, with all that came of it in earlier calls."""
        if self.session.connection.is_in_transaction():
            await self.session.connection.execute("ROLLBACK")
        self._forget()
        self.under_way, self._begun = None, False

    def _forget(self) -> None:
        self.separable = False
        self._plan = Plan(compact=self._rules.mode == "upsert")
        # Whoever mends a table and tries again is to be believed.
        self._targets.clear()
        self._reached = self._moment = self._passing = None

    async def _part(self, part: Slice) -> None:
        header, position = part.transaction, self.session.position
        if header is None:
            if part.end_lsn is None or part.end_lsn > position:
                await self._gather(part)
                self._reached = part.end_lsn or self._reached
            return
        if header.commit_lsn < position:
            return
        if not part.first and self.under_way != header.commit_lsn and self._passing != header.commit_lsn:
            raise TransientError(
                f"postgres: the connection to the target was lost in the middle of the transaction at {header.commit_lsn}, "
                "which is larger than a batch: what was applied of it is rolled back",
                rewind=True,
            )
        if header.prepared:
            await self._prepared(part, header)
            return
        await self._gather(part)
        self.under_way = None if part.last else header.commit_lsn
        if part.last:
            self._reached, self._moment = part.end_lsn, header.commit_time
            if self._rules.transactions == "source":
                await self._commit()

    async def _gather(self, part: Slice) -> None:
        for change in part.changes:
            if isinstance(change, RowChange):
                relation = change.layout.relation
                target = self._targets.get(relation) or await self._find(relation)
                self._plan.row(target, change)
            elif isinstance(change, Truncate):
                targets = [self._targets.get(one) or await self._find(one) for one in change.relations]
                cascade = change.cascade and self._rules.cascade
                self._plan.truncate(tuple(targets), change, cascade=cascade)
            elif isinstance(change, Message) and self._rules.messages:
                self._plan.emit(change.prefix, change.content)

    async def _find(self, relation: Relation) -> Target:
        rules = self._rules
        target = self._targets[relation] = await find(
            self.session.connection,
            rules.names.target(relation),
            relation,
            upsert=rules.mode == "upsert",
            replica=rules.replica,
        )
        return target

    async def _begin(self) -> None:
        if not self._begun:
            # What could wait for the commit on the source may have.
            await self.session.connection.execute(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET CONSTRAINTS ALL DEFERRED"
            )
            self._begun = True

    async def _apply(self) -> None:
        steps = self._plan.take()
        if steps:
            await self._begin()
        for step in steps:
            await self._applier.apply(step)

    async def _commit(self) -> None:
        await self._apply()
        reached = self._reached
        if reached is not None:
            # Of a mark alone nothing but the position is written: a statement is a transaction.
            await self.session.books.advance(self.session.position, reached)
        if self._begun:
            if reached is not None and self._moment is not None:
                await self.session.mark_origin(reached, self._moment)
            await self.session.connection.execute("COMMIT")
        if reached is not None:
            self.session.position = reached
        self._begun = self.separable = False
        self._reached = self._moment = None

    # Two-phase commit. PREPARE and what decides it are no part of the transactions that move the position, so each may
    # be done and the position behind it. Then it comes again, and is found done.

    async def _prepared(self, part: Slice, header: Transaction) -> None:
        message = part.two_phase
        if isinstance(message, (CommitPrepared, RollbackPrepared)):
            await self._commit()
            await self._decide(header, part.end_lsn, commits=isinstance(message, CommitPrepared))
            return
        xid, prepare_lsn, books = header.xid, header.commit_lsn, self.session.books
        if part.first:
            await self._commit()
            if await books.begin_prepared(xid, prepare_lsn):
                self._passing = header.commit_lsn
        if self._passing != header.commit_lsn:
            await self._gather(part)
            self.under_way = header.commit_lsn
            if not part.last:
                return
            await self._apply()
            await self._begin()
            await books.note(xid, prepare_lsn, header.gid or "", committed=True)
            await self.session.mark_origin(part.end_lsn or header.commit_lsn, header.commit_time)
            await self.session.connection.execute(f"PREPARE TRANSACTION '{books.gid(xid, prepare_lsn)}'")
            self._begun = self.separable = False
            self.under_way = None
        if part.last:
            await self._begin()
            await books.note(xid, prepare_lsn, header.gid or "", committed=False)
            self._reached, self._passing = part.end_lsn, None
            await self._commit()

    async def _decide(self, header: Transaction, end_lsn: LSN | None, *, commits: bool) -> None:
        xid, books, connection = header.xid, self.session.books, self.session.connection
        found = await books.find(xid)
        if found is None:
            pass  # decided, and the position was not moved
        elif found.open:
            if commits:
                await self.session.mark_origin(end_lsn or header.commit_lsn, header.commit_time)
            await connection.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{found.gid}'")
        elif (commits and found.noted and not found.committed) or (not commits and found.committed):
            done, ought = ("rolled back", "committed") if commits else ("committed", "rolled back")
            raise PermanentError(
                f"postgres: {found.gid} was {done} on the target by somebody else, and was {ought} on the source: load "
                "its tables again"
            )
        await self._begin()
        await books.forget(xid)
        self._reached = end_lsn
        await self._commit()
