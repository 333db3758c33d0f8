"""A process is killed at any step of the start that reads the rows of a gap: no row is missing after the next start."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aiorepl import LSN
from tests.live.conftest import Published
from tests.today import day

pytestmark = pytest.mark.by_day

PROCESS = Path(__file__).with_name("gap_process.py")
SETTINGS = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
# The range of steps from which a kill is drawn. A start that is not killed takes a few steps more.
STEPS = {"direct": 36, "journal": 64}
TABLES = ("items", "events", "altered")


def rows(folder: Path) -> tuple[dict[str, set[int]], int]:
    """Return the keys by table that a reader of the sink's files has, and the number of truncates. The reader applies truncates."""
    events: dict[tuple[LSN, int], dict[str, Any]] = {}
    for file in folder.glob("*.jsonl*"):
        for line in file.read_bytes().splitlines():
            event = json.loads(line)
            if event["kind"] in ("read", "insert", "truncate"):
                events[LSN.parse(event["commit_lsn"]), event["ordinal"]] = event
    found: dict[str, set[int]] = {table: set() for table in TABLES}
    truncates = 0
    for _, event in sorted(events.items(), key=lambda each: each[0]):
        if event["kind"] == "truncate":
            truncates += 1
            for table in event["tables"]:
                found[table["table"]].clear()
        else:
            found[event["table"]].add(event["new"]["id"])
    return found, truncates


@pytest.mark.parametrize("way", ["direct", "journal"])
async def test_kills_while_the_gap_is_read(
    publish: Callable[[str], Awaitable[Published]], servers: Any, tmp_path: Path, way: str
) -> None:
    """After each kill and start, the sink has every row of the tables. It may also have deleted rows, as deletes are not published."""
    chance = random.Random(f"{day()}-{way}")
    with servers.new(18, **SETTINGS) as server:
        published = await publish(server.dsn)
        await published.execute(
            "ALTER PUBLICATION p SET (publish = 'insert, truncate')",
            "CREATE TABLE events (id int, note text)",
            "CREATE TABLE altered (id int PRIMARY KEY, note text)",
        )
        keys = iter(range(3, 10_000))
        kills = await asyncio.wait_for(_rounds(published, tmp_path, way, chance, keys), 600)
    assert kills > 0


async def _rounds(published: Published, folder: Path, way: str, chance: random.Random, keys: Any) -> int:
    async def start(steps: int) -> int:
        arguments = published.dsn, published.slot, folder, way, str(steps)
        process = await asyncio.create_subprocess_exec(sys.executable, PROCESS, *map(str, arguments))
        return await process.wait()

    async def write() -> None:
        for table in TABLES:
            fill = ", ".join(f"({next(keys)}, repeat('x', 500))" for _ in range(20))
            await published.execute(f"INSERT INTO {table} VALUES {fill}")

    async def exists() -> bool:
        query = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)"
        return bool(await published.connection.fetchval(query, published.slot))

    async def compare() -> int:
        found, truncates = rows(folder / "sink")
        for table in TABLES:
            expected = {key for (key,) in await published.connection.fetch(f"SELECT id FROM {table}")}
            assert expected <= found[table] | {2}
        assert {key for (key,) in await published.connection.fetch("SELECT id FROM altered")} == found[
            "altered"
        ]
        return truncates

    await write()
    assert 0 == await start(-1)
    kills = 0
    for steps in chance.sample(range(STEPS[way]), 5):
        await write()
        await published.execute(
            "DELETE FROM items WHERE id % 5 = 0",
            "DELETE FROM altered WHERE id % 5 = 0",
            "VACUUM FULL altered",
        )
        await published.lose_slot()
        kills += -signal.SIGKILL == await start(steps)
        await write()
        if chance.randrange(2) and await exists():
            # Some tables may not be read yet.
            await published.lose_slot()
            await published.execute("DELETE FROM altered WHERE id % 7 = 0", "VACUUM FULL altered")
        for _ in range(chance.randrange(2)):
            await start(chance.randrange(STEPS[way]))
        assert 0 == await start(-1)
        await compare()
    return kills
