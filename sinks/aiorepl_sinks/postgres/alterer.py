"""Creates and alters tables of the target, within the transaction of the rows that need it (``ddl = "apply"``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

import asyncpg

from aiorepl import PermanentError, Relation, SinkContext
from aiorepl.loggers import logger
from aiorepl_sinks.postgres.alterations import (
    Alteration,
    Refused,
    Remembered,
    TargetAttribute,
    Types,
    alteration,
    creation,
    remember,
    renaming,
    rounded,
)
from aiorepl_sinks.postgres.check import require_alterable
from aiorepl_sinks.postgres.column_types import ColumnType
from aiorepl_sinks.postgres.errors import is_transient, translate
from aiorepl_sinks.postgres.identifiers import Name, TableMapping, qualified, quoted

_log = logger("aiorepl.sink")

_OID: Final = """
SELECT c.oid::bigint FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2
"""
_COLUMNS: Final = """
SELECT a.attname::text AS name, a.attnum::int AS number, n.nspname::text AS namespace, t.typname::text AS type, a.atttypmod AS modifier
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
 WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
"""
_LACKING: Final = """
SELECT w.namespace, w.name FROM unnest($1::text[], $2::text[]) AS w(namespace, name) WHERE NOT EXISTS (
  SELECT FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
   WHERE n.nspname = w.namespace AND t.typname = w.name AND t.typisdefined)
"""
_EXISTS: Final = "SELECT pg_catalog.to_regclass($1) IS NOT NULL"
# The prepared transactions of this sink that have locked the table.
_PREPARED: Final = """
SELECT p.gid FROM pg_catalog.pg_locks l
  JOIN pg_catalog.pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid' AND x.pid IS NULL
  JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid
 WHERE l.pid IS NULL AND l.relation = $1::bigint::oid AND p.database = current_database() AND starts_with(p.gid, $2)
 ORDER BY 1 LIMIT 1
"""
_MEMORY: Final = """
CREATE TABLE IF NOT EXISTS {schema}.described (
  sink text, slot text, source_oid bigint, system_identifier text NOT NULL, source_table text[] NOT NULL, target_oid bigint NOT NULL,
  columns jsonb NOT NULL, PRIMARY KEY (sink, slot, source_oid)
)
"""
_RESERVED: Final = ("pg_catalog", "information_schema", "pg_toast")
_REASONS: Final = {
    "42501": "the role must own the table, and needs CREATE on the schema, or on the database if the schema does not exist",
    "0A000": "a view, a rule or a generated column uses the column: drop the dependent object, start again, and create that object again",
    "2BP01": "another object depends on the table: drop the dependent object, start again, and create that object again",
    "42809": "the target is a partition, or not a table: alter the partitioned table",
}
_IN_USE: Final = "this transaction has changed rows of the table, whose deferred constraints are still to be checked: alter the table there, then start again"


EarlierRows = Literal["kept", "truncated", "read again"]
"""What happens to a table's earlier rows: they stay; a truncate follows; or all rows follow again, with all columns of the relation."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The target's table, and the stored description of the source's table.

    :param oid: ``None`` if the target has no such table.
    :param named: the table's last known name on the source; ``None`` without a stored description.
    :param replaced: the source's oid of a former table, whose rows the target's table still has; ``None`` without such a table.
    """

    oid: int | None
    columns: dict[str, TargetAttribute]
    remembered: tuple[Remembered, ...]
    named: list[str] | None = None
    replaced: int | None = None


class Alterer:
    """Creates and alters tables of the target, so that they match the tables of the source.

    :param connection: the connection to the target.
    :param schema: the schema of the sink's own tables.
    :param context: the sink's context.
    :param gid_prefix: the beginning of the GIDs of the sink's prepared transactions.
    :param tables: the mapping of the source's tables to the target's tables.
    """

    def __init__(
        self, connection: Any, schema: str, context: SinkContext, gid_prefix: str, tables: TableMapping
    ) -> None:
        self._connection = connection
        self._own = schema
        self._memory = f"{quoted(schema)}.described"
        self._system_identifier = context.position.system_identifier
        self._key = (context.name, context.position.slot)
        self._gid_prefix = gid_prefix
        self._tables = tables

    async def needed(self, name: Name, relation: Relation, types: Types, earlier: EarlierRows) -> bool:
        """Whether ``apply`` would change the table, or its stored description.

        :raises PermanentError: the table was changed in a way that the sink does not repeat.
        """
        if name[0] == self._own or name[0] in _RESERVED:
            return False
        known = await self._look(name, relation)
        if earlier != "truncated":
            await self._require_no_rows_of_another(name, relation, known)
        found = self._alteration(name, relation, types, known)
        if known.oid is None or found.statements or known.named != [relation.schema, relation.name]:
            return True
        return remember(relation, types, known.columns, known.remembered) != known.remembered

    async def apply(self, name: Name, relation: Relation, types: Types, earlier: EarlierRows) -> None:
        """Create or alter the table, and remember its description. A transaction must be open.

        :raises TransientError, PermanentError: the target rejected it, or the change is one that the sink does not repeat.
        """
        connection, what = self._connection, f'ddl = "apply": {".".join(name)} on the target'
        try:
            # Another sink may be altering the same table.
            await connection.execute(
                "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))",
                f"aiorepl ddl {qualified(name)}",
            )
            known = await self._look(name, relation)
            if earlier != "truncated":
                await self._require_no_rows_of_another(name, relation, known)
            found = self._alteration(name, relation, types, known)
            await self._require_types(name, relation, found)
            if earlier == "read again" and not await self._shares(relation, known):
                await self._warn_of_nulls(name, relation, found)
            elif earlier != "truncated":
                await self._require_certain(name, relation, found)
            if found.statements:
                await require_alterable(connection, name)
            if found.statements and known.oid is not None:
                await self._require_no_lock_of_ours(name, known.oid)
            if found.creates:
                await self._create_schema(name[0])
            for statement in found.statements:
                await self._execute(statement)
            await self._remember(name, relation, types)
        except asyncpg.ObjectInUseError:
            raise PermanentError(f"postgres: {what}: {_IN_USE}") from None
        except asyncpg.PostgresError as error:
            reason = None if is_transient(error) else _REASONS.get(error.sqlstate or "")
            raise translate(error, what, reason) from None

    async def former(self, relation: Relation) -> Name | None:
        """Return the target's table with the rows of a table that was renamed since; ``None`` if it was not renamed."""
        if not await self._connection.fetchval(_EXISTS, self._memory):
            return None
        row = await self._connection.fetchrow(
            f"SELECT n.nspname::text AS schema, c.relname::text AS name FROM {self._memory} m "
            "JOIN pg_catalog.pg_class c ON c.oid = m.target_oid::oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE m.sink = $1 AND m.slot = $2 AND m.source_oid = $3 AND m.system_identifier = $4 AND m.source_table <> $5",
            *self._key,
            relation.oid,
            self._system_identifier,
            [relation.schema, relation.name],
        )
        return None if row is None else (row["schema"], row["name"])

    def _alteration(self, name: Name, relation: Relation, types: Types, known: _Known) -> Alteration:
        if known.oid is None:
            return creation(name, relation, types)
        return alteration(name, relation, types, known.columns, known.remembered)

    async def _look(self, name: Name, relation: Relation) -> _Known:
        connection = self._connection
        oid: int | None = await connection.fetchval(_OID, *name)
        remembered = None
        if await connection.fetchval(_EXISTS, self._memory):
            remembered = await connection.fetchrow(
                "SELECT source_table, target_oid, columns::text, ARRAY(SELECT ARRAY[n.nspname::text, c.relname::text] FROM pg_catalog.pg_class c "
                "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target_oid::oid) AS found "
                f"FROM {self._memory} WHERE sink = $1 AND slot = $2 AND source_oid = $3 AND system_identifier = $4",
                *self._key,
                relation.oid,
                self._system_identifier,
            )
        if remembered is not None and remembered["target_oid"] != oid:
            if remembered["found"] and remembered["source_table"] != [relation.schema, relation.name]:
                own = tuple(remembered["found"][0])
                statements = renaming(own, name, creates=not await self._has_schema(name[0]))
                before = "" if oid is None else f"rename {qualified(name)} first, or drop it; then "
                raise Refused(
                    f"postgres: table {'.'.join(remembered['source_table'])} was renamed to {relation}, but the target still has the rows in "
                    f"{qualified(own)}: {before}{statements} on the target, or map the table with the option tables, then start again"
                )
            remembered = (
                None  # the description belongs to another table of the target, with other column numbers
            )
        if oid is None:
            return _Known(None, {}, ())
        rows = await connection.fetch(_COLUMNS, oid)
        columns = {
            row["name"]: TargetAttribute(
                row["number"], ColumnType(row["namespace"], row["type"], row["modifier"])
            )
            for row in rows
        }
        if remembered is None:
            return _Known(oid, columns, (), replaced=await self._replaced(oid, relation))
        stored = tuple(map(Remembered.from_json, json.loads(remembered["columns"])))
        return _Known(oid, columns, stored, remembered["source_table"])

    async def _replaced(self, oid: int, relation: Relation) -> int | None:
        if not await self._connection.fetchval(_EXISTS, self._memory):
            return None
        rows = await self._connection.fetch(
            f"SELECT source_oid, source_table FROM {self._memory} WHERE sink = $1 AND slot = $2 AND source_oid <> $3 "
            "AND system_identifier = $4 AND target_oid = $5",
            *self._key,
            relation.oid,
            self._system_identifier,
            oid,
        )
        name, mine = self._tables.target(relation), (relation.schema, relation.name)
        # Several tables of the source may be mapped to one table: such a table has another name on the source, and is not a former table.
        others = [
            row["source_oid"]
            for row in rows
            if tuple(row["source_table"]) == mine or self._tables.named(tuple(row["source_table"])) != name
        ]
        return others[0] if others else None

    async def _shares(self, relation: Relation, known: _Known) -> bool:
        """Whether another source table is mapped to the target's table as well."""
        if known.oid is None or not await self._connection.fetchval(_EXISTS, self._memory):
            return False
        found: bool = await self._connection.fetchval(
            f"SELECT EXISTS (SELECT FROM {self._memory} WHERE target_oid = $1 AND (source_oid <> $2 OR system_identifier <> $3))",
            known.oid,
            relation.oid,
            self._system_identifier,
        )
        return found

    async def _require_no_rows_of_another(self, name: Name, relation: Relation, known: _Known) -> None:
        if known.replaced is not None and await self._has_rows(name):
            raise Refused(
                f"postgres: {relation} is another table than before: the former table was dropped or renamed, and {qualified(name)} on the "
                f"target still has the rows of the former table: DROP TABLE {qualified(name)} on the target, or rename the target's table, then "
                "start again. If other tables are mapped to the target's table, delete only the rows of the former table, and DELETE FROM "
                f"{self._memory} WHERE source_oid = {known.replaced}"
            )

    async def _has_rows(self, name: Name) -> bool:
        found: bool = await self._connection.fetchval(
            f"SELECT EXISTS (SELECT FROM {qualified(name)} LIMIT 1)"
        )
        return found

    async def _require_types(self, name: Name, relation: Relation, found: Alteration) -> None:
        rows = await self._connection.fetch(
            _LACKING, [kind.namespace for _, kind in found.types], [kind.name for _, kind in found.types]
        )
        if rows:
            lacking = {(row["namespace"], row["name"]) for row in rows}
            columns = [column for column, kind in found.types if (kind.namespace, kind.name) in lacking]
            raise Refused(
                f"postgres: the target lacks the type {', '.join(sorted(map(qualified, lacking)))} of "
                f"{', '.join(map(quoted, columns))} of {relation}: create the type, or the column of {'.'.join(name)} "
                "with another type, then start again"
            )

    async def _require_certain(self, name: Name, relation: Relation, found: Alteration) -> None:
        if found.unknown and await self._has_rows(name):
            added = ", ".join(
                f"ADD COLUMN {quoted(column)} {kind}"
                for column, kind in found.types
                if column in found.unknown
            )
            raise Refused(
                f"postgres: {'.'.join(name)} on the target lacks {', '.join(map(quoted, found.unknown))} of {relation}, and the stream "
                f"does not have the values of existing rows: ALTER TABLE {qualified(name)} {added} on the target, then start again, and "
                "read the table again (aiorepl snapshot)"
            )

    async def _warn_of_nulls(self, name: Name, relation: Relation, found: Alteration) -> None:
        if found.unknown and await self._has_rows(name):
            _log.warning(
                "postgres: %s of %s is added to %s on the target, where existing rows have NULL in it until the snapshot has read all rows: if the "
                "snapshot is cancelled or fails, read the table again (aiorepl snapshot)",
                ", ".join(map(quoted, found.unknown)),
                relation,
                ".".join(name),
            )

    async def _require_no_lock_of_ours(self, name: Name, oid: int) -> None:
        gid = await self._connection.fetchval(_PREPARED, oid, self._gid_prefix)
        if gid is not None:
            raise Refused(
                f"postgres: {'.'.join(name)} on the target cannot be altered, because the sink's prepared transaction '{gid}' has locked "
                "the table, and the source ends that transaction only later: commit it or roll it back on the target, as the source does, then start again"
            )

    async def _has_schema(self, schema: str) -> bool:
        exists = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)"
        found: bool = await self._connection.fetchval(exists, schema)
        return found

    async def _create_schema(self, schema: str) -> None:
        # IF NOT EXISTS needs CREATE on the database even if the schema exists, and can fail if another sink creates the schema meanwhile.
        await self._connection.execute(
            "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))",
            f"aiorepl {quoted(schema)}",
        )
        if not await self._has_schema(schema):
            await self._connection.execute(f"CREATE SCHEMA {quoted(schema)}")

    async def _execute(self, statement: str) -> None:
        """Execute DDL. PostgreSQL refuses DDL on a table with pending deferred checks; in this case, run the checks first."""
        connection = self._connection
        await connection.execute("SAVEPOINT aiorepl_ddl")
        try:
            await connection.execute(statement)
        except asyncpg.ObjectInUseError:
            await connection.execute(
                "ROLLBACK TO SAVEPOINT aiorepl_ddl; SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED"
            )
            await connection.execute(statement)
        await connection.execute("RELEASE SAVEPOINT aiorepl_ddl")

    async def _remember(self, name: Name, relation: Relation, types: Types) -> None:
        connection = self._connection
        if not await connection.fetchval(_EXISTS, self._memory):
            await connection.execute(
                "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))",
                f"aiorepl {quoted(self._own)}",
            )
            await require_alterable(connection, (self._own, "described"))
            await connection.execute(_MEMORY.format(schema=quoted(self._own)))
        known = await self._look(name, relation)
        if columns := rounded(relation, types, known.columns):
            _log.warning(
                "postgres: types of %s on the target round or cut values of %s: %s. To keep the values, run ALTER TABLE … ALTER COLUMN … TYPE on the target",
                *(".".join(name), relation, ", ".join(columns)),
            )
        remembered = [
            column.to_json() for column in remember(relation, types, known.columns, known.remembered)
        ]
        await connection.execute(
            f"INSERT INTO {self._memory} (sink, slot, source_oid, system_identifier, source_table, target_oid, columns) "
            "VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb) ON CONFLICT (sink, slot, source_oid) DO UPDATE SET "
            "system_identifier = excluded.system_identifier, source_table = excluded.source_table, "
            "target_oid = excluded.target_oid, columns = excluded.columns",
            *self._key,
            relation.oid,
            self._system_identifier,
            [relation.schema, relation.name],
            known.oid,
            json.dumps(remembered),
        )
