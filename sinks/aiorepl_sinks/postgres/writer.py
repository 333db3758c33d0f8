"""Writes slices in transactions of the target, on one session.

The position is committed with the data. Slices before it are skipped, so a batch may be written again whatever the result of the
first attempt was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

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
from aiorepl.formats.type_names import catalog_names
from aiorepl_sinks.postgres.alterations import Refused, Types
from aiorepl_sinks.postgres.alterer import Alterer, EarlierRows
from aiorepl_sinks.postgres.applier import Applier
from aiorepl_sinks.postgres.connection import Session
from aiorepl_sinks.postgres.identifiers import Name, TableMapping
from aiorepl_sinks.postgres.step_builder import StepBuilder
from aiorepl_sinks.postgres.target import Target, find, find_without_columns

_BOTH: Final = (
    ". The transaction also has rows of the table from before that change, which the altered table may not fit: if so, read all tables "
    "again (resnapshot)"
)


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The sink's options for applying changes; see ``PostgresSink``."""

    tables: TableMapping
    mode: Literal["upsert", "strict"]
    transactions: Literal["batch", "source"]
    replica: bool
    messages: bool
    cascade: bool
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


class Writer:
    """Writes batches on one session.

    :param name: the sink's name.
    :param alterer: creates and alters tables; ``None``: the sink never does.
    :ivar incomplete: the commit LSN of the source's transaction whose first slices are in the open transaction.
    :ivar has_savepoint: whether the open transaction has a savepoint before the current call.
    """

    def __init__(
        self, session: Session, name: str, options: ApplyOptions, alterer: Alterer | None = None
    ) -> None:
        self.session = session
        self.incomplete: LSN | None = None
        self.has_savepoint = False
        self._options = options
        self._alterer = alterer
        self._applier = Applier(session.connection, name, strict=options.mode == "strict")
        self._steps = StepBuilder(compact=options.mode == "upsert")
        self._targets: dict[Relation, Target] = {}
        self._in_transaction = False
        self._incomplete_before: LSN | None = None
        # The position that the open transaction will commit, and the commit time on the source.
        self._end_lsn: LSN | None = None
        self._commit_time: datetime | None = None
        # The commit LSN of a transaction whose slices are skipped: it is already prepared on the target.
        self._skipped: LSN | None = None
        self._preparing = False
        # The slice with a table that cannot follow the source.
        self._refused: Slice | None = None

    async def write(self, parts: Sequence[Slice]) -> None:
        """Apply a batch. The batch is committed on return, unless its last transaction continues in the next batch.

        :raises Refused: a table cannot follow the source. The transactions before are committed, so that the user sees the
            target in the state that the message is about, and rows before the change are not applied after the user's repair.
        """
        try:
            await self._write(parts)
        except Refused as refusal:
            first, last = self._refused_transaction(parts)
            both = self._has_rows_before(refusal, parts[first : last + 1])
            if first:
                await (self.undo() if self.has_savepoint else self.abandon())
                await self._write(parts[:first])
            raise Refused(f"{refusal}{_BOTH if both else ''}", refusal.relation) from None

    def _refused_transaction(self, parts: Sequence[Slice]) -> tuple[int, int]:
        """Return the indexes of the first slice of the refused transaction, and of the slice that was refused."""
        last = next(index for index, part in enumerate(parts) if part is self._refused)
        first, header = last, parts[last].transaction
        while first and header is not None and not parts[first].first:
            first -= 1
        return first, last

    def _has_rows_before(self, refusal: Refused, parts: Sequence[Slice]) -> bool:
        """Whether the refused transaction has rows of the same table with an earlier description."""
        name = self._options.tables.target
        if not parts[0].first:
            return True  # perhaps in an earlier batch
        for change in (change for part in parts for change in part.changes):
            if isinstance(change, RowChange):
                relation = change.layout.relation
                if relation is refusal.relation:
                    return False
                if refusal.relation is not None and (
                    relation.oid == refusal.relation.oid or name(relation) == name(refusal.relation)
                ):
                    return True
        return False

    async def _write(self, parts: Sequence[Slice]) -> None:
        self._incomplete_before = self.incomplete
        if self._in_transaction:
            await self.session.connection.execute("SAVEPOINT aiorepl_call")
            self.has_savepoint = True
        for part in parts:
            try:
                await self._write_slice(part)
            except Refused:
                self._refused = part
                raise
        if self.incomplete is None:
            await self._commit()
            return
        await self._apply()
        await self._begin()
        if self.has_savepoint:
            await self.session.connection.execute("RELEASE SAVEPOINT aiorepl_call")
            self.has_savepoint = False

    async def replay(self, parts: Sequence[Slice]) -> None:
        """Apply a dead letter in a transaction that does not move the position.

        :raises PermanentError: the open transaction contains slices of a large transaction.
        """
        if self._in_transaction:
            raise PermanentError(
                "postgres: the first slices of a large transaction are being applied: replay once it is complete"
            )
        alterer, self._alterer = self._alterer, None  # a dead letter may have an old description of its table
        try:
            for part in parts:
                await self._collect(part)
        finally:
            self._alterer = alterer
        await self._commit()

    async def undo(self) -> None:
        """Undo the failed call, and keep the slices of earlier calls."""
        await self.session.connection.execute(
            "ROLLBACK TO SAVEPOINT aiorepl_call; RELEASE SAVEPOINT aiorepl_call"
        )
        self._forget()
        self.incomplete, self._in_transaction = self._incomplete_before, True

    async def abandon(self) -> None:
        """Roll back the open transaction, with the slices of earlier calls."""
        if self.session.connection.is_in_transaction():
            await self.session.connection.execute("ROLLBACK")
        self._forget()
        self.incomplete, self._in_transaction = None, False

    def _forget(self) -> None:
        self.has_savepoint = False
        self._steps = StepBuilder(compact=self._options.mode == "upsert")
        # Look the tables up again: the user may have altered one of them.
        self._targets.clear()
        self._end_lsn = self._commit_time = self._skipped = None

    async def _write_slice(self, part: Slice) -> None:
        header, position = part.transaction, self.session.position
        if header is None:
            if part.end_lsn is None or part.end_lsn > position:
                await self._collect(part)
                self._end_lsn = part.end_lsn or self._end_lsn
            return
        if header.commit_lsn < position:
            return
        if not part.first and self.incomplete != header.commit_lsn and self._skipped != header.commit_lsn:
            raise TransientError(
                f"postgres: the connection to the target was lost within the large transaction at {header.commit_lsn}: its "
                "applied slices are rolled back",
                rewind=True,
            )
        if header.prepared:
            await self._write_prepared(part, header)
            return
        await self._collect(part)
        self.incomplete = None if part.last else header.commit_lsn
        if part.last:
            self._end_lsn, self._commit_time = part.end_lsn, header.commit_time
            if self._options.transactions == "source":
                await self._commit()

    async def _collect(self, part: Slice) -> None:
        for change in part.changes:
            if isinstance(change, RowChange):
                relation = change.layout.relation
                target = self._targets.get(relation) or await self._find(
                    relation,
                    catalog_names(relation, change.layout.types),
                    "read again" if _begins_table(part) else "kept",
                )
                self._steps.row(target, change)
            elif isinstance(change, Truncate) and self._alterer is not None and _of_snapshot(change):
                await self._truncate_for_snapshot(self._alterer, change)
            elif isinstance(change, Truncate):
                targets = [
                    self._targets.get(one) or await self._find(one, catalog_names(one), "truncated")
                    for one in change.relations
                ]
                cascade = change.cascade and self._options.cascade
                self._steps.truncate(tuple(targets), change, cascade=cascade)
            elif isinstance(change, Message) and self._options.messages:
                self._steps.emit(change.prefix, change.content)

    async def _truncate_for_snapshot(self, alterer: Alterer, change: Truncate) -> None:
        """Truncate the tables that the target has, before their rows arrive again.

        The truncate has the present descriptions of the source's tables, and later rows of the stream may have earlier descriptions. So this
        creates and alters no table, and stores no description.
        """
        names = dict.fromkeys(self._name(relation) for relation in change.relations)
        # A renamed table has its rows under the former name, until the user renames the target's table.
        former = [await alterer.former(relation) for relation in change.relations]
        names |= dict.fromkeys(name for name in former if name is not None)
        found = [await find_without_columns(self.session.connection, name) for name in names]
        if targets := tuple(target for target in found if target is not None):
            self._steps.truncate(targets, change, cascade=False)
            # The rows must be gone before the next description is compared with the target.
            await self._apply()

    def _name(self, relation: Relation) -> Name:
        name = self._options.tables.target(relation)
        if self.session.state.owns(name):
            raise PermanentError(
                f"postgres: {relation} would be written to {'.'.join(name)} on the target, which is the sink's own table: map {relation} to "
                "another table with the option tables, or leave it out by a selection"
            )
        return name

    async def _find(self, relation: Relation, types: Types, earlier: EarlierRows) -> Target:
        options, name = self._options, self._name(relation)
        try:
            if self._alterer is not None and await self._alterer.needed(name, relation, types, earlier):
                await self._alter(self._alterer, name, relation, types, earlier)
        except Refused as refusal:
            raise Refused(str(refusal), relation) from None
        target = self._targets[relation] = await find(
            self.session.connection,
            name,
            relation,
            upsert=options.mode == "upsert",
            replica=options.replica,
        )
        return target

    async def _alter(
        self, alterer: Alterer, name: Name, relation: Relation, types: Types, earlier: EarlierRows
    ) -> None:
        """Create or alter a table in the open transaction, after the changes before this one."""
        if not self._preparing:
            await self._apply()
            await self._begin()
            await alterer.apply(name, relation, types, earlier)
        else:
            # A prepared transaction would lock the table until the source commits the transaction. Changes of the table that the source
            # sends before that commit would wait for ever.
            rewinds = self._in_transaction
            if rewinds:
                await self.abandon()
            async with self.session.connection.transaction():
                await alterer.apply(name, relation, types, earlier if earlier == "truncated" else "kept")
            if rewinds:
                raise TransientError(
                    f"postgres: {'.'.join(name)} was altered before a transaction that will be prepared",
                    rewind=True,
                )
        for known in [known for known, target in self._targets.items() if target.name == name]:
            del self._targets[known]

    async def _begin(self) -> None:
        if not self._in_transaction:
            # Constraints that were deferred on the source may be violated until the commit.
            await self.session.connection.execute(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET CONSTRAINTS ALL DEFERRED"
            )
            self._in_transaction = True

    async def _apply(self) -> None:
        steps = self._steps.take()
        if steps:
            await self._begin()
        for step in steps:
            await self._applier.apply(step)

    async def _commit(self) -> None:
        await self._apply()
        end_lsn = self._end_lsn
        if end_lsn is not None:
            # If there are no changes, no transaction is open, and this statement commits on its own.
            await self.session.state.advance(self.session.position, end_lsn)
        if self._in_transaction:
            if end_lsn is not None and self._commit_time is not None:
                await self.session.mark_origin(end_lsn, self._commit_time)
            await self.session.connection.execute("COMMIT")
        if end_lsn is not None:
            self.session.position = end_lsn
        self._in_transaction = self.has_savepoint = False
        self._end_lsn = self._commit_time = None

    # Two-phase commit. PREPARE, COMMIT PREPARED and ROLLBACK PREPARED are not part of the transaction that moves the position.
    # So after a crash one of them may be done although the position is still before it. The slice is then delivered again, and
    # the sink finds that the command is done.

    async def _write_prepared(self, part: Slice, header: Transaction) -> None:
        message = part.two_phase
        if isinstance(message, (CommitPrepared, RollbackPrepared)):
            await self._commit()
            await self._finish_prepared(header, part.end_lsn, commits=isinstance(message, CommitPrepared))
            return
        xid, prepare_lsn, state = header.xid, header.commit_lsn, self.session.state
        if part.first:
            await self._commit()
            if await state.is_prepared(xid, prepare_lsn):
                self._skipped = header.commit_lsn
        if self._skipped != header.commit_lsn:
            self._preparing = True
            try:
                await self._collect(part)
            finally:
                self._preparing = False
            self.incomplete = header.commit_lsn
            if not part.last:
                return
            await self._apply()
            await self._begin()
            await state.record(xid, prepare_lsn, header.gid or "", committed=True)
            await self.session.mark_origin(part.end_lsn or header.commit_lsn, header.commit_time)
            await self.session.connection.execute(f"PREPARE TRANSACTION '{state.gid(xid, prepare_lsn)}'")
            self._in_transaction = self.has_savepoint = False
            self.incomplete = None
        if part.last:
            await self._begin()
            await state.record(xid, prepare_lsn, header.gid or "", committed=False)
            self._end_lsn, self._skipped = part.end_lsn, None
            await self._commit()

    async def _finish_prepared(self, header: Transaction, end_lsn: LSN | None, *, commits: bool) -> None:
        xid, state, connection = header.xid, self.session.state, self.session.connection
        found = await state.find(xid)
        if found is None:
            pass  # done before, but the position was not moved
        elif found.open:
            if commits:
                await self.session.mark_origin(end_lsn or header.commit_lsn, header.commit_time)
            await connection.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{found.gid}'")
        elif (commits and found.recorded and not found.committed) or (not commits and found.committed):
            done, on_source = ("rolled back", "committed") if commits else ("committed", "rolled back")
            raise PermanentError(
                f"postgres: {found.gid} was {done} by hand on the target, but {on_source} on the source: load its tables again"
            )
        await self._begin()
        await state.delete(xid)
        self._end_lsn = end_lsn
        await self._commit()


def _of_snapshot(change: Truncate) -> bool:
    """Whether a truncate is the beginning of a snapshot, and not a TRUNCATE on the source."""
    return change.transaction is not None and not change.transaction.xid


def _begins_table(part: Slice) -> bool:
    """Whether the slice has the first rows of a table that is read as a whole. The other rows follow with the same columns."""
    chunk = None if part.transaction is None else part.transaction.snapshot
    return chunk is not None and chunk.number == 1 and not chunk.partial
