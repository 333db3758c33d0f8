"""Copies sequences, which logical replication does not send, from one server to another. A sequence of the target never moves backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from aiorepl.wire.commands import identifier
from aiorepl.wire.opening import ASYNCPG_ERRORS, translated

_LIST: Final = """
SELECT n.nspname::text AS schema, c.relname::text AS name, c.oid, s.seqincrement AS increment, s.seqstart AS start
  FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relpersistence <> 't' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
 ORDER BY 1, 2
"""
# Since PostgreSQL 18; it opens the sequence by its oid.
_DATA: Final = "SELECT last_value, is_called FROM pg_catalog.pg_get_sequence_data($1::oid::regclass)"
_SET: Final = "SELECT pg_catalog.setval($1::oid::regclass, $2, $3)"
_LOCK_TIMEOUT: Final = "5s"

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Value:
    """The state of a sequence.

    :param called: whether ``last`` was given out; if not, ``last`` is the next value.
    """

    last: int
    called: bool
    increment: int

    def is_behind(self, other: Value) -> bool:
        """Whether the next value of this sequence comes before the next value of ``other``."""
        sign = 1 if other.increment > 0 else -1
        return (self.last * sign, self.called) < (other.last * sign, other.called)


@dataclass(frozen=True, slots=True)
class CopiedSequence:
    """The result of copying one sequence.

    :param before: the target's last value before the copy.
    :param after: the target's last value after the copy.
    :param problem: why the sequence was not copied; ``None`` if it was copied.
    """

    schema: str
    name: str
    before: int | None = None
    after: int | None = None
    problem: str | None = None

    def __str__(self) -> str:
        name = f"{self.schema}.{self.name}"
        if self.problem is not None:
            return f"{name}: not copied: {self.problem}"
        return f"{name}: {self.after}" + (f", was {self.before}" if self.before != self.after else "")


async def copy_sequences(source: Any, target: Any) -> list[CopiedSequence]:
    """Set each sequence of the target to the value of the sequence of the same name on the source, unless the target is ahead.

    Each sequence of the target is locked while it is set, so sessions may take numbers from it meanwhile. No session may take numbers
    from the source's sequences: the target would give out the same numbers again.

    :param source: an asyncpg connection of ``connect_sql``.
    :param target: such a connection to the other server.
    :raises ConnectionLost, ServerError: a catalog cannot be read.
    """
    try:
        wanted, existing = await _listed(source), await _listed(target)
        return [await _copy(source, target, name, row, existing) for name, row in wanted.items()]
    except ASYNCPG_ERRORS as error:
        raise translated(error) from None


async def _copy(
    source: Any, target: Any, name: Name, row: Mapping[str, Any], existing: Mapping[Name, Mapping[str, Any]]
) -> CopiedSequence:
    if name not in existing:
        return CopiedSequence(*name, problem="the target has no such sequence")
    where = "the source"
    try:
        ours = await _value(source, name, row)
        where = "the target"
        theirs = await _value(target, name, existing[name])
        if (ours.increment > 0) != (theirs.increment > 0):
            return CopiedSequence(*name, problem="it counts in the other direction on the target")
        if not theirs.is_behind(ours):
            return CopiedSequence(*name, theirs.last, theirs.last)
        return await _advance(target, name, existing[name], ours)
    except asyncpg.LockNotAvailableError:
        return CopiedSequence(
            *name,
            problem=f"sessions that have taken numbers from it on the target did not end their transactions within {_LOCK_TIMEOUT}",
        )
    except asyncpg.PostgresError as error:
        if isinstance(error, asyncpg.PostgresConnectionError | asyncpg.OperatorInterventionError):
            raise
        return CopiedSequence(*name, problem=f"{where} refuses it: {error.args[0]}")


async def _advance(target: Any, name: Name, row: Mapping[str, Any], ours: Value) -> CopiedSequence:
    """Set a sequence of the target, unless it is ahead by now.

    ALTER SEQUENCE takes a SHARE ROW EXCLUSIVE lock, which blocks nextval until the end of the transaction; LOCK TABLE cannot lock a sequence.
    The statement keeps the start value. A transaction that has called nextval keeps its own lock until the transaction ends.
    """
    async with target.transaction():
        await target.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        await target.execute(
            f"ALTER SEQUENCE {identifier(name[0])}.{identifier(name[1])} START WITH {int(row['start'])}"
        )
        theirs = await _value(target, name, row)
        if not theirs.is_behind(ours):
            return CopiedSequence(*name, theirs.last, theirs.last)
        await target.fetchval(_SET, row["oid"], ours.last, ours.called)
    return CopiedSequence(*name, theirs.last, ours.last)


async def _listed(connection: Any) -> dict[Name, Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = await connection.fetch(_LIST)
    return {(row["schema"], row["name"]): row for row in rows}


async def _value(connection: Any, name: Name, row: Mapping[str, Any]) -> Value:
    if connection.get_server_version().major >= 18:
        found = await connection.fetchrow(_DATA, row["oid"])
        if found["last_value"] is None:  # instead of an error
            raise asyncpg.InsufficientPrivilegeError(f"permission denied for sequence {name[1]}")
    else:
        found = await connection.fetchrow(
            f"SELECT last_value, is_called FROM {identifier(name[0])}.{identifier(name[1])}"
        )
    return Value(found["last_value"], found["is_called"], row["increment"])
