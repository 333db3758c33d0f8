"""Transactions that read tables: under an exported snapshot or one of their own, with the tables locked against alterations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import asyncpg

from aiorepl.errors import SlotError
from aiorepl.snapshot.altered import TableAltered
from aiorepl.snapshot.privileges import require_readable
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.wire.opening import ASYNCPG_ERRORS, translated
from aiorepl.wire.server_process import watch_calls

REPEATABLE: Final = "REPEATABLE READ"
COMMITTED: Final = "READ COMMITTED"
# Row-level security is an error, not a filter: a snapshot must have all rows, and policies may run untrusted code. A role's
# timeouts are too short for a long load. The order of rows must be the same if a chunk is read again. Names in a condition must
# be qualified, because anyone may create operators and functions.
_SETTINGS: Final = """
SET LOCAL row_security = off; SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;
SET LOCAL search_path = '';
"""
BACKEND: Final = "SELECT pg_catalog.pg_backend_pid()"
"""A query for the server process of the connection. Behind a pooler, asyncpg's own number may be another one."""
_NO_SUCH_SNAPSHOT: Final = ("22023", "0A000", "42704")


class SnapshotGone(SlotError):
    """The exported snapshot cannot be imported any more: it has ended, or the connection that kept it is lost."""


class TableLocked(SnapshotGone):
    """Another session waits for the snapshot's lock of a table, to alter or truncate it. So the snapshot has to end."""


async def begin_reading(
    connection: Any,
    snapshot: str | None = None,
    lock_timeout: float | None = None,
    isolation: str = REPEATABLE,
) -> None:
    """Begin a transaction for reading tables.

    :param connection: an asyncpg connection.
    :param snapshot: the exported snapshot to import; ``None``: a snapshot of its own, which the next query takes.
    :param lock_timeout: in seconds; ``None``: no limit.
    :param isolation: ``REPEATABLE``, or ``COMMITTED``: each query has a snapshot of its own.
    :raises SnapshotGone: the snapshot cannot be imported any more.
    """
    await connection.execute(f"BEGIN ISOLATION LEVEL {isolation} READ ONLY")
    if snapshot is not None:
        try:
            await connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        except asyncpg.PostgresError as error:
            if error.sqlstate in _NO_SUCH_SNAPSHOT:
                raise SnapshotGone(f"the exported snapshot is gone: {error.args[0]}") from None
            raise
    await connection.execute(_SETTINGS)
    if lock_timeout is not None:
        await connection.execute(f"SET LOCAL lock_timeout = {round(lock_timeout * 1000)}")


async def lock_table(connection: Any, table: PublishedTable, role: str, lock_timeout: float | None) -> None:
    """Lock a table until the end of the transaction.

    :param role: the connection's role.
    :raises ConfigurationError: the role may not read all rows of the table; says what to grant.
    :raises TableAltered: the table is not as it was described.
    :raises SlotError: the lock was not granted in time.
    """
    try:
        await require_readable(connection, table, role)
    except (
        asyncpg.UndefinedTableError,
        asyncpg.UndefinedColumnError,
        asyncpg.WrongObjectTypeError,
        asyncpg.ObjectNotInPrerequisiteStateError,  # a view has the table's name
    ):
        raise TableAltered(f"table {table} was altered") from None
    except asyncpg.LockNotAvailableError:
        raise not_locked(f"table {table}", lock_timeout) from None


def not_locked(what: str, lock_timeout: float | None) -> SlotError:
    """Make the error for a table that was not locked in time."""
    waited = "in time" if lock_timeout is None else f"within {lock_timeout:g} s"
    return SlotError(
        f"{what} could not be locked {waited}, because another transaction alters it: end that transaction, or set a longer "
        "lock_timeout"
    )


@contextlib.contextmanager
def translating(connection: Any = None) -> Iterator[None]:
    """Translate asyncpg's errors.

    :param connection: the connection of the calls. It is dropped once no answer can arrive any more.
    """
    try:
        with contextlib.nullcontext() if connection is None else watch_calls(connection):
            yield
    except ASYNCPG_ERRORS as error:
        raise translated(error) from None


@contextlib.contextmanager
def translating_locked(what: str, lock_timeout: float | None) -> Iterator[None]:
    """Translate the error of a catalog function that could not lock a table in time."""
    try:
        yield
    except asyncpg.LockNotAvailableError:
        raise not_locked(what, lock_timeout) from None
