"""Applies the batches of a mirror to its tables, exactly once. Runs on the driver; does not use Spark.

The commit of a batch in each table has the query's id and the batch's number. After all tables, the target's state gets the
number too. So if Spark runs a batch again after a crash at any point, the batch is applied only to the tables that lack it.

A table that cannot be written does not stop the others. After the other tables of the batch, the query ends; or the table is
set aside: later batches skip the table, and a cursor keeps the journal from the table's position on. The next start of the
mirror tries again from that position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

from deltalake.exceptions import CommitFailedError

from aiorepl.durable import reason, transient
from aiorepl.errors import (
    ConfigurationError,
    DamagedJournal,
    JournalError,
    PermanentError,
    loggable,
    quotes_no_row,
)
from aiorepl.journal.completeness import Completeness
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.segments import BlockPosition
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.spark.lake.table import Commit, TableUnavailable
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.causes import cause_text, known_cause
from aiorepl.spark.mirroring.complete import BatchRange, moment
from aiorepl.spark.mirroring.staging import Head, StagedBatch, StagedFile
from aiorepl.spark.mirroring.state import SavedState, SetAside, StateFile, Written
from aiorepl.spark.mirroring.table_batch import TableWriter
from aiorepl.spark.reading.offsets import Offset
from aiorepl.storage.store import Store
from aiorepl.table_name import TableName

_log = logger("aiorepl.spark")

_THREADS: Final = 4

CatchUp = Callable[[TableName, BlockPosition, BlockPosition], Sequence[StagedFile]]
"""Stages the changes of one table between two positions of the journal."""
Write = Callable[[], Written | None]
Described = Callable[[Write, str], Write]
"""Wraps a call for another thread; Spark's UI shows the text as the description of the call's jobs."""


class TableFailed(PermanentError):
    """A table could not be written. The error's text names the table. All other tables of the batch were written."""


class Applying:
    """Applies batches in order.

    :param writer: writes the changes of one table.
    :param state: the target's state.
    :param staging: the folder of staged files.
    :param cursors: the journal's cursors, for the tables that are set aside.
    :param tables: returns the tables that the journal has.
    :param checkpoint: the location of the query's checkpoint, for errors.
    :param described: wraps the call that writes a table; called in the query's thread.
    :param completeness: returns the snapshots and gaps of the journal.
    """

    def __init__(
        self,
        writer: TableWriter,
        state: StateFile,
        staging: Store,
        cursors: Cursors,
        catch_up: CatchUp,
        tables: Callable[[], Iterable[TableName]],
        checkpoint: str,
        described: Described,
        completeness: Callable[[], Completeness],
    ) -> None:
        self._writer = writer
        self._file = state
        self._staging = staging
        self._cursors = cursors
        self._catch_up = catch_up
        self._tables = tables
        self._checkpoint = checkpoint
        self._described = described
        self._completeness = completeness
        # Tables of the present batch whose earlier rows are not in the journal.
        self._lacking: set[TableName] = set()
        self._state: SavedState | None = None

    @property
    def state(self) -> SavedState | None:
        """The target's state after the last batch; ``None`` before the first one."""
        return self._state

    def resume(self) -> SavedState | None:
        """Read the target's state before the query starts; ``None`` if the target is new.

        If the state was put back from an older copy, tables have later batches than the state. The next batch then ends at the
        end of the latest of these batches.

        :raises ConfigurationError: a column of a target has another type than the option ``types`` says.
        """
        state = self._file.load()
        if state is None:
            return None
        last = state.batch + (state.planned > state.end)
        tables = sorted(filter(self._writer.settings.wanted, {*state.tables, *self._tables()}))
        with ThreadPoolExecutor(_THREADS, "aiorepl-mirror") as threads:
            newest = list(threads.map(partial(self._newest, state.application), tables))
        for table, written in state.tables.items():
            if written.oid and self._writer.settings.wanted(table):
                self._require_types(table, written)
        later = [each.lsn for each in newest if each is not None and each.number > last]
        if not later:
            return state
        _log.warning(
            "tables have later batches than %s, which was put back from an older copy: the changes that a table already has are skipped",
            self._file.location,
        )
        return self._file.save(replace(state, planned=max(state.planned, BlockPosition(max(later)))))

    def apply(self, batch: StagedBatch, number: int) -> None:
        """Apply a batch to all of its tables, and record it in the state.

        :param number: Spark's number of the batch.
        :raises TableFailed: a table cannot be written, and ``on_error`` is halt.
        :raises ConfigurationError: another mirror writes this target.
        :raises SlotError: the target has the tables of another source.
        :raises JournalError: a staged file was lost, or the state is not the one before this batch.
        """
        head = batch.head
        first = self._state is None
        state = self._state or self._file.claim(
            head.start.position.at(LSN(0)), head.end.query, self._checkpoint
        )
        end = head.end.place
        if (number, end) != (state.batch, state.end):
            self._require_next(state, number)
            if state.planned < end:
                state = self._file.save(replace(state, planned=end))
            state = self._write(batch, number, state, first=first)
            self._file.publish(state)
        self._state = state
        self._clean()

    def _newest(self, application: str, table: TableName) -> Commit | None:
        try:
            return self._writer.newest(application, table)
        except Exception as error:
            if not _of_table(error):
                raise
            # The batch will meet the same error, and write the other tables.
            return None

    def _require_types(self, table: TableName, written: Written) -> None:
        try:
            columns = self._writer.columns(table)
        except Exception as error:
            if not _of_table(error):
                raise
            return
        if columns is not None:
            self._writer.require_types(table, columns, written)

    def _require_next(self, state: SavedState, number: int) -> None:
        if number not in (max(state.batch, 0), state.batch + 1):
            raise JournalError(
                f"the checkpoint {self._checkpoint} is at batch {number}, and the target with {self._file.location} has the batches "
                f"up to {state.batch}: one of them was put back from an older copy, or deleted. Restore both from the same "
                "copy; the tables can stay as they are. Or start over with an empty target and a new checkpoint"
            )

    def _write(self, batch: StagedBatch, number: int, state: SavedState, *, first: bool) -> SavedState:
        head, files, settings = batch.head, batch.by_table(), self._writer.settings
        aside = {table: each for table, each in state.aside.items() if not first or settings.wanted(table)}
        due = {*aside, *self._added(state)} if first else set[TableName]()
        within = head.end.part or head.end.block
        end = state.lsn if within else head.end.place.lsn
        whole = BatchRange(head.end.start_lsn, state.lsn, end, head.lsn, head.times)
        self._lacking.clear()
        complete = partial(self._file.complete(state).after, whole, self._completeness())
        commit = Commit(state.application, number, head.lsn)

        def write(table: TableName) -> Written | None:
            found = files.get(table, [])
            if table in due:
                found = [*self._earlier(table, aside.get(table), head), *found]
            if not found:
                return None
            self._warn_of_rename(table, found[-1].version.oid, state)
            until = complete({table}, {table} - state.known, lacking=self._lacking).until(table)
            own = replace(commit, complete_until=moment(until))
            return self._writer.write(table, found, own, state.tables.get(table), behind=table in due)

        written, failed = self._in_threads(write, sorted((files.keys() - aside.keys()) | due), number)
        if failed and settings.on_error == "halt":
            raise self._failure(failed) from next(iter(failed.values()))
        left = state.aside.keys() - aside.keys() | due - failed.keys()
        for table in left & aside.keys():
            del aside[table]
            _log.info("%s is mirrored again", table)
        for table, error in failed.items():
            problem = error_text(error)
            _log.error("%s is set aside: %s", table, problem)
            at = _beginning(head) if table in due else head.start
            since = aside.get(table) or SetAside(at.position, at.part, at.block, problem)
            aside[table] = replace(since, problem=problem)
            # Move the cursor before the state is saved, so that no segment that the table needs is pruned.
            self._cursors.advance(_cursor(state, table), since.position, query=state.query)
        # Forget tables that no pattern matches any longer, because they miss changes. A later match adds them anew.
        kept = {table: each for table, each in state.tables.items() if not first or settings.wanted(table)}
        known = {*kept, *written, *aside}
        after = replace(
            state,
            batch=number,
            lsn=end,
            end=head.end.place,
            planned=max(state.planned, head.end.place),
            patterns=settings.patterns,
            tables={**kept, **written},
            aside=aside,
            selection=state.selection if head.remembered is None else head.remembered,
            complete=complete(known, known - state.known, aside.keys(), self._lacking),
        )
        saved = self._file.save(after)
        for table in left:
            self._cursors.remove(_cursor(state, table))
        return saved

    def _warn_of_rename(self, table: TableName, oid: int, state: SavedState) -> None:
        former = next((name for name, of in state.tables.items() if of.oid == oid), table)
        if former != table and table not in state.tables:
            self._lacking.add(table)
            _log.warning(
                "%s was mirrored as %s before it was renamed: request a snapshot of it for its older rows",
                table,
                former,
            )

    def _in_threads(
        self, write: Callable[[TableName], Written | None], tables: Sequence[TableName], number: int
    ) -> tuple[dict[TableName, Written], dict[TableName, Exception]]:
        """Write tables. Return the written tables, and the errors of single tables. Raise any other error."""
        written: dict[TableName, Written] = {}
        failed: dict[TableName, Exception] = {}
        with ThreadPoolExecutor(_THREADS, "aiorepl-mirror") as threads:
            calls = [self._described(partial(write, table), f"{table} batch {number}") for table in tables]
            for table, future in zip(tables, map(threads.submit, calls), strict=True):
                error = future.exception()
                if isinstance(error, Exception):
                    # Executors reduce large batches. An error of their disks or memory is not due to the table.
                    error = known_cause(error) or error
                if error is None:
                    found = future.result()
                    if found is not None:
                        written[table] = found
                elif isinstance(error, Exception) and _of_table(error):
                    failed[table] = error
                else:
                    raise error
        return written, failed

    def _added(self, state: SavedState) -> set[TableName]:
        """Return the journal's tables that earlier batches skipped because no pattern matched them."""
        settings = self._writer.settings
        if state.batch < 0 or state.patterns == settings.patterns:
            return set()
        return {
            table
            for table in self._tables()
            if table not in state.tables and settings.added(table, state.patterns)
        }

    def _earlier(self, table: TableName, behind: SetAside | None, head: Head) -> Sequence[StagedFile]:
        """Stage the missing changes of a table that is set aside or was added."""
        if behind is not None:
            return self._catch_up(table, behind.place, head.start.place)
        try:
            return self._catch_up(table, _beginning(head).place, head.start.place)
        except JournalError as error:
            if isinstance(error, DamagedJournal) or transient(error):
                raise
            if self._writer.columns(table) is not None:
                raise ConfigurationError(
                    f"{table} was mirrored before, and changes that it has missed since were pruned: delete its target, and request "
                    "a snapshot of it"
                ) from error
            self._lacking.add(table)
            _log.warning(
                "%s was added to the mirror, and its earlier changes were pruned: request a snapshot of it (%s)",
                table,
                error,
            )
            return ()

    def _failure(self, failed: dict[TableName, Exception]) -> TableFailed:
        named = "; ".join(f"{table}: {error_text(error)}" for table, error in failed.items())
        return TableFailed(
            f"{named}. The other tables of the batch were written. Repair it and start the mirror again; or set on_error to "
            "set_aside, and it continues without the table until it is repaired"
        )

    def _clean(self) -> None:
        """Delete all staged files, also of failed attempts: no other batch needs them."""
        try:
            staged_store.clean(self._staging)
        except OSError as error:
            _log.warning("staged files in %s stay for now: %s", self._staging.url, reason(error))


def _beginning(head: Head) -> Offset:
    """Return the offset where the mirror began."""
    return replace(head.start, position=head.start.position.at(head.end.start_lsn), part=0, block=0)


def _cursor(state: SavedState, table: TableName) -> str:
    return f"mirror-{state.query}-{table}"


def _of_table(error: BaseException) -> bool:
    """Whether an error is due to the table, and not to the journal, the staging folder or the network."""
    if isinstance(error, FileNotFoundError):
        return True
    # CommitFailedError: another program's upkeep conflicts with a commit. The batch is tried again.
    others = (JournalError, OSError, CommitFailedError, TableUnavailable)
    return isinstance(error, Exception) and not isinstance(error, others)


def error_text(error: Exception) -> str:
    """Return the text of an error. For an error of another library return only the type, because its text may quote rows."""
    if quotes_no_row(error):
        return loggable(error)
    if isinstance(error, OSError):
        return reason(error)
    if (cause := cause_text(error)) is not None:
        return f"{type(error).__name__}: {cause} (AIOREPL_DEBUG=1 shows its text, which may quote rows)"
    return f"{type(error).__name__} (its text may quote rows; AIOREPL_DEBUG=1 shows it)"
