"""Reads large values that the server did not send, because an update did not change them, from the present rows of the tables.

A table is found by its oid, a row by its key, and a column by its number. So a renamed table or column is still found, and another
one with the old name is not read in its place. Queries need names, so the tables are locked, and compared with the catalog,
before their rows are read.

A new snapshot may not see a transaction that the stream has sent (``visibility``), and would have an outdated value then, or no
row. So the reader waits until the transaction is visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from aiorepl.errors import ConfigurationError, ConnectionLost, DataError, ServerError, SlotError
from aiorepl.loggers import logger
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.snapshot.altered import TableAltered
from aiorepl.snapshot.chunk_query import as_text, keys_condition
from aiorepl.snapshot.chunk_reader import connect_for_rows, copied_rows
from aiorepl.snapshot.copy_rows import FieldSplitter
from aiorepl.snapshot.merging.overtaken import Key
from aiorepl.snapshot.merging.row_keys import RowKeys
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.reading_transaction import COMMITTED, begin_reading, lock_table, translating
from aiorepl.snapshot.tables import PublishedColumn, PublishedTable, published_tables
from aiorepl.source.source import Source
from aiorepl.source.visibility import Visibility
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.transaction import Transaction
from aiorepl.wire.commands import identifier
from aiorepl.wire.kept_connection import KeptConnection

_log = logger("aiorepl.reselect")

_ATTEMPTS: Final = 5
# The errors for a row or value whose text is larger than 1 GiB: an SQLSTATE, and functions whose SQLSTATE says "internal error".
_TOO_LARGE: Final = "54000"
_ALLOCATIONS: Final = frozenset(
    {"MemoryContextSizeFailure", "MemoryContextAlloc", "palloc", "palloc0", "palloc_extended", "repalloc"}
)

Values = Mapping[str, bytes | None]
"""Values in PostgreSQL's text form, by the names of their columns."""


@dataclass(slots=True)
class _Wanted:
    """The columns and rows to read from one table.

    :param columns: the columns to read, by number.
    :param keys: the key of each change's row, by the index of the change.
    :param lacking: the columns that each change lacks: their numbers by name, by the index of the change.
    """

    table: PublishedTable
    columns: dict[int, PublishedColumn] = field(default_factory=dict)
    keys: dict[int, Key] = field(default_factory=dict)
    lacking: dict[int, dict[str, int]] = field(default_factory=dict)


class PresentRows:
    """Reads the rows of changes, on one connection that is opened when it is needed.

    :param options: the limits of a read: ``lock_timeout`` and ``statement_timeout``.
    """

    def __init__(self, source: Source, options: SnapshotOptions) -> None:
        self._publications = source.options().publications
        self._options = options
        self._connection = KeptConnection(lambda: connect_for_rows(source.connect_sql))
        self._visibility = Visibility(self._connection, source.visible_timeout)
        # The tables whose rows cannot be found by a key, by oid.
        self._keyless: set[int] = set()

    def close(self) -> None:
        """Drop the connection."""
        self._visibility.close()

    async def read(
        self, changes: Sequence[RowChange], transactions: Iterable[Transaction], most_bytes: int
    ) -> list[Values] | None:
        """Read the values that the new rows of changes lack.

        :param transactions: the committed transactions that must be visible before the read.
        :returns: the values that were found, for each change; ``None`` if several rows have more than ``most_bytes`` together.
        :raises ConfigurationError: the role may not read a table; says what to grant.
        :raises SlotError: a transaction did not become visible, or a table was not locked in time.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
        """
        for transaction in transactions:
            await self._visibility.wait(transaction, None)
        try:
            connection = await self._connection.opened()
            with translating(connection):
                return await self._read(connection, changes, most_bytes)
        except BaseException:
            self.close()
            raise

    async def _read(
        self, connection: Any, changes: Sequence[RowChange], most_bytes: int
    ) -> list[Values] | None:
        await begin_reading(connection, None, self._options.lock_timeout, COMMITTED)
        tables = await self._lock(connection, {change.layout.relation.oid for change in changes})
        found: list[Values] = [{} for _ in changes]
        reads = self._wanted(tables, changes)
        # A single row is read whatever its size is.
        left: float = most_bytes if sum(len(set(each.keys.values())) for each in reads) > 1 else math.inf
        for wanted in reads:
            try:
                rows = await self._copy(connection, wanted, left)
            except ServerError as error:
                if error.sqlstate != _TOO_LARGE and error.routine not in _ALLOCATIONS:
                    raise
                if left == math.inf:
                    self.close()
                    _log.warning(
                        "large values of a row of table %s are not read, because the row is too large: %s",
                        wanted.table,
                        error,
                    )
                    return found
                rows = None
            if rows is None:
                # The rest of the rows would still arrive.
                self.close()
                return None
            left -= sum(len(value or b"") for row in rows.values() for value in row.values())
            for index, key in wanted.keys.items():
                if (row := rows.get(key)) is not None:
                    found[index] = {name: row[number] for name, number in wanted.lacking[index].items()}
        await connection.execute("ROLLBACK")
        return found

    async def _lock(self, connection: Any, oids: set[int]) -> dict[int, PublishedTable]:
        """Lock the tables, and return them by oid. Tables that do not exist any more, or are not published, are left out."""
        role = await connection.fetchval("SELECT current_user::text")
        expected: dict[int, PublishedTable] = {}
        for _ in range(_ATTEMPTS):
            try:
                # The names come from the last query. Names from an earlier read may belong to another table or view by now.
                for table in expected.values():
                    await lock_table(connection, table, role, self._options.lock_timeout)
                published = await published_tables(connection, self._publications, oids)
            except ConfigurationError as error:
                raise ConfigurationError(f"reselect = true: {error}") from None
            except TableAltered as error:
                raise ConnectionLost(str(error)) from None
            except (SlotError, asyncpg.LockNotAvailableError) as error:
                # Another transaction alters a table, and will end.
                raise SlotError(
                    f"large values are not read from the tables yet: {error}", busy=True
                ) from None
            found = {table.oid: table for table in published}
            if found == expected:
                return found
            expected = found
        raise ConnectionLost("tables were altered while large values were read from them")

    def _wanted(self, tables: Mapping[int, PublishedTable], changes: Sequence[RowChange]) -> list[_Wanted]:
        wanted: dict[int, _Wanted] = {}
        for index, change in enumerate(changes):
            table = tables.get(change.layout.relation.oid)
            if table is None or not self._has_key(table):
                continue
            columns = same_columns(change.layout.relation, table)
            key = _key_of(change, table, columns)
            if key is not None:
                each = wanted.setdefault(table.oid, _Wanted(table))
                each.keys[index] = key
                lacking = {name: columns[name] for name in _names(change) if name in columns}
                each.lacking[index] = {name: column.number or 0 for name, column in lacking.items()}
                each.columns.update((column.number or 0, column) for column in lacking.values())
        return [each for each in wanted.values() if each.columns]

    def _has_key(self, table: PublishedTable) -> bool:
        if table.key and table.comparable:
            return True
        if table.oid not in self._keyless:
            self._keyless.add(table.oid)
            _log.warning(
                "large values of table %s are not read, because its rows cannot be found: its replica identity must be a published "
                "key of built-in types",
                table,
            )
        return False

    async def _copy(
        self, connection: Any, wanted: _Wanted, most_bytes: float
    ) -> dict[Key, dict[int, bytes | None]] | None:
        """Read the rows of one table: the columns by number, for each key; ``None`` if they have more than ``most_bytes``."""
        table, keys = wanted.table, set(wanted.keys.values())
        columns = [*table.key, *wanted.columns.values()]
        query = table.select(
            [as_text(identifier(each.name)) for each in columns], keys_condition(table, keys)
        )
        statement = f"COPY ({query}) TO STDOUT (FORMAT binary)"
        rows: dict[Key, dict[int, bytes | None]] = {}
        size, of_key = 0, len(table.key)
        async with aclosing(
            copied_rows(connection, statement, FieldSplitter(len(columns)), self._options.statement_timeout)
        ) as parts:
            async for split, _ in parts:
                size += sum(len(field or b"") for fields in split for field in fields)
                if size > most_bytes:
                    return None
                for fields in split:
                    key = tuple(each or b"" for each in fields[:of_key])
                    rows[key] = dict(zip(wanted.columns, fields[of_key:], strict=True))
        return rows


def same_columns(relation: Relation, table: PublishedTable) -> dict[str, PublishedColumn]:
    """Return the table's present columns by the names that they have in a description of the table.

    A column is left out if its number is not known or its type was altered.
    """
    present = {column.number: column for column in table.columns}
    found = {}
    for column in relation.columns:
        attribute = relation.attributes.get(column.name)
        now = None if attribute is None else present.get(attribute.number)
        if now is not None and (now.type_oid, now.type_modifier) == (column.type_oid, column.type_modifier):
            found[column.name] = now
    return found


def _key_of(change: RowChange, table: PublishedTable, columns: Mapping[str, PublishedColumn]) -> Key | None:
    names = {column.number: name for name, column in columns.items()}
    if any(column.number not in names for column in table.key):
        return None
    try:
        return RowKeys([names[column.number] for column in table.key]).of_new(change)
    except DataError:
        # In an SQL_ASCII database, text may be any bytes.
        return None


def _names(change: RowChange) -> list[str]:
    """Return the names of the new row's columns whose values were not sent."""
    pairs = zip(change.layout.relation.names, change.raw_new or (), strict=True)
    return [name for name, raw in pairs if raw is UNCHANGED]
