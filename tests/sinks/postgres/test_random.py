"""Mirrors of random workloads: whatever happens on the source, the target ends equal, on each route through the sink.

Left out: DDL, because the target's tables are the user's, and faults (``test_exactly_once``, ``tests/chaos``).
"""

from __future__ import annotations

import random

import asyncpg
import pytest

from aiorepl import BatchPolicy

pytestmark = pytest.mark.by_day

TABLES = {
    # One that commutes, one with large values, one whose order a second unique index sees, one that is only known whole,
    # one that refers to another, one without any key.
    "plain": "CREATE TABLE plain (id int PRIMARY KEY, n int, t text)",
    "pairs": "CREATE TABLE pairs (a int, b numeric, n int, PRIMARY KEY (a, b))",
    "docs": "CREATE TABLE docs (id int PRIMARY KEY, n int, t text)",
    "places": "CREATE TABLE places (id int PRIMARY KEY, n int UNIQUE, t text)",
    "bag": "CREATE TABLE bag (id int, n int, t text)",
    "lines": "CREATE TABLE lines (id int PRIMARY KEY, n int REFERENCES plain ON DELETE CASCADE, t text)",
    "log": "CREATE TABLE log (id int, n int)",
}
SETUP = ("ALTER TABLE docs ALTER t SET STORAGE EXTERNAL", "ALTER TABLE bag REPLICA IDENTITY FULL")


def statement(chance: random.Random) -> str:
    """One statement, which may fail."""
    table = chance.choice(list(TABLES))
    key, other, n = chance.randrange(40), chance.randrange(40), chance.choice(["NULL", *range(30)])
    text = chance.choice(["NULL", "''", "'a'", "E'\\t\\\\N'", f"repeat('{chance.choice('xyz')}', 5000)"])
    some = chance.choice([f"id = {key}", f"id < {key}", f"n = {other}", f"id % 3 = {key % 3}"])
    if table == "log":
        return f"INSERT INTO log SELECT i, {n} FROM generate_series(1, {chance.choice([1, 5, 60])}) i"
    if table == "pairs":
        return chance.choice(
            [
                f"INSERT INTO pairs VALUES ({key % 7}, {other % 7}.{'0' * (key % 3)}, {n}) ON CONFLICT DO NOTHING",
                f"UPDATE pairs SET n = {n}, b = b::text::numeric + 0.00 WHERE a = {key % 7}",
                f"UPDATE pairs SET a = a + 7 WHERE a = {key % 7} AND NOT EXISTS (SELECT FROM pairs p WHERE p.a = {key % 7} + 7)",
                f"DELETE FROM pairs WHERE a = {key % 14}",
            ]
        )
    statements = [
        f"INSERT INTO {table} VALUES ({key}, {n}, {text})",
        f"INSERT INTO {table} SELECT i, NULL, {text} FROM generate_series({key}, {key + 40}) i "
        + ("" if table == "bag" else "ON CONFLICT DO NOTHING"),
        f"UPDATE {table} SET t = {text} WHERE {some}",
        f"UPDATE {table} SET n = {n} WHERE {some}",
        f"UPDATE {table} SET id = {other}, n = {n} WHERE id = {key}",
        f"UPDATE {table} SET id = -id WHERE {some}",
        f"DELETE FROM {table} WHERE {some}",
        f"DELETE FROM {table} WHERE id = {key}; INSERT INTO {table} VALUES ({key}, {n}, {text})",
    ]
    if chance.random() < 0.02:
        return f"TRUNCATE {table} CASCADE"
    return chance.choice(statements)


async def work(source: asyncpg.Connection, chance: random.Random, transactions: int) -> None:
    """Transactions with savepoints, many of which roll back."""
    for _ in range(transactions):
        await source.execute("BEGIN")
        for _ in range(chance.choice([1, 1, 3, 12])):
            await source.execute("SAVEPOINT s")
            try:
                await source.execute(statement(chance))
            except asyncpg.IntegrityConstraintViolationError:
                await source.execute("ROLLBACK TO s")
                continue
            if chance.random() < 0.1:
                await source.execute("ROLLBACK TO s")
        await source.execute("COMMIT" if chance.random() < 0.9 else "ROLLBACK")


@pytest.mark.parametrize(
    ("seed", "versions", "options", "source", "batch"),
    [
        (1, (None, None), {}, {}, 1 << 20),
        (2, (None, None), {}, {}, 3000),
        (3, (None, None), {"mode": "strict", "replica": True}, {}, 1 << 20),
        (
            4,
            (None, None),
            {"mode": "strict", "replica": True, "transactions": "source"},
            {"binary": True},
            5000,
        ),
        (5, (None, None), {"replica": True}, {"streaming": "on", "binary": True}, 20_000),
        (6, (None, None), {"transactions": "source"}, {"streaming": "parallel"}, 1),
        (7, (15, 18), {}, {"streaming": "on"}, 1 << 20),
        (8, (18, 16), {}, {"binary": True}, 1 << 20),
        (9, (17, 15), {"mode": "strict", "replica": True}, {}, 1 << 20),
        (10, (19, 18), {"transactions": "source"}, {"streaming": "parallel", "binary": True}, 1 << 20),
        (11, (14, 19), {"mode": "strict", "replica": True}, {}, 20_000),
    ],
)
async def test_a_random_workload(pairs, seed, versions, options, source, batch):
    """Equal after each stretch, every row as often as on the source.

    Strict goes with ``replica``: else the target's own ON DELETE CASCADE deletes rows before the source's deletes come.
    """
    chance = random.Random(seed)
    pair = await pairs(*versions)
    await pair.both(*TABLES.values(), *SETUP)
    await pair.source.execute("SET logical_decoding_work_mem = '64kB'")
    await pair.slotted()
    for _ in range(4):
        await work(pair.source, chance, 60)
        await pair.deliver(batches=BatchPolicy(max_bytes=batch), source=source, **options)
        await pair.require_equal(*TABLES)
    assert 100 < await pair.target.fetchval("SELECT count(*) FROM log")
