"""``ddl = "apply"`` under random changes: the target is equal in the end, or the sink stops and its advice makes it equal."""

from __future__ import annotations

import random
import re

import asyncpg
import pytest

from aiorepl import BatchPolicy, PermanentError

pytestmark = pytest.mark.by_day

TYPES = (
    "int2",
    "int4",
    "int8",
    "float4",
    "float8",
    "varchar(3)",
    "varchar(9)",
    "varchar",
    "text",
    "numeric(5,1)",
    "numeric(9,3)",
    "numeric",
)
WIDER = {
    "int2": ("int4", "int8"), "int4": ("int8", "int2"), "int8": ("int4",), "float4": ("float8",), "varchar(3)": ("varchar(9)", "text", "varchar"),
    "varchar(9)": ("varchar", "text", "varchar(3)"), "varchar": ("text", "varchar(9)"), "text": ("varchar",), "numeric(5,1)": ("numeric(9,3)", "numeric"),
    "numeric(9,3)": ("numeric", "numeric(5,1)"), "float8": ("float4",), "numeric": (),
}  # fmt: skip


class Program:
    """Random statements against the tables ``t`` and ``u`` of the source.

    :ivar columns: by table the columns' types by name, without the key.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.columns: dict[str, dict[str, str]] = {}
        self.number = 0

    def create(self, table: str) -> str:
        self.columns[table] = {"a": "int4", "b": "varchar(3)"}
        return f"CREATE TABLE {table} (id int PRIMARY KEY, a int4, b varchar(3))"

    def statement(self) -> list[str]:
        """Return one change of rows or of a table."""
        choose = self.random
        table = choose.choice(sorted(self.columns))
        columns = self.columns[table]
        kind = choose.choices(
            (
                "insert",
                "update",
                "delete",
                "add",
                "drop",
                "rename",
                "type",
                "replace",
                "again",
                "swap",
                "recreate",
            ),
            (8, 6, 2, 4, 1, 1, 3, 1, 1, 0.4, 0.4),
        )[0]
        if kind == "insert":
            self.number += 1
            names = "".join(f", {name}" for name in columns)
            values = "".join(f", {choose.choice(('NULL', '1', '2', '7'))}" for _ in columns)
            return [f"INSERT INTO {table} (id{names}) VALUES ({self.number}{values})"]
        if kind == "update" and columns:
            name = choose.choice(sorted(columns))
            return [
                f"UPDATE {table} SET {name} = '{choose.randrange(10)}' WHERE id % 3 = {choose.randrange(3)}"
            ]
        if kind == "delete":
            return [f"DELETE FROM {table} WHERE id % 7 = {choose.randrange(7)}"]
        if kind == "add" or not columns:
            self.number += 1
            return self._add(table, f"c{self.number}")
        name = choose.choice(sorted(columns))
        if kind == "drop":
            del columns[name]
            return [f"ALTER TABLE {table} DROP {name}"]
        if kind == "rename":
            self.number += 1
            columns[f"r{self.number}"] = columns.pop(name)
            return [f"ALTER TABLE {table} RENAME {name} TO r{self.number}"]
        if kind == "replace":
            del columns[name]
            return [f"ALTER TABLE {table} DROP {name}", *self._add(table, name)]
        if kind == "again":
            self.number += 1
            columns[f"r{self.number}"] = columns.pop(name)
            return [f"ALTER TABLE {table} RENAME {name} TO r{self.number}", *self._add(table, name)]
        if kind == "type" and WIDER[columns[name]]:
            columns[name] = choose.choice(WIDER[columns[name]])
            return [f"ALTER TABLE {table} ALTER {name} TYPE {columns[name]} USING {name}::{columns[name]}"]
        if kind == "swap":
            self.columns["t"], self.columns["u"] = self.columns["u"], self.columns["t"]
            return ["ALTER TABLE t RENAME TO x", "ALTER TABLE u RENAME TO t", "ALTER TABLE x RENAME TO u"]
        if kind == "recreate":
            return [f"DROP TABLE {table}", self.create(table)]
        return []

    def _add(self, table: str, name: str) -> list[str]:
        kind = self.columns[table][name] = self.random.choice(TYPES)
        default = self.random.choice(("", " DEFAULT 5", " NOT NULL DEFAULT 6", " DEFAULT '4'"))
        return [f"ALTER TABLE {table} ADD {name} {kind}{default}"]


class Advice:
    """Follows the advice of the sink on the target."""

    def __init__(self, pair) -> None:
        self.pair = pair
        self.followed: list[str] = []
        self.read_again: set[str] = set()

    async def follow(self, message: str) -> None:
        name = r'[\w."]+'
        self.followed.append(message)
        target = self.pair.target
        if "read all tables again" in message:
            await self.pair.source.execute(
                "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", self.pair.slot
            )
            await target.execute("DROP TABLE IF EXISTS t, u; DELETE FROM aiorepl.positions")
            self.read_again |= {"t", "u"}
            return
        if "read the table again" in message:
            self.read_again.add(re.search(r"public\.(\w+)", message)[1])
        if found := re.search(rf"ALTER TABLE {name} (RENAME|DROP) COLUMN {name}( TO {name})?", message):
            await target.execute(found[0])
        elif found := re.search(
            rf'ALTER TABLE {name} ALTER COLUMN {name} TYPE ("pg_catalog"\.{name}(\([\d, ]+\))?)', message
        ):
            column = re.search(r'ALTER COLUMN ("\w+")', found[0])[1]
            await target.execute(f"{found[0]} USING {column}::{found[1]}")
        elif found := re.search(rf"ALTER TABLE {name} ADD COLUMN .*(?= on the target)", message):
            await target.execute(found[0])
        elif found := re.search(r"table public\.(\w+) was renamed to public\.(\w+)", message):
            if await target.fetchval("SELECT to_regclass($1) IS NOT NULL", found[2]):
                await target.execute(
                    f"ALTER TABLE {found[2]} RENAME TO q; ALTER TABLE {found[1]} RENAME TO {found[2]}; ALTER TABLE q RENAME TO {found[1]}"
                )
            else:
                await target.execute(f"ALTER TABLE {found[1]} RENAME TO {found[2]}")
        elif found := re.search(rf"DROP TABLE {name}", message):
            await target.execute(found[0])
        else:
            raise AssertionError(f"no advice: {message}")


async def rows(connection, table):
    """A table's rows as sorted text; the order of columns does not matter."""
    return sorted(row[0] for row in await connection.fetch(f"SELECT to_jsonb(x)::text FROM {table} x"))


@pytest.mark.parametrize("seed", range(24))
async def test_random_programs(pair, seed):
    """Rows, columns and tables change at random, and the target lags behind by a random number of transactions."""
    program = Program(seed)
    advice = Advice(pair)
    history = []
    for table in ("t", "u"):
        await pair.source.execute(program.create(table))
    await pair.slotted()

    async def deliver():
        for _ in range(30):
            try:
                await pair.deliver(ddl="apply", batches=BatchPolicy(linger=1.0 if seed % 2 else 0.0))
                return
            except PermanentError as error:
                history.append(f"-- {error}")
                await advice.follow(str(error))
        raise AssertionError("no end:\n" + "\n".join(history))

    try:
        for _ in range(12):
            before = {table: dict(columns) for table, columns in program.columns.items()}
            statements = [one for _ in range(program.random.randrange(1, 6)) for one in program.statement()]
            history += [*statements, "-- commit"]
            try:
                await pair.commit(*statements)
            except asyncpg.IntegrityConstraintViolationError:
                history.append("-- rolled back")
                program.columns = before
            if program.random.random() < 0.4:
                history.append("-- deliver")
                await deliver()
        await pair.source.execute("INSERT INTO t (id) VALUES (0); INSERT INTO u (id) VALUES (0)")
        await deliver()
        while advice.read_again:
            advice.read_again.clear()
            history.append("-- read again")
            await pair.source.execute("UPDATE t SET id = id; UPDATE u SET id = id")
            await deliver()
        for table in ("t", "u"):
            assert await rows(pair.source, table) == await rows(pair.target, table)
    finally:
        print("\n".join(history))
