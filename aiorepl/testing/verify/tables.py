"""The tables of the writers, in a separate schema.

====================  ============================================================================================
``accounts``          rows with a key, changed all the time; ``doc`` is TOASTed, ``version`` counts the changes
``entries``           no key: rows are only added, many at once, and truncated
``parts``             partitioned; rows move from one partition to the other
``notes``             REPLICA IDENTITY FULL, a key of two columns
``ledger``            a row for each transaction, by which the outcome of every one is known
====================  ============================================================================================
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl.testing.verify.history import Tables

SCHEMA: Final = "aiorepl_verify"

COLUMNS: Final = {
    "accounts": ("id", "version", "stamp", "note", "doc"),
    "entries": ("n", "stamp", "note"),
    "parts_0": ("id", "g", "stamp"),
    "parts_1": ("id", "g", "stamp"),
    "notes": ("a", "b", "version", "stamp", "doc"),
    "ledger": ("writer", "number"),
}
KEYS: Final = {
    "accounts": ("id",),
    "entries": ("n",),
    "parts_0": ("id", "g"),
    "parts_1": ("id", "g"),
    "notes": ("a", "b"),
    "ledger": ("writer", "number"),
}
# Columns that may be TOASTed; their values are compared by digest.
LONG: Final = frozenset({"doc"})

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
CREATE TABLE {schema}.ledger (writer int, number int, PRIMARY KEY (writer, number));
"""

_FILL: Final = """
INSERT INTO {schema}.accounts SELECT i, 1, 'initial', 'n' || i, CASE WHEN i % 3 = 0 THEN repeat(md5(i::text), 100) END
  FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.entries SELECT -i, 'initial', NULL FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.parts SELECT i, i % 2, 'initial' FROM generate_series(1, {rows}) i;
INSERT INTO {schema}.notes SELECT md5(i::text), i, 1, 'initial', repeat('d', 3000) FROM generate_series(1, {rows}) i;
"""


def create(*, rows: int, schema: str = SCHEMA) -> str:
    """Return the statements that create the schema, with this many rows in each table."""
    return (_CREATE + _FILL).format(schema=schema, rows=rows)


def selected(table: str) -> str:
    """Return the table's columns as a select list, with digests for long ones."""
    return ", ".join(
        f"CASE WHEN length({column}) > 64 THEN 'md5:' || md5({column}) ELSE {column} END AS {column}"
        if column in LONG
        else column
        for column in COLUMNS[table]
    )


async def contents(connection: Any, schema: str = SCHEMA) -> Tables:
    """Read all tables, in one transaction.

    :param connection: of asyncpg.
    """
    tables: Tables = {}
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for table, key in KEYS.items():
            rows = await connection.fetch(f"SELECT {selected(table)} FROM {schema}.{table}")
            tables[table] = {tuple(row[column] for column in key): dict(row) for row in rows}
    return tables
