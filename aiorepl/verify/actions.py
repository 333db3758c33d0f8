"""The actions of transactions: each runs statements, and returns the operations that they performed.

The statements themselves return the rows, in the order in which the server changed them. So writers may change the same rows
concurrently.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiorepl.verify.history import Operation
from aiorepl.verify.tables import (
    CHILD_KEY,
    KEYS,
    PARENTS,
    item_key,
    selected,
)

# A value of this many pages is TOASTed; STORAGE EXTERNAL does not compress it.
_LONG: Final = "repeat(md5(random()::text), 100)"
# The minimum time in seconds between the load of a child and its attachment.
_DESCRIBED: Final = 0.6
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
    :param writer: the writer's number; only this writer changes its children of ``tree`` and ``base``.
    :param drops: whether children are dropped.
    :param detaches: whether children are detached.
    :param loaded: the children that were loaded and not attached yet, with the time.
    """

    connection: Any
    schema: str
    chance: random.Random
    stamp: str
    keys: int
    largest: int
    next_entry: int
    added: dict[str, Any] = field(default_factory=dict)
    writer: int = 0
    drops: bool = False
    detaches: bool = True
    loaded: dict[str, float] = field(default_factory=dict)

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

    :param count: the number of rows; ``None``: drawn at random.
    """
    count = count or scope.chance.choice([1, 3, 20, 200, scope.largest])
    first, scope.next_entry = scope.next_entry, scope.next_entry + count
    statement = "INSERT INTO {t} (n, stamp, note) SELECT i, $1, 'entry ' || i FROM generate_series($2::int, $3::int) i"
    await scope.rows("entries", statement, scope.stamp, first, first + count - 1)
    # The statement has no RETURNING, which would take as long as the insert itself.
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


async def write_item(scope: Scope) -> list[Operation]:
    """Insert, update, move or delete an item. Its new key differs from the old one by less than a float64 can tell."""
    (number, tag), (next_number, _) = item_key("$1::int"), item_key("$1::int + 1")
    this = f"id = {number} AND tag = {tag}"
    kind = scope.chance.choice(["insert", "update", "update", "move", "delete"])
    if kind == "insert":
        # By names: the composite type may have got another attribute.
        statement = (
            "INSERT INTO {t} (id, tag, version, stamp, mood, price, place.x, place.label) "
            f"VALUES ({number}, {tag}, 1, $2, 'happy', 2.5, $1, 'new') ON CONFLICT DO NOTHING {{returning}}"
        )
    elif kind == "update":
        statement = (
            "UPDATE {t} SET version = version + 1, stamp = $2, mood = 'sad', price = price + 0.01, "
            f"place.x = version, place.label = stamp WHERE {this} {{returning}}"
        )
    elif kind == "move":
        statement = (
            f"UPDATE {{t}} SET version = version + 1, stamp = $2, id = {next_number} WHERE {this} AND NOT EXISTS "
            f"(SELECT FROM {{t}} WHERE id = {next_number} AND tag = {tag}) {{returning}}"
        )
    else:
        statement = f"DELETE FROM {{t}} WHERE {this} AND stamp <> $2 {{returning}}"
    rows = await scope.rows("items", statement, scope.key, scope.stamp)
    if kind == "insert":
        return _inserts("items", rows)
    if kind == "delete":
        return [Operation("delete", "items", (row["id"], row["tag"])) for row in rows]
    return [
        replace(one, moved=(str(int(one.key[0]) - 1), one.key[1])) if kind == "move" else one
        for one in _updates("items", rows)
    ]


async def emit_message(scope: Scope) -> list[Operation]:
    """Emit a transactional logical message."""
    content = f"{scope.stamp}.{scope.chance.randrange(1 << 30)}".encode()
    await scope.connection.execute(
        "SELECT pg_logical_emit_message(true, $1, $2::bytea)", scope.schema, content
    )
    return [Operation("message", scope.schema, new={"content": base64.b64encode(content).decode()})]


async def emit_notice(scope: Scope) -> str:
    """Emit a logical message that is not transactional, and return its content."""
    content = f"notice of {scope.stamp}".encode()
    await scope.connection.execute(
        "SELECT pg_logical_emit_message(false, $1, $2::bytea)", scope.schema, content
    )
    return base64.b64encode(content).decode()


async def echo(scope: Scope) -> list[Operation]:
    """Insert rows into ``echoes``."""
    first, scope.next_entry = scope.next_entry, scope.next_entry + 3
    statement = "INSERT INTO {t} SELECT i, $1 FROM generate_series($2::int, $3::int) i {returning}"
    return _inserts("echoes", await scope.rows("echoes", statement, scope.stamp, first, first + 2))


async def write_narrow(scope: Scope) -> list[Operation]:
    """Insert, update or delete a row of ``narrow``, or move it past the row filter."""
    kind = scope.chance.choice(["insert", "update", "update", "move", "move", "delete"])
    if kind == "insert":
        statement = (
            "INSERT INTO {t} (id, kind, version, stamp, hidden) VALUES ($1, $1 % 2, 1, $2, 'hidden') "
            "ON CONFLICT DO NOTHING {returning}"
        )
        return _inserts("narrow", await scope.rows("narrow", statement, scope.key, scope.stamp))
    if kind == "delete":
        rows = await scope.rows("narrow", "DELETE FROM {t} WHERE id = $1 {returning}", scope.key)
        return [Operation("delete", "narrow", (row["id"], row["kind"])) for row in rows]
    moved = kind == "move"
    statement = (
        f"UPDATE {{t}} SET version = version + 1, stamp = $2, hidden = 'hidden ' || version {', kind = 1 - kind' if moved else ''} "
        f"WHERE id = $1 {'AND NOT EXISTS (SELECT FROM {t} o WHERE o.id = $1 AND o.kind = 1 - {t}.kind)' if moved else ''} {{returning}}"
    )
    updates = _updates("narrow", await scope.rows("narrow", statement, scope.key, scope.stamp))
    return [replace(one, moved=(one.key[0], 1 - one.key[1])) if moved else one for one in updates]


async def change_child(scope: Scope) -> list[Operation]:
    """Create, load, attach, write, detach or drop a child of ``tree`` or ``base``. Each step may be in a transaction of its own.

    A dropped child's name is used again. Only attached children get secrets.
    """
    name = f"{scope.chance.choice(sorted(PARENTS))}_{scope.writer}_{scope.chance.randrange(3)}"
    # Children that were loaded some time ago, so that consumers have learned that the tables have no parent.
    known = [each for each, at in scope.loaded.items() if at < time.monotonic() - _DESCRIBED]
    attaches = bool(known) and scope.chance.random() < 0.7
    if attaches:
        name = known[0]
        del scope.loaded[name]
    kind = name.partition("_")[0]
    table, child = await _parent(scope, PARENTS[kind]), f"{scope.schema}.{name}"
    attached = await scope.connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid) FROM pg_class c WHERE c.oid = to_regclass($1)",
        child,
    )
    if attached is None:
        # The columns are in another order than the parent's.
        await scope.connection.execute(
            f"CREATE TABLE {child} (secret text, stamp text NOT NULL, g int, id int, PRIMARY KEY (id, g))"
        )
    group = scope.writer * 100 + int(name.rpartition("_")[2])
    step = scope.chance.choice(["write", "write", "toggle", *["drop"] * scope.drops])
    step = "toggle" if attaches and not attached else step
    if step == "toggle" and not attached and name in scope.loaded and scope.chance.random() < 0.7:
        step = "write"
    if step == "write" and not attached:
        scope.loaded.setdefault(name, time.monotonic())
    if step == "toggle" and not attached:
        attach = (
            f"ALTER TABLE {table} ATTACH PARTITION {child} FOR VALUES IN ({group})"
            if kind == "leaf"
            else f"ALTER TABLE {child} INHERIT {table}"
        )
        await scope.connection.execute(attach)
        attached = True
    elif step == "toggle" and scope.detaches:
        detach = (
            f"ALTER TABLE {table} DETACH PARTITION {child}"
            if kind == "leaf"
            else f"ALTER TABLE {child} NO INHERIT {table}"
        )
        await scope.connection.execute(detach)
        attached = False
    elif step == "drop":
        rows = await scope.connection.fetch(f"DELETE FROM {child} RETURNING id, g")
        await scope.connection.execute(f"DROP TABLE {child}")
        return [
            Operation("delete", name, (row["id"], row["g"]), parent=PARENTS[kind] if attached else "")
            for row in rows
        ]
    into = table if attached and kind == "leaf" and scope.chance.random() < 0.5 else child
    return await _load_child(scope, name, into, group, parent=PARENTS[kind] if attached else "")


async def _load_child(scope: Scope, name: str, into: str, group: int, *, parent: str) -> list[Operation]:
    """Insert rows into a child, by its own name or by its parent's.

    :param parent: the present parent; empty: none.
    """
    first, scope.next_entry = scope.next_entry, scope.next_entry + 3
    rows = await scope.connection.fetch(
        f"INSERT INTO {into} (id, g, stamp, secret) SELECT i, $1, $2, CASE WHEN $3 THEN 'secret ' || i END "
        "FROM generate_series($4::int, $5::int) i RETURNING id, g, stamp, secret",
        group,
        scope.stamp,
        bool(parent),
        first,
        first + 2,
    )
    return [
        Operation("insert", name, tuple(row[column] for column in CHILD_KEY), dict(row), parent=parent)
        for row in rows
    ]


async def _parent(scope: Scope, name: str) -> str:
    """Return the present name of a parent, in SQL."""
    found = await scope.connection.fetchval(
        "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname IN ($1::text, $1::text || '_moved') AND c.relname IN ($2::text, $2::text || '_away')",
        scope.schema,
        name,
    )
    assert isinstance(found, str)
    return found


async def lock_table(scope: Scope) -> list[Operation]:
    """Lock a table as ALTER TABLE does."""
    table = scope.chance.choice(["accounts", "items", "narrow", "notes", "parts_0", "parts_1"])
    await scope.connection.execute(f"LOCK TABLE {scope.schema}.{table} IN ACCESS EXCLUSIVE MODE")
    return []


async def rename_parent(scope: Scope) -> list[Operation]:
    """Rename a parent, or move it to another schema, or back."""
    name = scope.chance.choice(sorted(PARENTS.values()))
    table = await _parent(scope, name)
    if scope.chance.random() < 0.5:
        schema = scope.schema if table.startswith(f"{scope.schema}_moved.") else f"{scope.schema}_moved"
        await scope.connection.execute(f"ALTER TABLE {table} SET SCHEMA {schema}")
    else:
        other = name if table.endswith("_away") else f"{name}_away"
        await scope.connection.execute(f"ALTER TABLE {table} RENAME TO {other}")
    return []


async def write_guest(scope: Scope) -> list[Operation]:
    """Insert rows into the writer's guest. They are sent only if the publication has the table."""
    name = f"guest_{scope.writer}"
    published = await scope.connection.fetchval(
        "SELECT count(*) > 0 FROM pg_publication_rel WHERE prrelid = to_regclass($1)",
        f"{scope.schema}.{name}",
    )
    rows = await _load_child(scope, name, f"{scope.schema}.{name}", 0, parent="")
    return rows if published else [replace(row, unpublished=True) for row in rows]


async def add_trap(scope: Scope) -> list[Operation]:
    """Insert a row into ``traps``."""
    statement = "INSERT INTO {t} VALUES (ARRAY[$1], 0, $1) ON CONFLICT DO NOTHING {returning}"
    return _inserts("traps_0", await scope.rows("traps_0", statement, scope.stamp))


async def widen_place(scope: Scope) -> list[Operation]:
    """Add an attribute to the composite type, unless it was added, between two rows that have the type."""
    place = f"{scope.schema}.place"
    there = await scope.connection.fetchval(
        "SELECT relnatts FROM pg_class WHERE oid = to_regclass($1)", place
    )
    done = await _add_item(scope)
    if there == 2:
        await scope.connection.execute(f"ALTER TYPE {place} ADD ATTRIBUTE later int")
    return done + await _add_item(scope)


async def _add_item(scope: Scope) -> list[Operation]:
    """Insert an item under a new key."""
    number, scope.next_entry = scope.next_entry, scope.next_entry + 1
    item_id, tag = item_key("$1::int")
    statement = f"INSERT INTO {{t}} (id, tag, version, stamp, place.x) VALUES ({item_id}, {tag}, 1, $2, $1) {{returning}}"
    return _inserts("items", await scope.rows("items", statement, number, scope.stamp))


async def add_column(scope: Scope) -> list[Operation]:
    """Add a column with a default to ``accounts``."""
    # The name is never used again, not even after a rollback to a savepoint, so that each name has one default.
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


# The actions, and how often each is drawn.
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
    write_item: 10,
    write_narrow: 10,
}
MESSAGES: Final[dict[Action, int]] = {emit_message: 12}
CHILDREN: Final[dict[Action, int]] = {change_child: 25}
RENAMES: Final[dict[Action, int]] = {rename_parent: 4}
GUESTS: Final[dict[Action, int]] = {write_guest: 15}
TRAPS: Final[dict[Action, int]] = {add_trap: 6}
COMPOSITES: Final[dict[Action, int]] = {widen_place: 20}
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
