"""A table of the target as the changes of one relation need it, compared with the relation before the first of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from aiorepl import PermanentError, Relation
from aiorepl_sinks.postgres.identifiers import Name, qualified, quoted

# A partitioned table's triggers, constraints and indexes may be its partitions' own, so all of them are looked at.
_TABLE: Final = """
WITH RECURSIVE whole(oid) AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
  UNION SELECT i.inhrelid FROM whole JOIN pg_inherits i ON i.inhparent = whole.oid
    JOIN pg_class p ON p.oid = i.inhparent AND p.relkind = 'p'
)
SELECT c.relkind::text AS kind, c.relrowsecurity AS secured,
  pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS visible, current_user::text AS role,
  EXISTS (SELECT FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM whole)) AS rules,
  EXISTS (SELECT FROM pg_constraint WHERE contype = 'f'
    AND (conrelid IN (SELECT oid FROM whole) OR confrelid IN (SELECT oid FROM whole))) AS refers,
  ARRAY(SELECT DISTINCT tgenabled::text FROM pg_trigger
    WHERE tgrelid IN (SELECT oid FROM whole) AND NOT tgisinternal) AS triggers
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
"""
# Casts are to the base type without its length: what is too long is then an error, and not cut off.
_COLUMNS: Final = """
SELECT a.attname::text AS name, pg_catalog.format_type(base.oid, -1) AS type,
  pg_catalog.format_type(a.atttypid, a.atttypmod) AS declared, a.attgenerated <> '' AS generated
FROM pg_attribute a CROSS JOIN LATERAL (
  WITH RECURSIVE domain(oid, typtype, typbasetype) AS (
    SELECT t.oid, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
    UNION ALL SELECT t.oid, t.typtype, t.typbasetype FROM domain d JOIN pg_type t ON t.oid = d.typbasetype
    WHERE d.typtype = 'd'
  ) SELECT oid FROM domain WHERE typtype <> 'd'
) base
WHERE a.attrelid = format('%I.%I', $1::text, $2::text)::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""
_INDEXES: Final = """
WITH RECURSIVE whole(oid) AS (
  SELECT format('%I.%I', $1::text, $2::text)::regclass::oid
  UNION SELECT i.inhrelid FROM whole JOIN pg_inherits i ON i.inhparent = whole.oid
    JOIN pg_class p ON p.oid = i.inhparent AND p.relkind = 'p'
)
SELECT i.indrelid = format('%I.%I', $1::text, $2::text)::regclass AS own, i.indisprimary AS primary,
  i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AS usable,
  ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.place <= i.indnkeyatts) AS columns
FROM pg_index i WHERE i.indrelid IN (SELECT oid FROM whole) AND (i.indisunique OR i.indisexclusion) AND i.indisvalid
"""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column that the source sends.

    :param place: where it stands in the source's rows.
    :param type: what a text is cast to: the type without length, a domain's base type.
    :param declared: the type as it was declared.
    :param generated: the target computes it itself: it is not written.
    """

    name: str
    place: int
    type: str
    declared: str
    generated: bool = False

    def cast(self, text: str) -> str:
        """An expression for the value that ``text``, an expression of type text, stands for."""
        if (
            self.type == "regclass"
        ):  # the cast has other ideas than the input function of what is no table: "-"
            return f"pg_catalog.regclassin({text}::cstring)"
        return f"{text}::{self.type}"


@dataclass(frozen=True, eq=False)
class Target:
    """A table of the target, for one description of its source.

    :param columns: those that the source sends, in its order.
    :param key: the places of the columns that tell its rows apart; ``None``: only the whole row does.
    :param unique: whether an index guarantees it, which ON CONFLICT can use.
    :param commutes: whether nothing but the last state of each row can be seen once the transaction has committed: no
        other unique index, no foreign key, trigger, rule, or column of the target's own. Then the order of changes to
        different rows, and what comes between the first and the last of one row, makes no difference.
    :param copies: whether COPY can write to it.
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
        """The places of the columns that are written."""
        return tuple(column.place for column in self.columns if not column.generated)

    @property
    def table(self) -> str:
        """The table as UPDATE, DELETE and TRUNCATE have it: without what inherits from it, which is published itself."""
        return f"ONLY {qualified(self.name)}" if self.only else qualified(self.name)

    def __str__(self) -> str:
        return ".".join(self.name)


async def find(connection: Any, name: Name, relation: Relation, *, upsert: bool, replica: bool) -> Target:
    """Look the target's table up and compare it.

    :param upsert: rows must be found by their key.
    :param replica: triggers and foreign keys do not fire.
    :raises PermanentError: when the changes of ``relation`` do not fit.
    """
    told = ".".join(name)
    table = await connection.fetchrow(_TABLE, *name)
    if table is None:
        raise PermanentError(
            f"postgres: the target has no table {told} for {relation}: create it, name another with tables, or leave it "
            "out of the publication or by a selection"
        )
    if not table["visible"]:
        raise PermanentError(
            f"postgres: the sink's role may not use the schema of {told}: GRANT USAGE ON SCHEMA {quoted(name[0])} TO "
            f"{quoted(table['role'])}"
        )
    if table["kind"] not in ("r", "p"):
        raise PermanentError(f"postgres: {told} on the target is not a table: name one with tables")
    found = {row["name"]: row for row in await connection.fetch(_COLUMNS, *name)}
    missing = [column for column in relation.names if column not in found]
    if missing:
        raise PermanentError(
            f"postgres: {told} on the target lacks {', '.join(map(quoted, missing))} of {relation}: ALTER TABLE … ADD "
            "COLUMN there, or drop it by a selection; then start again"
        )
    columns = tuple(
        TargetColumn(
            column, place, found[column]["type"], found[column]["declared"], found[column]["generated"]
        )
        for place, column in enumerate(relation.names)
    )
    indexes = await connection.fetch(_INDEXES, *name)
    key = _key(relation, indexes)
    names = None if key is None else {relation.names[place] for place in key}
    unique = any(index["own"] and index["usable"] and set(index["columns"]) == names for index in indexes)
    if upsert and names is not None and not unique:
        listed = ", ".join(quoted(relation.names[place]) for place in key or ())
        raise PermanentError(
            f"postgres: {told} on the target has no unique index on the key of {relation} that ON CONFLICT could use: "
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


def _key(relation: Relation, indexes: list[Any]) -> tuple[int, ...] | None:
    """The replica identity; where the source has none, the target's primary key will do."""
    if relation.key:
        return relation.key
    for index in indexes:
        if index["own"] and index["primary"] and set(index["columns"]) <= set(relation.names):
            return tuple(place for place, column in enumerate(relation.names) if column in index["columns"])
    return None
