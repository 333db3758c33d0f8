"""The initial load: the rows of the published tables, as of the moment the slot begins at, as one transaction.

CREATE_REPLICATION_SLOT exports a snapshot of just that moment. The rows read under it and the stream that follows
fit together without gap or overlap. They take the form of the stream itself, inserts of one transaction that ends
where the slot begins, so that nothing downstream has to know of two kinds of rows. No real commit record can start
one byte before the slot's begin, which makes that the transaction's commit LSN. Its xid is 0.

A load that comes behind an older history, of which the end is missing, begins with a truncate of all its tables: what
was deleted unseen has no other way out of a mirror.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.transaction import Slice, from_datetime
from aiorepl.values import catalog
from aiorepl.values.registry import Types

Emit = Callable[[list[Slice]], Awaitable[None]]

_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_INSERT: Final = struct.Struct(">cIcH").pack
_LENGTH: Final = struct.Struct(">cI").pack
_TRUNCATE: Final = struct.Struct(">cIB").pack
_OID: Final = struct.Struct(">I").pack
_NEW_AT: Final = 6


class InitialLoad:
    """Reads under an exported snapshot, on a connection of its own.

    :param connection: an asyncpg connection under the text settings.
    :param consistent_point: where the slot begins.
    :param truncate: begin with a truncate.
    """

    def __init__(
        self, connection: Any, types: Types, consistent_point: LSN, *, truncate: bool = False
    ) -> None:
        self._connection = connection
        self._types = types
        self._consistent_point = consistent_point
        self._truncate = truncate
        self._decoder = Decoder()
        self._assembler = Assembler(types)
        self._emit: Emit | None = None

    async def take_snapshot(self, name: str) -> None:
        """Enter the exported snapshot; from here on its exporter is free to go on."""
        await self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await self._connection.execute(f"SET TRANSACTION SNAPSHOT '{name}'")

    async def run(self, publications: tuple[str, ...], emit: Emit) -> int:
        """Load every published table; returns the number of rows.

        :param emit: takes the slices as they come and returns when there is room for more.
        """
        self._emit = emit
        rows = 0
        now = from_datetime(await self._connection.fetchval("SELECT now()"))
        commit_lsn = self._consistent_point - 1
        await self._feed([m.Begin(commit_lsn, now, 0)])
        tables = await published_tables(self._connection, publications)
        relations = [await self._described(table) for table in tables]
        if self._truncate and tables:
            # All at once, as of tables that refer to each other.
            oids = b"".join(_OID(table.oid) for table in tables)
            await self._feed([self._decoder.decode(_TRUNCATE(b"T", len(tables), 0) + oids)])
        for table, relation in zip(tables, relations, strict=True):
            rows += await self._load(table, relation)
        await self._feed([m.Commit(commit_lsn, self._consistent_point, now)])
        await self._connection.execute("COMMIT")
        return rows

    async def _described(self, table: PublishedTable) -> Relation:
        relation = self._decoder.decode(table.relation)
        assert isinstance(relation, Relation)
        missing = set().union(*(self._types.missing(column.type_oid) for column in relation.columns))
        if missing:
            for info in catalog.parse(await self._connection.fetch(catalog.QUERY, list(missing))):
                self._types.add(info)
        await self._feed([relation])
        return relation

    async def _load(self, table: PublishedTable, relation: Relation) -> int:
        rows, rest = 0, b""

        async def take(data: bytes) -> None:
            nonlocal rows, rest
            *lines, rest = (rest + data).split(b"\n")
            rows += len(lines)
            await self._feed(_insert(relation, line) for line in lines)

        await self._connection.copy_from_query(table.query, output=take, format="text")
        return rows

    async def _feed(self, messages: Iterable[m.AnyMessage]) -> None:
        if (slices := self._assembler.feed(messages)) and self._emit is not None:
            await self._emit(slices)


def _insert(relation: Relation, line: bytes) -> m.Insert:
    """A line of COPY's text format as the Insert message it would have been."""
    # A table without columns is a line without fields, not one empty field.
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
