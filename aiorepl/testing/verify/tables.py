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
``ledger``            a row for each transaction, by which the outcome of every one is known
====================  ============================================================================================

The children of ``tree`` (partitions) are named ``leaf_…``, those of ``base`` (inheritance) ``heir_…``. While a child is attached, its
rows have a secret, which a mask of the parent's column must hide; before and after, the secret is null.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl.testing.verify.history import Tables

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
    "ledger": ("writer", "number"),
}
# Columns that may be TOASTed; their values are compared by digest.
LONG: Final = frozenset({"doc"})
# Columns of types that native events have as text.
TEXT: Final = frozenset({("items", name) for name in ("id", "tag", "mood", "price", "place")})

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
_SIZE: Final = ", size int GENERATED ALWAYS AS (version * 2) STORED"


def create(*, rows: int, schema: str = SCHEMA, generated: bool = False) -> str:
    """Return the statements that create the schema, with this many rows in each table.

    :param generated: whether ``narrow`` has a generated column.
    """
    item_id, item_tag = item_key("i")
    size = _SIZE if generated else ""
    return (_CREATE + _FILL).format(schema=schema, rows=rows, item_id=item_id, item_tag=item_tag, size=size)


def item_key(number: str) -> tuple[str, str]:
    """Return the key of an item as SQL, from the SQL of a number. No float64 has such an id exactly."""
    return f"18000000000000000001::numeric + {number}", f"md5(({number})::text)::uuid"


def parent(table: str) -> str:
    """Return the table that is, or may be, a table's parent; other tables are returned as they are."""
    return PARENTS.get(table.partition("_")[0], table)


def selected(table: str) -> str:
    """Return the table's columns as a select list: long ones as digests, those of some types as text."""
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
        children = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' AND relname ~ $2",
            schema,
            f"^({'|'.join(PARENTS)})_",
        )
        for table, key in {**KEYS, **{row["relname"]: CHILD_KEY for row in children}}.items():
            rows = await connection.fetch(f"SELECT {selected(table)} FROM {schema}.{table}")
            tables[table] = {tuple(row[column] for column in key): dict(row) for row in rows}
    return tables
