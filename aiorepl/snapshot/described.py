"""Published tables, with the layouts, types and SQL that read and decode their chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Attribute, Relation
from aiorepl.snapshot.altered import AlteredWhileRead
from aiorepl.snapshot.chunk_query import column_kinds, copy_statement
from aiorepl.snapshot.chunks import Range
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.transactions.rows import Layout
from aiorepl.values import catalog
from aiorepl.values.registry import Types
from aiorepl.values.types import BUILTIN, MONEY, TypeInfo

_CENTS: Final = "SELECT pg_catalog.cash_send(pg_catalog.money(1)) = '\\x0000000000000064'"
_WITHOUT_SEND: Final = "SELECT oid FROM pg_catalog.pg_type WHERE oid = ANY ($1) AND typsend = 0"


@dataclass(frozen=True, slots=True, eq=False)
class DescribedTable:
    """A table that can be read.

    :param layout: the layout that decodes the table's rows.
    :param kinds: the kind of each column in the rows, if it is not NULL: ``t`` or ``b``.
    :param types: the types that are not built in, which were looked up, with their components.
    """

    table: PublishedTable
    layout: Layout
    kinds: bytes
    types: tuple[TypeInfo, ...]

    def copy_statement(self, rows: Range, key: Iterable[str] = (), conditions: Iterable[str] = ()) -> str:
        """Return the COPY command for some of the rows.

        :param key: the columns that a KeyRange is of.
        :param conditions: further conditions, in SQL.
        """
        return copy_statement(self.table, self.kinds, rows, key, conditions)


async def describe(
    connection: Any, tables: Sequence[PublishedTable], types: Types, *, binary: bool
) -> dict[int, DescribedTable]:
    """Look up the types of tables, and return the tables by oid.

    :param connection: an asyncpg connection.
    :param types: the known types; the tables' types are added.
    :param binary: whether the stream is binary.
    :raises asyncpg.PostgresError: the server failed.
    """
    decoder = Decoder()
    oids = {column.type_oid for table in tables for column in table.columns}
    infos = {info.oid: info for info in await _look_up(connection, sorted(oids - BUILTIN.keys()))}
    for info in infos.values():
        types.add(info)
    rows = await connection.fetch(_WITHOUT_SEND, sorted(infos))
    unsendable = {row["oid"] for row in rows}
    # A composite has a binary form only if all of its fields have one.
    without_send = {oid for oid in infos if unsendable & _parts([oid], infos)}
    if binary and (money := {oid for oid in oids if types.contains(oid, MONEY)}):
        # Unless money has two decimals, the stream of such a table is refused; its chunks are
        # right, because money is read as text.
        without_send |= set() if await connection.fetchval(_CENTS) else money
    found = {}
    for table in tables:
        relation = decoder.decode(table.relation)
        assert isinstance(relation, Relation)
        numbers = {column.name: column.number for column in table.columns}
        relation.attributes.update(
            {name: Attribute(number) for name, number in numbers.items() if number is not None}
        )
        layout = Layout(relation, types, binary=True)
        layout.expands()
        own = _parts((column.type_oid for column in table.columns), infos)
        kinds = column_kinds(table, types, without_send, binary=binary)
        found[table.oid] = DescribedTable(table, layout, kinds, tuple(infos[oid] for oid in sorted(own)))
    return found


async def require_same_types(connection: Any, described: DescribedTable) -> None:
    """Check that no type of a table was altered since it was described.

    Types cannot be locked, and values are decoded with the current ones.

    :param connection: an asyncpg connection without a snapshot.
    :raises AlteredWhileRead: a type was altered.
    :raises asyncpg.PostgresError: the server failed.
    """
    now = {info.oid: info for info in await _look_up(connection, [info.oid for info in described.types])}
    for info in described.types:
        if now.get(info.oid) != info:
            raise AlteredWhileRead(
                f"type {info} was altered while the rows of table {described.table} were read"
            )


async def _look_up(connection: Any, oids: Sequence[int]) -> list[TypeInfo]:
    return catalog.parse(await connection.fetch(catalog.QUERY, oids))


def _parts(oids: Iterable[int], infos: Mapping[int, TypeInfo]) -> set[int]:
    """Return the types among ``infos`` that these types are, or are made of."""
    found: set[int] = set()
    pending = list(oids)
    while pending:
        oid = pending.pop()
        info = infos.get(oid)
        if info is not None and oid not in found:
            found.add(oid)
            pending += [info.element, *(field for _, field in info.fields)]
    return found
