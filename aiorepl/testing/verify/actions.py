"""The actions of transactions: each runs statements, and returns the operations that they performed.

The statements themselves return the rows, in the order in which the server changed them. So writers may change the same rows
concurrently.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiorepl.testing.verify.history import Operation
from aiorepl.testing.verify.tables import KEYS, selected

# A value of this many pages is TOASTed; STORAGE EXTERNAL does not compress it.
_LONG: Final = "repeat(md5(random()::text), 100)"
# Each block with an exception handler is a savepoint.
_SAVEPOINTS: Final = """
DO $$
BEGIN
  FOR i IN {first}..{last} LOOP
    BEGIN
      INSERT INTO {table} (n, stamp, note) VALUES (i, '{stamp}', 'entry ' || i);
      IF i % 3 = 0 THEN RAISE EXCEPTION 'rolled back'; END IF;
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
  END LOOP;
END $$
"""


@dataclass(slots=True)
class Scope:
    """The context of an action.

    :param connection: an asyncpg connection, in a transaction.
    :param chance: the writer's random generator.
    :param stamp: a text that names the transaction in its rows.
    :param keys: the number of keys; small, so that writers conflict.
    :param largest: the largest number of rows that one statement writes.
    :param next_entry: the first number of the writer's next rows of ``entries``.
    :param added: columns that were added to ``accounts``, with their defaults.
    """

    connection: Any
    schema: str
    chance: random.Random
    stamp: str
    keys: int
    largest: int
    next_entry: int
    added: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> int:
        """Draw a key."""
        return self.chance.randrange(1, self.keys + 1)

    async def rows(self, table: str, statement: str, *arguments: object) -> list[dict[str, Any]]:
        """Run a statement on a table, and return the rows that it changed."""
        query = statement.format(t=f"{self.schema}.{table}", returning=f"RETURNING {selected(table)}")
        return [dict(row) for row in await self.connection.fetch(query, *arguments)]


Action = Callable[[Scope], Awaitable[list[Operation]]]


async def insert(scope: Scope) -> list[Operation]:
    """Insert rows into ``accounts`` where keys are free."""
    statement = (
        f"INSERT INTO {{t}} (id, version, stamp, note, doc) SELECT i, 1, $1, 'new', CASE WHEN i % 2 = 0 THEN {_LONG} END "
        "FROM generate_series($2::int, $3::int) i ON CONFLICT DO NOTHING {returning}"
    )
    first = scope.key
    return _inserts("accounts", await scope.rows("accounts", statement, scope.stamp, first, first + 3))


async def update(scope: Scope) -> list[Operation]:
    """Update rows of ``accounts``, but not their TOASTed columns."""
    statement = "UPDATE {t} SET version = version + 1, stamp = $1 WHERE id BETWEEN $2 AND $3 {returning}"
    first = scope.key
    rows = await scope.rows("accounts", statement, scope.stamp, first, first + scope.chance.choice([0, 0, 5]))
    return _updates("accounts", rows, untouched=("doc",))


async def update_document(scope: Scope) -> list[Operation]:
    """Update a TOASTed column of ``accounts``."""
    statement = (
        f"UPDATE {{t}} SET version = version + 1, stamp = $1, doc = {_LONG} WHERE id = $2 {{returning}}"
    )
    return _updates("accounts", await scope.rows("accounts", statement, scope.stamp, scope.key))


async def delete(scope: Scope) -> list[Operation]:
    """Delete rows of ``accounts``."""
    rows = await scope.rows("accounts", "DELETE FROM {t} WHERE id = $1 {returning}", scope.key)
    return [Operation("delete", "accounts", (row["id"],)) for row in rows]


async def move(scope: Scope) -> list[Operation]:
    """Give a row of ``accounts`` another key."""
    return await _move(scope, scope.key, scope.key)


async def swap(scope: Scope) -> list[Operation]:
    """Exchange the keys of two rows of ``accounts``."""
    one, other = sorted((scope.key, scope.key))
    free = -scope.chance.randrange(1, 1 << 30)
    return [
        *await _move(scope, one, free),
        *await _move(scope, other, one),
        *await _move(scope, free, other),
    ]


async def _move(scope: Scope, key: int, other: int) -> list[Operation]:
    statement = (
        "UPDATE {t} SET id = $3, version = version + 1, stamp = $1 "
        "WHERE id = $2 AND NOT EXISTS (SELECT FROM {t} WHERE id = $3) {returning}"
    )
    rows = await scope.rows("accounts", statement, scope.stamp, key, other)
    return [
        Operation("update", "accounts", (other,), row, moved=(key,), untouched=frozenset({"doc"}))
        for row in rows
    ]


async def add_entries(scope: Scope, count: int | None = None) -> list[Operation]:
    """Insert many rows into ``entries``, with one statement.

    :param count: their number; ``None``: drawn.
    """
    count = count or scope.chance.choice([1, 3, 20, 200, scope.largest])
    first, scope.next_entry = scope.next_entry, scope.next_entry + count
    statement = "INSERT INTO {t} (n, stamp, note) SELECT i, $1, 'entry ' || i FROM generate_series($2::int, $3::int) i"
    await scope.rows("entries", statement, scope.stamp, first, first + count - 1)
    # Without RETURNING, which would take as long as the insert itself.
    rows = ({"n": n, "stamp": scope.stamp, "note": f"entry {n}"} for n in range(first, first + count))
    return _inserts("entries", rows)


async def add_in_savepoints(scope: Scope, count: int) -> list[Operation]:
    """Insert rows into ``entries``, each in a savepoint of its own; every third savepoint is rolled back."""
    first, scope.next_entry = scope.next_entry, scope.next_entry + count
    await scope.connection.execute(
        _SAVEPOINTS.format(
            table=f"{scope.schema}.entries", stamp=scope.stamp, first=first, last=first + count - 1
        )
    )
    kept = [n for n in range(first, first + count) if n % 3]
    return _inserts("entries", ({"n": n, "stamp": scope.stamp, "note": f"entry {n}"} for n in kept))


async def truncate(scope: Scope) -> list[Operation]:
    """Truncate ``entries``."""
    await scope.rows("entries", "TRUNCATE {t}")
    return [Operation("truncate", "entries")]


async def change_partition(scope: Scope) -> list[Operation]:
    """Move a row of ``parts`` to the other partition, which is a DELETE and an INSERT."""
    found = await scope.connection.fetch(
        f"UPDATE {scope.schema}.parts SET g = 1 - g, stamp = $1 WHERE id = $2 RETURNING id, g, stamp",
        scope.stamp,
        scope.key,
    )
    operations = []
    for row in found:
        operations.append(Operation("delete", f"parts_{1 - row['g']}", (row["id"], 1 - row["g"])))
        operations.append(Operation("insert", f"parts_{row['g']}", (row["id"], row["g"]), dict(row)))
    return operations


async def update_note(scope: Scope) -> list[Operation]:
    """Update a row of ``notes``; its whole old row is sent."""
    statement = "UPDATE {t} SET version = version + 1, stamp = $1 WHERE b = $2 {returning}"
    return _updates("notes", await scope.rows("notes", statement, scope.stamp, scope.key), untouched=("doc",))


async def add_column(scope: Scope) -> list[Operation]:
    """Add a column with a default to ``accounts``."""
    # Never used again, not even after a rollback to a savepoint: each name has one default.
    name = f"x_{scope.stamp.replace('.', '_')}_{len(scope.added)}"
    value = scope.chance.randrange(1000)
    await scope.connection.execute(
        f"ALTER TABLE {scope.schema}.accounts ADD COLUMN {name} int DEFAULT {value}"
    )
    scope.added[name] = value
    return []


async def drop_column(scope: Scope) -> list[Operation]:
    """Drop a column that this transaction or an earlier one of the writer has added."""
    if scope.added:
        name = scope.chance.choice(sorted(scope.added))
        await scope.connection.execute(f"ALTER TABLE {scope.schema}.accounts DROP COLUMN IF EXISTS {name}")
    return []


async def change_identity(scope: Scope) -> list[Operation]:
    """Change the replica identity of ``accounts``."""
    identity = scope.chance.choice(["FULL", "DEFAULT"])
    await scope.connection.execute(f"ALTER TABLE {scope.schema}.accounts REPLICA IDENTITY {identity}")
    return []


# How often each action is drawn.
ACTIONS: Final[dict[Action, int]] = {
    insert: 12,
    update: 25,
    update_document: 8,
    delete: 8,
    move: 6,
    swap: 5,
    add_entries: 14,
    truncate: 1,
    change_partition: 8,
    update_note: 8,
}
SCHEMA_CHANGES: Final[dict[Action, int]] = {add_column: 1, drop_column: 1, change_identity: 1}


def _inserts(table: str, rows: Any) -> list[Operation]:
    return [Operation("insert", table, tuple(row[column] for column in KEYS[table]), row) for row in rows]


def _updates(table: str, rows: list[dict[str, Any]], untouched: tuple[str, ...] = ()) -> list[Operation]:
    return [
        Operation(
            "update",
            table,
            tuple(row[column] for column in KEYS[table]),
            row,
            untouched=frozenset(untouched),
        )
        for row in rows
    ]
