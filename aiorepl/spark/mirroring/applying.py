"""Applies the batches of a mirror to its tables, exactly once. Runs on the driver; does not use Spark.

A batch reaches each table in a commit that has the query's id and the batch's number, and then the target's state has the
number, too. So a batch that Spark runs again, after a crash at any point, is applied to the tables that lack it and to no
others.

A table that cannot be written fails alone. Either the query ends, after the other tables of the batch; or the table is set
aside: its place in the journal is kept, with a cursor of its own, so that nothing is pruned, and later batches leave it out.
The next start of the mirror tries again, from that place on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiorepl.durable import reason, transient
from aiorepl.errors import AioreplError, JournalError, PermanentError
from aiorepl.history.manifest import Table
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.segments import BlockPosition
from aiorepl.journal.store import Store
from aiorepl.lsn import LSN
from aiorepl.spark.lake.table import Commit
from aiorepl.spark.mirroring.batch import Batch
from aiorepl.spark.mirroring.staging import SUFFIX, StagedFile
from aiorepl.spark.mirroring.state import SetAside, State, StateFile
from aiorepl.spark.mirroring.table_batch import TableWriter

_log = logging.getLogger("aiorepl.spark")

_THREADS: Final = 4

CatchUp = Callable[[Table, BlockPosition, BlockPosition], Sequence[StagedFile]]
"""Stages the changes of one table between two places of the journal."""


class TableFailed(PermanentError):
    """A table could not be written. The text names it; every other table of the batch was written."""


class Applying:
    """Applies batches one after the other.

    :param writer: writes the changes of one table.
    :param state: the target's state.
    :param staging: the folder of staged files.
    :param cursors: the journal's, for the tables that are set aside.
    :param checkpoint: where the query's checkpoint is, for errors.
    :param set_aside: whether a table that cannot be written is set aside; otherwise the query ends.
    """

    def __init__(
        self,
        writer: TableWriter,
        state: StateFile,
        staging: Store,
        cursors: Cursors,
        catch_up: CatchUp,
        checkpoint: str,
        *,
        set_aside: bool,
    ) -> None:
        self._writer = writer
        self._file = state
        self._staging = staging
        self._cursors = cursors
        self._catch_up = catch_up
        self._checkpoint = checkpoint
        self._set_aside = set_aside
        self._state: State | None = None

    def apply(self, batch: Batch, number: int) -> None:
        """Apply a batch to all of its tables, and remember it.

        :param number: Spark's number of the batch.
        :raises TableFailed: a table cannot be written, and is not to be set aside.
        :raises ConfigurationError: another mirror writes this target.
        :raises SlotError: the target has the tables of another source.
        :raises JournalError: a staged file was lost, or the state is not the one before this batch.
        """
        head = batch.head
        first = self._state is None
        state = self._state or self._file.claim(
            head.start.position.at(LSN(0)), head.end.query, self._checkpoint
        )
        if number > state.batch:
            self._require_next(state, number)
            state = self._write(batch, number, state, retry=first)
        self._state = state
        self._clean()

    def _require_next(self, state: State, number: int) -> None:
        if number != state.batch + 1:
            raise JournalError(
                f"the checkpoint {self._checkpoint} is at batch {number}, and the target with {self._file.location} has the batches "
                f"up to {state.batch}: one of them was put back from an older copy, or deleted. Put both back, or start over with "
                "an empty target and a new checkpoint"
            )

    def _write(self, batch: Batch, number: int, state: State, *, retry: bool) -> State:
        files = batch.by_table()
        head = batch.head
        dropped = [table for table in state.aside if retry and not self._writer.wanted(table)]
        aside = {table: behind for table, behind in state.aside.items() if table not in dropped}
        due = set(aside) if retry else set()
        tables = sorted((files.keys() - aside.keys()) | due)
        commit = Commit(f"aiorepl-{state.query}", number, head.lsn)
        oids: dict[Table, int] = {}
        failed: dict[Table, Exception] = {}

        def write(table: Table) -> None:
            found = files.get(table, [])
            behind = aside.get(table)
            if behind is not None:
                found = [*self._catch_up(table, behind.place, head.start.place), *found]
            if not found:
                return
            oid = self._writer.write(table, found, commit, state.tables.get(table))
            if oid is not None:
                oids[table] = oid

        with ThreadPoolExecutor(_THREADS, "aiorepl-mirror") as threads:
            futures = {table: threads.submit(write, table) for table in tables}
            for table, future in futures.items():
                error = future.exception()
                if error is None:
                    continue
                if not _of_table(error):
                    raise error
                assert isinstance(error, Exception)
                failed[table] = error
        if failed and not self._set_aside:
            raise self._failure(failed) from next(iter(failed.values()))
        position = head.start
        for table in due - failed.keys():
            del aside[table]
            _log.info("%s is mirrored again", table)
        for table, error in failed.items():
            problem = _text(error)
            _log.error("%s is set aside: %s", table, problem)
            behind = aside.get(table)
            aside[table] = (
                SetAside(position.position, position.part, position.block, problem)
                if behind is None
                else SetAside(behind.position, behind.part, behind.block, problem)
            )
            # Before the state, so that nothing is pruned that it needs.
            self._cursors.advance(_cursor(state, table), aside[table].position, query=state.query)
        saved = self._file.save(
            state.after(number, None if head.within else head.end.position.lsn, oids, aside)
        )
        for table in (due - failed.keys()).union(dropped):
            self._cursors.remove(_cursor(state, table))
        return saved

    def _failure(self, failed: dict[Table, Exception]) -> TableFailed:
        named = "; ".join(f"{table}: {_text(error)}" for table, error in failed.items())
        return TableFailed(
            f"{named}. The other tables of the batch were written. Repair it and start the mirror again; or set on_error to "
            "set_aside, and it goes on without the table until it is repaired"
        )

    def _clean(self) -> None:
        """Delete the staged files: no other batch needs them, nor those of failed attempts."""
        try:
            clean(self._staging)
        except OSError as error:
            _log.warning("staged files in %s stay for now: %s", self._staging.url, reason(error))


def clean(staging: Store) -> None:
    """Delete all files in a staging folder. Raises OSError."""
    for name in staging.names():
        if name.endswith(SUFFIX):
            staging.delete(name)


def _cursor(state: State, table: Table) -> str:
    return f"mirror-{state.query}-{table}"


def _of_table(error: BaseException) -> bool:
    """Whether the error is one of the table, and not of the journal, the staging folder or the network."""
    if isinstance(error, JournalError) or not isinstance(error, Exception):
        return False
    return not (isinstance(error, OSError) and transient(error))


def _text(error: Exception) -> str:
    """The text of an error; of other libraries only its name, because theirs may quote values."""
    if isinstance(error, AioreplError):
        return str(error)
    if isinstance(error, OSError):
        return reason(error)
    return f"{type(error).__name__} (its text is in the traceback)"
