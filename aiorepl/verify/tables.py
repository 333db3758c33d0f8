"""The tables of the writers, in a separate schema.

====================  ============================================================================================
``accounts``          rows with a key, changed all the time; ``doc`` is TOASTed, ``version`` counts the changes
``entries``           no key: rows are only added, many at once, and truncated
``parts``             partitioned; rows move from one partition to the other
``notes``             REPLICA IDENTITY FULL, a key of two columns
``items``             keys of numeric(20, 0) beyond int64 and of uuid; an enum, a domain and a composite type
``narrow``            a publication may have a row filter (``kind > 0``) and a column list (without ``hidden``) for it; ``size`` is
                      generated, if it is there
``echoes``            rows of transactions with a replication origin
``tree``, ``base``    parents without rows: children are created, loaded, attached, detached, dropped and created again
``guest_…``           rows of one writer, who adds the table to the publication and drops it from there
``traps``             partitioned, if it is there; its key has values of a domain whose CHECK tells if the consumer's role calls it
``ledger``            a row for each transaction, by which the outcome of every one is known
====================  ============================================================================================

The children of ``tree`` (partitions) are named ``leaf_…``, those of ``base`` (inheritance) ``heir_…``. While a child is attached,
its rows have a secret, which a mask of the parent's column must hide; before and after, the secret is null. The parents may be
renamed to ``…_away``, and moved to a schema whose name ends with ``_moved``.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl.verify.history import (
    Key,
    Operation,
    Row,
    Tables,
)

PARENTS: Final = {"leaf": "tree", "heir": "base"}
"""The parents, by the first word of their children's names."""

SCHEMA: Final = "aiorepl_verify"

COLUMNS: Final = {
    "accounts": ("id", "version", "stamp", "note", "doc"),
    "entries": ("n", "stamp", "note"),
    "parts_0": ("id", "g", "stamp"),
    "parts_1": ("id", "g", "stamp"),
    "notes": ("a", "b", "version", "stamp", "doc"),
    "items": ("id", "tag", "version", "stamp", "mood", "price", "place"),
    "narrow": ("id", "kind", "version", "stamp", "hidden"),
    "echoes": ("n", "stamp"),
    "traps_0": ("k", "g", "stamp"),
    "ledger": ("writer", "number"),
}
_CHILD_COLUMNS: Final = ("id", "g", "stamp", "secret")
CHILD_KEY: Final = ("id", "g")
KEYS: Final = {
    "accounts": ("id",),
    "entries": ("n",),
    "parts_0": ("id", "g"),
    "parts_1": ("id", "g"),
    "notes": ("a", "b"),
    "items": ("id", "tag"),
    "narrow": ("id", "kind"),
    "echoes": ("n",),
    "traps_0": ("k", "g"),
    "ledger": ("writer", "number"),
}
# Columns that may be TOASTed; their values are compared by digest.
LONG: Final = frozenset({"doc"})
# Columns of types that native events have as text.
TEXT: Final = frozenset(
    {("items", name) for name in ("id", "tag", "mood", "price", "place")} | {("traps_0", "k")}
)
TRAPPED: Final = "aiorepl_verify: executed"
"""The text in the server's log if a consumer has executed code of the schema."""
# A consumer's connections have application names, the writers' have none.
_TRAP: Final = """
CREATE FUNCTION {schema}.trap(value text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('application_name') LIKE 'aiorepl%' AND current_database() NOT LIKE '%target' THEN
    RAISE LOG '{told}';
  END IF;
  RETURN true;
END $$;
CREATE DOMAIN {schema}.trapped AS text CHECK ({schema}.trap(VALUE));
CREATE TABLE {schema}.traps (k {schema}.trapped[], g int, stamp text NOT NULL, PRIMARY KEY (k, g)) PARTITION BY LIST (g);
CREATE TABLE {schema}.traps_0 PARTITION OF {schema}.traps FOR VALUES IN (0);
INSERT INTO {schema}.traps SELECT ARRAY[md5(i::text)], 0, 'initial' FROM generate_series(1, {rows}) i;
"""

_CREATE: Final = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.accounts (id int PRIMARY KEY, version int NOT NULL, stamp text NOT NULL, note text, doc text);
ALTER TABLE {schema}.accounts ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE {schema}.entries (n int NOT NULL, stamp text NOT NULL, note text);
CREATE TABLE {schema}.parts (id int, g int, stamp text NOT NULL, PRIMARY KEY (id, g)) PARTITION BY LIST (g);
CREATE TABLE {schema}.parts_0 PARTITION OF {schema}.parts FOR VALUES IN (0);
CREATE TABLE {schema}.parts_1 PARTITION OF {schema}.parts FOR VALUES IN (1);
CREATE TABLE {schema}.notes (a text, b int, version int NOT NULL, stamp text NOT NULL, doc text, PRIMARY KEY (a, b));
ALTER TABLE {schema}.notes ALTER doc SET STORAGE EXTERNAL;
ALTER TABLE {schema}.notes REPLICA IDENTITY FULL;
CREATE TYPE {schema}.mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN {schema}.price AS numeric(12, 2) CHECK (VALUE >= 0);
CREATE TYPE {schema}.place AS (x int, label text);
CREATE TABLE {schema}.items (
  id numeric(20, 0), tag uuid, version int NOT NULL, stamp text NOT NULL, mood {schema}.mood, price {schema}.price,
  place {schema}.place, PRIMARY KEY (id, tag));
CREATE TABLE {schema}.tree (id int, g int, stamp text NOT NULL, secret text, PRIMARY KEY (id, g)) PARTITION BY LIST (g);
CREATE TABLE {schema}.base (id int, g int, stamp text NOT NULL, secret text, PRIMARY KEY (id, g));
CREATE TABLE {schema}.narrow (
  id int, kind int, version int NOT NULL, stamp text NOT NULL, hidden text {size}, PRIMARY KEY (id, kind));
CREATE TABLE {schema}.echoes (n int PRIMARY KEY, stamp text NOT NULL);
CREATE TABLE {schema}.ledger (writer int, number int, PRIMARY KEY (writer, number));
"""

_FILL: Final = """
INSERT INTO {schema}.accounts SELECT i, 1, 'initial', 'n' || i, CASE WHEN i % 3 = 0 THEN repeat(md5(i::text), 100) END
  FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.entries SELECT -i, 'initial', NULL FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.parts SELECT i, i % 2, 'initial' FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.notes SELECT md5(i::text), i, 1, 'initial', repeat('d', 3000) FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.items SELECT {item_id}, {item_tag}, 1, 'initial', 'ok', i / 4.0, ROW(i, 'place ' || i)::{schema}.place
  FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.narrow SELECT i, i % 2, 1, 'initial', 'hidden ' || i FROM generate_series(1, {rows}) i;
"""
_CHILD: Final = """
CREATE TABLE {schema}.{child} (secret text, stamp text NOT NULL, g int, id int, PRIMARY KEY (id, g));
INSERT INTO {schema}.{child} (id, g, stamp, secret) SELECT -i, {group}, 'initial', 'secret ' || i FROM generate_series(1, {rows} / 4) i;
"""
_ATTACH: Final = {
    "leaf": "ALTER TABLE {schema}.tree ATTACH PARTITION {schema}.leaf_{writer}_0 FOR VALUES IN ({writer}00);",
    "heir": "ALTER TABLE {schema}.heir_{writer}_0 INHERIT {schema}.base;",
}
_SIZE: Final = ", size int GENERATED ALWAYS AS (version * 2) STORED"


def create(
    *,
    rows: int,
    schema: str = SCHEMA,
    generated: bool = False,
    renames: bool = False,
    children: int = 0,
    guests: int = 0,
    traps: bool = False,
) -> str:
    """Return the statements that create the schema, with this many rows in each table.

    :param generated: whether ``narrow`` has a generated column.
    :param renames: whether there is a schema to which parents are moved.
    :param children: the number of writers with a child of each parent that has rows from the beginning.
    :param guests: the number of ``guest_…`` tables.
    :param traps: whether there is ``traps``.
    """
    item_id, item_tag = item_key("i")
    statements = [_CREATE, _FILL]
    statements += ["CREATE SCHEMA {schema}_moved;"] if renames else []
    statements += [
        _CHILD.replace("{child}", f"{kind}_{writer}_0").replace("{group}", str(writer * 100))
        + attach.replace("{writer}", str(writer))
        for writer in range(1, children + 1)
        for kind, attach in _ATTACH.items()
    ]
    statements += [
        f"CREATE TABLE {{schema}}.guest_{number} (id int, g int, stamp text NOT NULL, secret text, PRIMARY KEY (id, g));"
        for number in range(1, guests + 1)
    ]
    statements += [_TRAP] if traps else []
    return "".join(statements).format(
        schema=schema,
        rows=rows,
        item_id=item_id,
        item_tag=item_tag,
        size=_SIZE if generated else "",
        told=TRAPPED,
    )


def item_key(number: str) -> tuple[str, str]:
    """Return the key of an item as SQL, from the SQL of a number. No float64 has such an id exactly."""
    return f"18000000000000000001::numeric + {number}", f"md5(({number})::text)::uuid"


def parent(table: str) -> str:
    """Return the table that is, or may be, a table's parent; other tables are returned as they are."""
    return PARENTS.get(table.partition("_")[0], table)


def present(table: str, key: Key, row: Row) -> Operation:
    """Return a row of a table as an insert. A child's row has a secret if it was written while the child was attached."""
    attached = row.get("secret") is not None
    return Operation("insert", table, key, row, parent=parent(table) if attached else "")


def shown(table: str, column: str, value: Any) -> Any:
    """Return a value in its compared form: of a place, only the two fields that the type had at first."""
    if (table, column) != ("items", "place") or not isinstance(value, str) or value.count(",") < 2:
        return value
    return f"{','.join(value.rstrip(')').split(',')[:2])})"


def selected(table: str) -> str:
    """Return the table's columns as a select list: long texts as digests, values of some types as text."""
    return ", ".join(
        f"CASE WHEN length({column}) > 64 THEN 'md5:' || md5({column}) ELSE {column} END AS {column}"
        if column in LONG
        else f"{column}::text AS {column}"
        if (table, column) in TEXT
        else column
        for column in COLUMNS.get(table, _CHILD_COLUMNS)
    )


async def contents(connection: Any, schema: str = SCHEMA) -> Tables:
    """Read all tables, in one transaction.

    :param connection: of asyncpg.
    """
    tables: Tables = {}
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        there = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' AND (relname = ANY($2) OR relname ~ $3)",
            schema,
            list(KEYS),
            f"^({'|'.join((*PARENTS, 'guest'))})_",
        )
        for table in sorted(row["relname"] for row in there):
            key = KEYS.get(table, CHILD_KEY)
            rows = await connection.fetch(f"SELECT {selected(table)} FROM {schema}.{table}")
            tables[table] = {tuple(row[column] for column in key): dict(row) for row in rows}
    return tables
