"""The target's table for a relation: looked up in the catalog, and compared with the relation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from aiorepl import PermanentError, Relation
from aiorepl_sinks.postgres.identifiers import Name, qualified, quoted

# Looks up all partitions too, because each may have triggers, constraints and indexes of its own.
_TABLE: Final = """
WITH RECURSIVE whole(oid) AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
  UNION SELECT i.inhrelid FROM whole JOIN pg_inherits i ON i.inhparent = whole.oid
    JOIN pg_class p ON p.oid = i.inhparent AND p.relkind = 'p'
)
SELECT c.oid, c.relkind::text AS kind, c.relrowsecurity AS secured,
  pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS visible, current_user::text AS role,
  EXISTS (SELECT FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM whole)) AS rules,
  EXISTS (SELECT FROM pg_constraint WHERE contype = 'f'
    AND (conrelid IN (SELECT oid FROM whole) OR confrelid IN (SELECT oid FROM whole))) AS refers,
  ARRAY(SELECT DISTINCT tgenabled::text FROM pg_trigger
    WHERE tgrelid IN (SELECT oid FROM whole) AND NOT tgisinternal) AS triggers
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
"""
# Values are cast to the base type without its length, so a value that is too long is an error and not truncated. Keys are compared by the
# operator of the type's default operator class, which only a superuser can create; types without one, such as varchar and arrays, have
# operators in pg_catalog.
_COLUMNS: Final = """
SELECT a.attname::text AS name, pg_catalog.format_type(base.oid, -1) AS type,
  pg_catalog.format_type(a.atttypid, a.atttypmod) AS declared, a.attgenerated <> '' AS generated,
  coalesce((
    SELECT pg_catalog.format('OPERATOR(%I.%s)', n.nspname, o.oprname) FROM pg_opclass c
      JOIN pg_am am ON am.oid = c.opcmethod AND am.amname = 'btree'
      JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
        AND m.amopstrategy = 3
      JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
     WHERE c.opcintype = base.oid AND c.opcdefault
  ), '=') AS equal
FROM pg_attribute a CROSS JOIN LATERAL (
  WITH RECURSIVE domain(oid, typtype, typbasetype) AS (
    SELECT t.oid, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
    UNION ALL SELECT t.oid, t.typtype, t.typbasetype FROM domain d JOIN pg_type t ON t.oid = d.typbasetype
    WHERE d.typtype = 'd'
  ) SELECT oid FROM domain WHERE typtype <> 'd'
) base
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
"""
_INDEXES: Final = """
WITH RECURSIVE whole(oid) AS (
  SELECT $1::oid
  UNION SELECT i.inhrelid FROM whole JOIN pg_inherits i ON i.inhparent = whole.oid
    JOIN pg_class p ON p.oid = i.inhparent AND p.relkind = 'p'
)
SELECT i.indrelid = $1 AS own, i.indisprimary AS primary,
  i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AS usable,
  ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k(attnum, number)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.number <= i.indnkeyatts) AS columns
FROM pg_index i WHERE i.indrelid IN (SELECT oid FROM whole) AND (i.indisunique OR i.indisexclusion) AND i.indisvalid
"""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target that the source sends.

    :param index: the column's index in the source's rows.
    :param type: the type that values are cast to: without a length; for a domain, its base type.
    :param declared: the declared type.
    :param generated: whether the target computes the column, so that it is not written.
    :param equal: the operator that compares two values, in SQL.
    """

    name: str
    index: int
    type: str
    declared: str
    generated: bool = False
    equal: str = "="

    def cast(self, text: str) -> str:
        """Return an expression that converts ``text``, an expression of type text, to the column's type."""
        if self.type == "regclass":
            # The text "-" stands for no table. The input function accepts it; a cast from text does not.
            return f"pg_catalog.regclassin({text}::cstring)"
        return f"{text}::{self.type}"


@dataclass(frozen=True, eq=False)
class Target:
    """A table of the target, for one relation.

    :param name: schema and table.
    :param columns: the columns that the source sends, in its order.
    :param key: the indexes of the key's columns; ``None``: a row is identified by all its columns.
    :param unique: whether a unique index on the key exists that ON CONFLICT can use.
    :param commutes: whether only the last state of each row is visible after the transaction: the table has no other unique
        index, no foreign key, trigger or rule, and no column that the source does not send. Then the order of changes to
        different rows, and the states between the first and the last of one row, make no difference.
    :param copies: whether COPY can write to it.
    :param only: whether UPDATE, DELETE and TRUNCATE need ONLY; not for a partitioned table.
    """

    name: Name
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...] | None
    unique: bool = True
    commutes: bool = True
    copies: bool = True
    only: bool = field(default=True)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The indexes of the columns that are written."""
        return tuple(column.index for column in self.columns if not column.generated)

    @property
    def table(self) -> str:
        """The table for UPDATE, DELETE and TRUNCATE. ONLY excludes tables that inherit from it; their own changes arrive."""
        return f"ONLY {qualified(self.name)}" if self.only else qualified(self.name)

    def __str__(self) -> str:
        return ".".join(self.name)


async def find(connection: Any, name: Name, relation: Relation, *, upsert: bool, replica: bool) -> Target:
    """Look up the target's table, and check that the changes of ``relation`` can be applied to it.

    :param upsert: whether rows need a unique index on their key.
    :param replica: whether triggers and foreign keys do not fire.
    :raises PermanentError: if the table is missing, lacks columns or a unique index, or may not be used.
    """
    shown = ".".join(name)
    table = await _table(connection, name)
    if table is None:
        raise PermanentError(
            f"postgres: the target has no table {shown} for {relation}: create it, map it to another with the option tables, or "
            "remove it from the publication or by a selection"
        )
    found = {row["name"]: row for row in await connection.fetch(_COLUMNS, table["oid"])}
    missing = [column for column in relation.names if column not in found]
    if missing:
        raise PermanentError(
            f"postgres: {shown} on the target lacks {', '.join(map(quoted, missing))} of {relation}: ALTER TABLE … ADD "
            "COLUMN there, or remove it by a selection; then start again"
        )
    columns = tuple(
        TargetColumn(
            column,
            number,
            *(found[column][name] for name in ("type", "declared", "generated", "equal")),
        )
        for number, column in enumerate(relation.names)
    )
    indexes = await connection.fetch(_INDEXES, table["oid"])
    key = _key(relation, indexes)
    relation.require_distinct(key or ())
    names = None if key is None else {relation.names[number] for number in key}
    unique = any(index["own"] and index["usable"] and set(index["columns"]) == names for index in indexes)
    if upsert and names is not None and not unique:
        listed = ", ".join(quoted(relation.names[number]) for number in key or ())
        raise PermanentError(
            f"postgres: {shown} on the target has no unique index on the key of {relation} that ON CONFLICT could use: "
            f'CREATE UNIQUE INDEX ON {qualified(name)} ({listed}), or choose mode = "strict"'
        )
    firing = {"R", "A"} if replica else {"O", "A"}
    own = [column for column, row in found.items() if column not in relation.names and not row["generated"]]
    return Target(
        name,
        columns,
        key,
        unique=unique,
        commutes=unique
        and all(set(index["columns"]) == names and index["usable"] for index in indexes)
        and not (table["rules"] or own or (table["refers"] and not replica))
        and firing.isdisjoint(table["triggers"]),
        copies=not table["rules"] and not table["secured"] and bool(columns),
        only=table["kind"] == "r",
    )


async def find_without_columns(connection: Any, name: Name) -> Target | None:
    """Look up a table of the target that is going to be truncated; ``None`` if the target lacks it.

    :raises PermanentError: the table may not be used.
    """
    table = await _table(connection, name)
    return None if table is None else Target(name, (), None, only=table["kind"] == "r")


async def _table(connection: Any, name: Name) -> Any:
    shown = ".".join(name)
    table = await connection.fetchrow(_TABLE, *name)
    if table is not None and not table["visible"]:
        raise PermanentError(
            f"postgres: the sink's role may not use the schema of {shown}: GRANT USAGE ON SCHEMA {quoted(name[0])} TO "
            f"{quoted(table['role'])}"
        )
    if table is not None and table["kind"] not in ("r", "p"):
        raise PermanentError(
            f"postgres: {shown} on the target is not a table: map it to one with the option tables"
        )
    return table


def _key(relation: Relation, indexes: list[Any]) -> tuple[int, ...] | None:
    """Return the indexes of the replica identity's columns; without one, of the target's primary key."""
    if relation.key:
        return relation.key
    for index in indexes:
        if index["own"] and index["primary"] and set(index["columns"]) <= set(relation.names):
            return tuple(number for number, column in enumerate(relation.names) if column in index["columns"])
    return None
