"""Steps onto the target, within the transaction that is open on its connection.

What can be written at once is tried at once under a savepoint; where a constraint says no, that may be the order of rows
alone, so it is tried again a row at a time, in order, before it counts.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg

from aiorepl import PermanentError
from aiorepl.errors import printable
from aiorepl_sinks.postgres import statements
from aiorepl_sinks.postgres.plan import AnyStep, Step, TruncateStep
from aiorepl_sinks.postgres.rows import arrays, complete, copied
from aiorepl_sinks.postgres.step_errors import told
from aiorepl_sinks.postgres.target import Target

_log = logging.getLogger("aiorepl.sink")

# Below this many rows a COPY costs more round trips than it saves time.
_COPY_ROWS: Final = 20
_UNIQUE: Final = "23505"
_CONSTRAINTS: Final = "23"


class StepFailed(Exception):
    """The target refused a step; ``error`` is its word."""

    def __init__(self, step: AnyStep, error: asyncpg.PostgresError) -> None:
        super().__init__()
        self.step = step
        self.error = error


class Applier:
    """Applies steps on one connection.

    :param strict: every insert has to be of a new row, every update and delete has to find exactly its own.
    """

    def __init__(self, connection: Any, name: str, *, strict: bool) -> None:
        self._connection = connection
        self._name = name
        self._strict = strict
        # Tables in which inserted rows were there already: others may be, too, and a COPY in vain is dear.
        self._taken: set[Target] = set()
        self._missed: set[Target] = set()

    async def apply(self, step: AnyStep) -> None:
        """Apply one step.

        :raises StepFailed: the target refused it; the transaction is of no use any more.
        :raises PermanentError: under ``strict``, when the target is not as it should be.
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
                f"postgres: {told(step)}: a text is not UTF-8, which a source with the encoding SQL_ASCII lets pass: mend it "
                "there"
            ) from None

    async def _rows(self, step: Step) -> None:
        if len(step) == 1 or not step.ordered:
            await self._at_once(step)
        elif not await self._tried(self._at_once(step), _CONSTRAINTS):
            for single in step.split():
                await self._at_once(single)

    async def _at_once(self, step: Step) -> None:
        target = step.target
        if step.kind == "insert":
            await self._insert(step)
            return
        keys = arrays(step.keys, len(target.written if step.whole else target.key or ()))
        if step.kind == "delete":
            sql = statements.delete_whole(target) if step.whole else statements.delete(target)
            self._require_found(step, await self._execute(sql, keys))
            return
        make = statements.update_whole if step.whole else statements.update
        rows = arrays([[row[place] for place in step.places] for row in step.rows], len(step.places))
        found = await self._execute(make(target, step.places), [*keys, *rows])
        self._require_found(step, found)
        if found < len(step) and not step.whole:
            await self._insert_missing(step)

    async def _insert(self, step: Step) -> None:
        target = step.target
        upsert = not self._strict and target.unique and target.key is not None
        if len(step) >= _COPY_ROWS and target.copies and target not in self._taken:
            if not upsert:
                await self._copy(step)
                return
            if await self._tried(self._copy(step), _UNIQUE):
                return
            self._taken.add(target)
        if target.written:
            rows = [[row[place] for place in target.written] for row in step.rows]
            arguments: list[Any] = list(arrays(rows, len(target.written)))
        else:
            arguments = [len(step)]
        await self._execute(statements.insert(target, upsert=upsert), arguments)

    async def _copy(self, step: Step) -> None:
        target = step.target
        rows = step.rows
        if len(target.written) < len(target.columns):
            rows = [[row[place] for place in target.written] for row in rows]
        schema, table = target.name

        async def source() -> AsyncIterator[bytes]:
            yield copied(rows)

        await self._connection.copy_to_table(
            table,
            schema_name=schema,
            columns=[target.columns[place].name for place in target.written],
            source=source(),
        )

    async def _insert_missing(self, step: Step) -> None:
        """Rows that were updated and are not there: written, if all of them is known, else told once."""
        target = step.target
        whole = Step("insert", target, rows=[row for row in step.rows if complete(row)])
        if len(whole) and target.unique:
            sql = statements.insert(target, upsert=True)
            rows = [[row[place] for place in target.written] for row in whole.rows]
            await self._execute(sql, arrays(rows, len(target.written)))
        if len(whole) < len(step):
            self._tell_missed(target)

    def _require_found(self, step: Step, found: int) -> None:
        if found == len(step):
            return
        if self._strict:
            raise PermanentError(
                f"postgres: {step.target} on the target is not what it was on the source: {found} of {len(step)} rows were "
                f"found to {step.kind}; load it again, and where foreign keys (ON DELETE CASCADE) or triggers act on it there, "
                "set replica = true"
            )
        if step.whole and step.kind == "update":
            self._tell_missed(step.target)

    def _tell_missed(self, target: Target) -> None:
        if target not in self._missed:
            self._missed.add(target)
            _log.warning(
                "sink %s: rows that were updated are not in %s on the target, and are passed over: it is not what it was "
                "on the source, unless they are deleted later on (told once)",
                self._name,
                printable(str(target)),
            )

    async def _execute(self, sql: str, arguments: list[Any]) -> int:
        """How many rows a statement has touched."""
        status: str = await self._connection.execute(sql, *arguments)
        return int(status.rpartition(" ")[2])

    async def _tried(self, attempt: Any, states: str) -> bool:
        """Whether it went well; ``False`` when it was undone for an error of these SQLSTATEs."""
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
