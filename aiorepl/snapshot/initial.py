"""Reads the rows of the published tables at the slot's consistent point, as one transaction.

CREATE_REPLICATION_SLOT exports a snapshot of the consistent point, so rows that are read under it and the stream that follows
have neither gap nor overlap. The rows become inserts of one transaction that ends at the consistent point, so later stages
handle one kind of rows. The transaction's commit LSN is one byte before the consistent point, where no real commit record can
start. Its xid is 0.

A snapshot locks nothing. So all tables are locked with ACCESS SHARE before the first one is read, as in pg_dump, and compared
with their state under the snapshot. During the load they can be written, but not altered or truncated.

A load into a journal with a gap starts with a truncate of all its tables, because rows that were deleted in the gap would stay
in a mirror.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

import asyncpg

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.snapshot.altered import Queried, altered, require_unaltered
from aiorepl.snapshot.privileges import require_readable
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import from_datetime
from aiorepl.values import catalog
from aiorepl.values.registry import Types
from aiorepl.values.types import BUILTIN, TypeInfo
from aiorepl.wire.opening import is_sql_ascii, translated

Emit = Callable[[list[Slice]], Awaitable[None]]

# Row-level security is an error, not a filter: a load must copy all rows, and policies may run untrusted code.
# A role's timeouts are too short for a long load.
_SETTINGS: Final = """
SET LOCAL row_security = off;
SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;
"""
_TRANSACTION_TIMEOUT: Final = "SET LOCAL transaction_timeout = 0"  # since PostgreSQL 17

_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_INSERT: Final = struct.Struct(">cIcH").pack
_LENGTH: Final = struct.Struct(">cI").pack
_TRUNCATE: Final = struct.Struct(">cIB").pack
_OID: Final = struct.Struct(">I").pack
_NEW_AT: Final = 6


class InitialLoad:
    """Reads the tables under an exported snapshot. Call ``begin``, then ``run``.

    :param connection: an asyncpg connection of its own, with the settings for text values.
    :param types: the known types; those of the tables are added.
    :param publications: the publications whose tables are loaded.
    :param consistent_point: the slot's first position.
    :param truncate: whether to start with a truncate of all tables.
    """

    def __init__(
        self,
        connection: Any,
        types: Types,
        publications: tuple[str, ...],
        consistent_point: LSN,
        *,
        truncate: bool = False,
    ) -> None:
        self._connection = connection
        self._types = types
        self._publications = publications
        self._consistent_point = consistent_point
        self._truncate = truncate
        self._decoder = Decoder()
        self._assembler = Assembler(types)
        self._tables: list[PublishedTable] = []
        self._looked_up: list[TypeInfo] = []
        self._emit: Emit | None = None

    async def begin(self, snapshot: str, exporter: Queried) -> None:
        """Import the snapshot and lock the tables. Afterwards the exporting connection may be used again.

        :param snapshot: the snapshot's name.
        :param exporter: the connection that exported it.
        :raises ConfigurationError: the role cannot read all rows of a table.
        :raises SlotError: a table was altered after the snapshot was taken.
        :raises ConnectionLost, ServerError: the server failed.
        """
        with _translate_errors(), _translate_missing_tables():
            await self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await self._connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            await self._connection.execute(_SETTINGS)
            if self._connection.get_server_version() >= (17,):
                await self._connection.execute(_TRANSACTION_TIMEOUT)
            self._tables = await published_tables(self._connection, self._publications)
            role = await self._connection.fetchval("SELECT current_user::text")
            for table in self._tables:
                await self._lock(table, role)
            names = {table.oid: str(table) for table in self._tables}
            await require_unaltered(self._connection, exporter, self._publications, names)
            # The catalog function lists the tables that are published now, not under the snapshot. A publication that was altered
            # and altered back would escape the comparison above.
            if self._tables != await published_tables(self._connection, self._publications):
                raise altered("a published table was altered")

    async def _lock(self, table: PublishedTable, role: str) -> None:
        try:
            await require_readable(self._connection, table, role)
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.WrongObjectTypeError):
            raise altered(f"table {table} was altered") from None

    async def run(self, emit: Emit) -> int:
        """Load every published table.

        :param emit: called with the slices; returns once there is room for more.
        :returns: the number of rows.
        :raises SlotError: a type was altered during the load; the transaction has no end.
        :raises ConnectionLost, ServerError: the server failed.
        """
        self._emit = emit
        rows = 0
        with _translate_errors():
            now = from_datetime(await self._connection.fetchval("SELECT now()"))
            commit_lsn = self._consistent_point - 1
            await self._feed([m.Begin(commit_lsn, now, 0)])
            relations = await self._describe()
            if self._truncate and self._tables:
                # One truncate for all tables, because they may refer to each other.
                oids = b"".join(_OID(table.oid) for table in self._tables)
                truncate = _TRUNCATE(b"T", len(self._tables), 0) + oids
                await self._feed([self._decoder.decode(truncate)])
            for table, relation in zip(self._tables, relations, strict=True):
                rows += await self._load(table, relation)
            await self._connection.execute("COMMIT")
            await self._require_same_types(relations)
        await self._feed([m.Commit(commit_lsn, self._consistent_point, now)])
        return rows

    async def _describe(self) -> list[Relation]:
        relations = []
        for table in self._tables:
            relation = self._decoder.decode(table.relation)
            assert isinstance(relation, Relation)
            relations.append(relation)
        self._looked_up = await self._look_up(relations)
        for info in self._looked_up:
            self._types.add(info)
        await self._feed(relations)
        return relations

    async def _look_up(self, relations: Iterable[Relation]) -> list[TypeInfo]:
        oids = {column.type_oid for relation in relations for column in relation.columns}
        rows = await self._connection.fetch(catalog.QUERY, sorted(oids - BUILTIN.keys()))
        return catalog.parse(rows)

    async def _require_same_types(self, relations: Iterable[Relation]) -> None:
        """Check that no type was altered during the load. Types cannot be locked, and values are decoded with the current ones."""
        now = {info.oid: info for info in await self._look_up(relations)}
        for info in self._looked_up:
            if now.get(info.oid) != info:
                raise SlotError(
                    f"type {info} was altered during the initial load, which cannot be used: start again, with resnapshot=True "
                    "(--resnapshot) if the slot still exists"
                )

    async def _load(self, table: PublishedTable, relation: Relation) -> int:
        rows, rest = 0, b""

        async def take(data: bytes) -> None:
            nonlocal rows, rest
            *lines, rest = (rest + data).split(b"\n")
            rows += len(lines)
            await self._feed(_insert(relation, line) for line in lines)

        # asyncpg encodes the query as UTF-8, so names must be ASCII.
        raw = is_sql_ascii(self._connection) and table.query.isascii()
        if raw:
            await self._connection.execute("SET LOCAL client_encoding = 'SQL_ASCII'")
        await self._connection.copy_from_query(table.query, output=take, format="text")
        if raw:
            await self._connection.execute("SET LOCAL client_encoding = 'UTF8'")
        return rows

    async def _feed(self, messages: Iterable[m.AnyMessage]) -> None:
        if (slices := self._assembler.feed(messages)) and self._emit is not None:
            await self._emit(slices)


def _insert(relation: Relation, line: bytes) -> m.Insert:
    """Convert a line of COPY's text format to an Insert message."""
    # A line of a table without columns has no field, instead of an empty one.
    fields = line.split(b"\t") if relation.columns else []
    parts = [_INSERT(b"I", relation.oid, b"N", len(fields))]
    for field in fields:
        if field == b"\\N":
            parts.append(b"n")
        else:
            value = _ESCAPED.sub(_unescape, field) if b"\\" in field else field
            parts += (_LENGTH(b"t", len(value)), value)
    return m.Insert(relation, _NEW_AT, b"".join(parts), None)


def _unescape(match: re.Match[bytes]) -> bytes:
    return _ESCAPES.get(match[1], match[1])


@contextlib.contextmanager
def _translate_missing_tables() -> Iterator[None]:
    """Translate the server's error about a table that the snapshot has and that was dropped."""
    try:
        yield
    except asyncpg.InternalServerError as error:
        raise altered(f"a published table was altered ({error.args[0]})") from None


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate asyncpg's errors."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError) as error:
        raise translated(error) from None
