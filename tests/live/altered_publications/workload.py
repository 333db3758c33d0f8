"""Random transactions that alter the publication ``p`` and its tables while other transactions are open.

They have savepoints, logical messages, origins and two-phase commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import asyncpg

TABLES = ("t0", "t1", "t2", "x", "y", "other.t3")
_COLUMNS = "(id int PRIMARY KEY, a int, b text, g int GENERATED ALWAYS AS (a * 2) STORED)"
SETUP = (
    "CREATE SCHEMA other",
    "CREATE TABLE anchor (id serial PRIMARY KEY, v text)",
    *(f"CREATE TABLE {table} {_COLUMNS}" for table in TABLES),
    "ALTER TABLE t1 REPLICA IDENTITY FULL",
)
PUBLISHED = "anchor, t0, t1 WHERE (a > 3), t2 (id, a), x, y WHERE (id > 5), other.t3"


class Writer:
    """One client of the database.

    :param chance: makes its choices.
    :param name: the name of its origin, and the prefix of its gids.
    """

    def __init__(self, chance: random.Random, name: str, version: int) -> None:
        self._chance = chance
        self._name = name
        self._version = version
        self._count = 0

    async def write(self, dsn: str, transactions: int) -> None:
        """Run transactions; some of them fail, and some are rolled back.

        :param transactions: the number of transactions.
        """
        chance = self._chance
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("SET lock_timeout = '300ms'; SET deadlock_timeout = '50ms'")
            has_origin = chance.random() < 0.4
            if has_origin:
                await connection.execute(f"SELECT pg_replication_origin_create('{self._name}')")
            for _ in range(transactions):
                with contextlib.suppress(asyncpg.PostgresError):
                    await self._transaction(connection, origin=has_origin and chance.random() < 0.5)
                await connection.execute("ROLLBACK")
                if has_origin:
                    with contextlib.suppress(asyncpg.PostgresError):
                        await connection.execute("SELECT pg_replication_origin_session_reset()")
                # Let the other writers and the pipelines run.
                await asyncio.sleep(0)
        finally:
            await connection.close()

    async def _transaction(self, connection: asyncpg.Connection, *, origin: bool) -> None:
        chance, depth = self._chance, 0
        self._count += 1
        if origin:
            await connection.execute(f"SELECT pg_replication_origin_session_setup('{self._name}')")
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO anchor (v) VALUES ('begin')")
        for _ in range(chance.choice([1, 3, 8, 15, 15])):
            draw = chance.random()
            if draw < 0.55:
                await connection.execute(self._rows())
            elif draw < 0.65:
                await connection.execute(self._message())
            elif draw < 0.75:
                await connection.execute(f"SAVEPOINT s{depth}; INSERT INTO anchor (v) VALUES ('s')")
                depth += 1
            elif draw < 0.82 and depth:
                depth -= 1
                end = (
                    f"ROLLBACK TO s{depth}; RELEASE s{depth}"
                    if chance.random() < 0.6
                    else f"RELEASE s{depth}"
                )
                await connection.execute(f"{end}; INSERT INTO anchor (v) VALUES ('after')")
            elif draw < 0.94:
                await connection.execute(self._publish())
            else:
                await connection.execute(self._alter())
        if chance.random() < 0.15:
            gid = f"{self._name}_{self._count}"
            await connection.execute(f"PREPARE TRANSACTION '{gid}'")
            await asyncio.sleep(chance.random() * 0.1)
            await connection.execute(f"{chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")
        else:
            await connection.execute("COMMIT" if chance.random() < 0.9 else "ROLLBACK")

    def _number(self) -> str:
        return self._chance.choice(
            ["NULL", str(self._chance.randint(-9, 99)), str(self._chance.randint(0, 9))]
        )

    def _text(self) -> str:
        letter, length = self._chance.choice("abc"), self._chance.choice([10, 3000])
        # Values that do not compress are stored out of line.
        toasted = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100) n)"
        return self._chance.choice(["NULL", "'short'", f"repeat('{letter}', {length})", toasted])

    def _rows(self) -> str:
        chance = self._chance
        table, key, draw = chance.choice(TABLES), chance.randint(0, 12), chance.random()
        if draw < 0.3:
            row = f"({key + chance.choice([0, 0, 100])}, {self._number()}, {self._text()})"
            return f"INSERT INTO {table} (id, a, b) VALUES {row} ON CONFLICT DO NOTHING"
        if draw < 0.4:
            rows = (
                f"SELECT n, n, {self._text()} FROM generate_series(200, {chance.choice([202, 208, 400])}) n"
            )
            return f"INSERT INTO {table} (id, a, b) {rows} ON CONFLICT DO NOTHING"
        if draw < 0.75:
            return chance.choice(
                [
                    f"UPDATE {table} SET a = {self._number()} WHERE id <= {key}",
                    f"UPDATE {table} SET b = {self._text()} WHERE id = {key}",
                    f"UPDATE {table} SET id = id + 500 WHERE id = {key} AND NOT EXISTS (SELECT FROM {table} WHERE id = {key} + 500)",
                    f"UPDATE {table} SET a = {self._number()}",
                ]
            )
        if draw < 0.95:
            return f"DELETE FROM {table} WHERE id = {key} OR id >= 200"
        return f"TRUNCATE {table}"

    def _message(self) -> str:
        transactional = self._chance.choice(["true", "true", "true", "false"])
        length = self._chance.choice([1, 50, 9_000, 200_000])
        message = f"SELECT pg_logical_emit_message({transactional}, 'm', repeat('z', {length}))"
        return f"{message}; INSERT INTO anchor (v) VALUES ('message')"

    def _published(self, table: str) -> str:
        chance = self._chance
        if self._version < 15:
            return table
        columns = chance.choice(["", "", " (id, a)", " (id, b)", " (id)", " (id, a, b)"])
        rows = chance.choice(
            ["", "", " WHERE (id > 5)", " WHERE (id % 2 = 0)", " WHERE (a > 3)", " WHERE (a IS NULL)"]
        )
        return f"{table}{columns}{rows}"

    def _publish(self) -> str:
        chance, alter = self._chance, "ALTER PUBLICATION p"
        draw = chance.random()
        if draw < 0.5:
            tables = chance.sample(TABLES, chance.randint(1, len(TABLES)))
            return f"{alter} SET TABLE anchor, {', '.join(map(self._published, tables))}"
        if draw < 0.65:
            return f"{alter} ADD TABLE {self._published(chance.choice(TABLES))}"
        if draw < 0.8:
            return f"{alter} DROP TABLE {chance.choice([*TABLES, 'anchor'])}"
        if draw < 0.93 or self._version < 18:
            kinds = ["insert", "insert, update, delete, truncate", "insert, delete", "update, delete"]
            return f"{alter} SET (publish = '{chance.choice(kinds)}')"
        return f"{alter} SET (publish_generated_columns = {chance.choice(['stored', 'none'])})"

    def _alter(self) -> str:
        chance = self._chance
        table, number = chance.choice(TABLES), chance.randint(0, 3)
        return chance.choice(
            [
                "ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; ALTER TABLE z RENAME TO y",
                f"DROP TABLE {table}; CREATE TABLE {table} {_COLUMNS}; ALTER PUBLICATION p ADD TABLE {self._published(table)}",
                f"ALTER TABLE {table} REPLICA IDENTITY {chance.choice(['FULL', 'DEFAULT'])}",
                f"ALTER TABLE {table} ADD COLUMN c{number} int DEFAULT {number}",
                f"ALTER TABLE {table} DROP COLUMN IF EXISTS c{number}",
                f"ALTER TABLE {table} ALTER a TYPE {chance.choice(['bigint', 'int', 'numeric'])}",
                f"ALTER TABLE {table} RENAME b TO former; ALTER TABLE {table} ADD b text",
            ]
        )
