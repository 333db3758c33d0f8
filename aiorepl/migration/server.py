"""One server of a comparison: its tables, and the checksums, keys and hashes of their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from aiorepl.errors import ConfigurationError
from aiorepl.migration.table_sql import ALL, ORDERED_TYPES, FirstKeys, rows, sums
from aiorepl.snapshot.chunk_query import bounds_query
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.wire.opening import ASYNCPG_ERRORS, translated

_T = TypeVar("_T")

# With row_security off, a policy that would hide rows is an error, so hidden rows are not reported as missing.
# With lc_monetary C on both servers, equal amounts of money have equal texts.
PREPARE: Final = "SET lc_monetary = 'C'; SET default_transaction_read_only = on; SET row_security = off; SET statement_timeout = 0"
_COLUMNS: Final = """
SELECT c.relkind::text AS kind, a.attname::text AS name, a.atttypid AS type
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'f')
"""
_FOREIGN: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_partition_tree($1::oid::regclass) p JOIN pg_catalog.pg_class c ON c.oid = p.relid
                WHERE c.relkind = 'f')
"""
# The stored integer of one currency unit: 100 if lc_monetary has two decimals, 1 if it has none, as for the yen.
_MONEY_UNIT: Final = "SELECT pg_catalog.encode(pg_catalog.cash_send(pg_catalog.money(1)), 'hex')"
_MONEY: Final = 790
_HAS_MONEY: Final = f"""
WITH RECURSIVE part(oid) AS (
  SELECT unnest($1::oid[])
  UNION SELECT x.oid FROM part JOIN pg_catalog.pg_type t ON t.oid = part.oid CROSS JOIN LATERAL (
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
  ) AS x(oid) WHERE x.oid <> 0
) SELECT EXISTS (SELECT FROM part WHERE oid = {_MONEY})
"""
_BLOCKS: Final = """
SELECT coalesce((SELECT sum(pg_catalog.pg_relation_size(p.relid)) FROM pg_catalog.pg_partition_tree($1::oid::regclass) p),
                pg_catalog.pg_relation_size($1::oid::regclass))::int8 / current_setting('block_size')::int8
"""


class Sum(NamedTuple):
    """The number of rows, and the sum of their hashes."""

    rows: int
    hashes: str


Key = tuple[str | None, ...] | int
"""The texts of a row's key, or the hash of a row without one. Row data: do not log it."""
Rows = dict[Key, tuple[int, ...]]
"""The sorted hashes of the rows with a key."""


@dataclass(frozen=True, slots=True)
class Server:
    """A connection to one of the servers."""

    connection: Any

    async def target_of(self, table: PublishedTable) -> PublishedTable:
        """Return the table of the same name on this server, with the same columns.

        :raises ConfigurationError: the table or a column is missing.
        """
        found = await self._answer(self.connection.fetch(_COLUMNS, table.schema, table.name))
        if not found:
            raise ConfigurationError(f"the target has no table {table}")
        types = {row["name"]: row["type"] for row in found}
        if missing := [column.name for column in table.columns if column.name not in types]:
            raise ConfigurationError(f"the target's table has no column {', '.join(missing)}")
        columns = tuple(replace(column, type_oid=types[column.name]) for column in table.columns)
        return replace(table, columns=columns, filters=None, partitioned=found[0]["kind"] == "p")

    async def money_unit(self) -> str:
        """Return the integer that money stores for one currency unit under ``lc_monetary``. ``PREPARE`` changes ``lc_monetary``, so call this first."""
        return str(await self._answer(self.connection.fetchval(_MONEY_UNIT)))

    async def has_money(self, table: PublishedTable) -> bool:
        """Whether a column has money, also within an array, a composite type, a domain or a range."""
        types = [column.type_oid for column in table.columns]
        return bool(await self._answer(self.connection.fetchval(_HAS_MONEY, types)))

    async def ranges(self, table: PublishedTable, target: PublishedTable, blocks: int) -> Sequence[FirstKeys]:
        """Cut a table of this server into ranges of about ``blocks`` blocks, if both servers order the key in the same way."""
        if not table.key or not {each.key[0].type_oid for each in (table, target)} <= ORDERED_TYPES:
            return [ALL]
        found = await self._answer(self.connection.fetchval(_BLOCKS, table.oid))
        if found <= blocks or await self._answer(self.connection.fetchval(_FOREIGN, table.oid)):
            return [ALL]
        query = bounds_query(table, table.key[:1], -(-found // blocks), blocks)
        bounds = dict.fromkeys(row[0][0] for row in await self._answer(self.connection.fetch(query)))
        cut = [None, *bounds, None]
        return [FirstKeys(after, until) for after, until in pairwise(cut)]

    async def sums(self, table: PublishedTable, keys: FirstKeys) -> dict[int, Sum]:
        """Read the checksum of each bucket of a range."""
        found = await self._answer(self.connection.fetch(sums(table, keys)))
        return {row["bucket"]: Sum(row["rows"], row["hashes"]) for row in found}

    async def rows(self, table: PublishedTable, keys: FirstKeys, buckets: Collection[int]) -> Rows:
        """Read the keys and hashes of the rows in some buckets of a range."""
        found = defaultdict(list)
        for row in await self._answer(self.connection.fetch(rows(table, keys), list(buckets))):
            found[tuple(row["key"]) or row["hash"]].append(row["hash"])
        return {key: tuple(sorted(hashes)) for key, hashes in found.items()}

    async def _answer(self, query: Awaitable[_T]) -> _T:
        try:
            return await query
        except ASYNCPG_ERRORS as error:
            raise translated(error) from None
