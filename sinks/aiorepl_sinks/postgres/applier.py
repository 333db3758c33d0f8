"""Applies steps to the target, within the open transaction of its connection.

A step is first tried as one statement, under a savepoint. If it violates a constraint, only the order of its rows may be the
reason, so it is tried again row by row.
"""

from __future__ import annotations

from typing import Any, Final

import asyncpg

from aiorepl import PermanentError
from aiorepl.loggers import logger
from aiorepl_sinks.postgres import statements
from aiorepl_sinks.postgres.rows import arrays, complete, copy_text
from aiorepl_sinks.postgres.step_errors import describe
from aiorepl_sinks.postgres.steps import AnyStep, Step, TruncateStep
from aiorepl_sinks.postgres.target import Target

_log = logger("aiorepl.sink")

# For fewer rows COPY costs more in round trips than it saves.
_MIN_COPY_ROWS: Final = 20
# SQLSTATE unique_violation, and the class of integrity constraint violations.
_UNIQUE_VIOLATION: Final = "23505"
_CONSTRAINT_VIOLATIONS: Final = "23"


class StepFailed(Exception):
    """The target rejected a step; ``error`` is its error."""

    def __init__(self, step: AnyStep, error: asyncpg.PostgresError) -> None:
        super().__init__()
        self.step = step
        self.error = error


class Applier:
    """Applies steps on one connection.

    :param name: the sink's name.
    :param strict: whether every insert must be of a new row, and every update and delete must find its row. A row of a
        snapshot may exist already.
    """

    def __init__(self, connection: Any, name: str, *, strict: bool) -> None:
        self._connection = connection
        self._name = name
        self._strict = strict
        # Tables in which an inserted row existed. They get no COPY: more rows may exist, and a failed COPY is expensive.
        self._has_existing_rows: set[Target] = set()
        # Tables for which a missing row was logged.
        self._logged: set[Target] = set()

    async def apply(self, step: AnyStep) -> None:
        """Apply one step.

        :raises StepFailed: the target rejected it; the transaction has failed.
        :raises PermanentError: with ``strict``, the target's rows differ from the source's.
        """
        try:
            if isinstance(step, Step):
                await self._rows(step)
            elif isinstance(step, TruncateStep):
                await self._connection.execute(
                    statements.truncate(
                        step.targets, restart_identity=step.restart_identity, cascade=step.cascade
                    )
                )
            else:
                await self._connection.execute(
                    "SELECT pg_catalog.pg_logical_emit_message(true, $1::text, $2::bytea)",
                    step.prefix,
                    step.content,
                )
        except asyncpg.PostgresError as error:
            raise StepFailed(step, error) from None
        except UnicodeDecodeError:
            raise PermanentError(
                f"postgres: {describe(step)}: a text is not valid UTF-8, which a source with encoding SQL_ASCII allows: correct it "
                "there"
            ) from None

    async def _rows(self, step: Step) -> None:
        if len(step) == 1 or not step.ordered:
            await self._in_one_statement(step)
        elif not await self._try(self._in_one_statement(step), _CONSTRAINT_VIOLATIONS):
            for single in step.split():
                await self._in_one_statement(single)

    async def _in_one_statement(self, step: Step) -> None:
        target = step.target
        if step.kind in ("insert", "read"):
            await self._insert(step)
            return
        keys = arrays(step.keys, len(target.written if step.by_whole_row else target.key or ()))
        if step.kind == "delete":
            sql = statements.delete_by_row(target) if step.by_whole_row else statements.delete(target)
            self._require_found(step, await self._execute(sql, keys))
            return
        make = statements.update_by_row if step.by_whole_row else statements.update
        rows = arrays([[row[index] for index in step.columns] for row in step.rows], len(step.columns))
        found = await self._execute(make(target, step.columns), [*keys, *rows])
        self._require_found(step, found)
        if found < len(step) and not step.by_whole_row:
            await self._insert_missing(step)

    async def _insert(self, step: Step) -> None:
        target = step.target
        upsert = (step.kind == "read" or not self._strict) and target.unique and target.key is not None
        if step.kind == "read" and target.key is not None and not target.unique:
            # ON CONFLICT needs a unique index. Without one, delete the rows that the snapshot replaces, if they exist.
            keys = [[row[index] for index in target.key] for row in step.rows]
            await self._execute(statements.delete(target), arrays(keys, len(target.key)))
        if len(step) >= _MIN_COPY_ROWS and target.copies and target not in self._has_existing_rows:
            if not upsert:
                await self._copy(step)
                return
            if await self._try(self._copy(step), _UNIQUE_VIOLATION):
                return
            self._has_existing_rows.add(target)
        if target.written:
            rows = [[row[index] for index in target.written] for row in step.rows]
            arguments: list[Any] = list(arrays(rows, len(target.written)))
        else:
            arguments = [len(step)]
        await self._execute(statements.insert(target, upsert=upsert), arguments)

    async def _copy(self, step: Step) -> None:
        target = step.target
        rows = step.rows
        if len(target.written) < len(target.columns):
            rows = [[row[index] for index in target.written] for row in rows]
        schema, table = target.name
        # A buffer, not an iterator: after each item of an iterator, asyncpg waits until the socket takes more, and does not notice a lost
        # connection. A memoryview, because asyncpg takes bytes for a path.
        await self._connection.copy_to_table(
            table,
            schema_name=schema,
            columns=[target.columns[index].name for index in target.written],
            source=memoryview(copy_text(rows)),
        )

    async def _insert_missing(self, step: Step) -> None:
        """Insert the rows that an update did not find, if all values are known. Log the others once for each table."""
        target = step.target
        missing = Step("insert", target, rows=[row for row in step.rows if complete(row)])
        if len(missing) and target.unique:
            sql = statements.insert(target, upsert=True)
            rows = [[row[index] for index in target.written] for row in missing.rows]
            await self._execute(sql, arrays(rows, len(target.written)))
        if len(missing) < len(step):
            self._log_missing(target)

    def _require_found(self, step: Step, found: int) -> None:
        if found == len(step):
            return
        if self._strict:
            raise PermanentError(
                f"postgres: {step.target} on the target differs from the source: {found} of {len(step)} rows to {step.kind} were "
                "found: load it again, and set replica = true if foreign keys (ON DELETE CASCADE) or triggers change it there"
            )
        if step.by_whole_row and step.kind == "update":
            self._log_missing(step.target)

    def _log_missing(self, target: Target) -> None:
        if target not in self._logged:
            self._logged.add(target)
            _log.warning(
                "sink %s: updated rows are missing in %s on the target, and are skipped: the table differs from the source's, "
                "unless these rows are deleted later (logged once)",
                self._name,
                target,
            )

    async def _execute(self, sql: str, arguments: list[Any]) -> int:
        """Execute a statement; return the number of its rows."""
        status: str = await self._connection.execute(sql, *arguments)
        return int(status.rpartition(" ")[2])

    async def _try(self, attempt: Any, states: str) -> bool:
        """Await ``attempt`` under a savepoint; return ``False`` if it was rolled back because of one of these SQLSTATEs.

        :param states: the beginning of the SQLSTATEs.
        """
        try:
            await self._connection.execute("SAVEPOINT aiorepl_step")
        except BaseException:
            attempt.close()
            raise
        try:
            await attempt
        except asyncpg.PostgresError as error:
            if not (error.sqlstate or "").startswith(states):
                raise
            await self._connection.execute(
                "ROLLBACK TO SAVEPOINT aiorepl_step; RELEASE SAVEPOINT aiorepl_step"
            )
            return False
        await self._connection.execute("RELEASE SAVEPOINT aiorepl_step")
        return True
