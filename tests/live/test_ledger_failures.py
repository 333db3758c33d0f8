"""Writes of the chunk ledger fail while a table is read in several chunks; then the process is killed."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from aiorepl import LSN
from tests.today import day

PROCESS = Path(__file__).with_name("ledger_process.py")
ROWS = 600
KILLS = 2
FILL = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 3)"


def rows(folder: Path) -> dict[int, tuple[int, str]]:
    """Return the rows that a reader of the sink's files has, if it drops duplicates by LSN and ordinal and upserts rows by key."""
    events: dict[tuple[LSN, int], dict[str, Any]] = {}
    for file in folder.glob("*.jsonl*"):
        for line in file.read_bytes().splitlines():
            event = json.loads(line)
            if event.get("table") == "large" and event["kind"] in ("read", "insert", "update", "delete"):
                events[LSN.parse(event["commit_lsn"]), event["ordinal"]] = event
    found: dict[int, tuple[int, str]] = {}
    for _, event in sorted(events.items(), key=lambda each: each[0]):
        for gone in (event["old"], event["new"]):
            if gone is not None:
                found.pop(gone["id"], None)
        if event["kind"] != "delete":
            found[event["new"]["id"]] = (event["new"]["version"], event["new"]["fill"])
    return found


@pytest.mark.parametrize("journal", ["direct", "journal", "beside"])
async def test_a_failed_write_and_a_kill(published, tmp_path, journal):
    """The sink's rows equal the table, whichever write fails, and wherever the process is killed afterwards."""
    chance = random.Random(f"{day()}-{journal}")
    await published.execute(
        "CREATE TABLE large (id int PRIMARY KEY, version int, fill text)",
        f"INSERT INTO large SELECT i, 0, ({FILL} WHERE i > 0) FROM generate_series(1, {ROWS}) i",
        "ANALYZE large",
    )
    if journal == "beside":
        # With an existing slot, the pipeline reads the table beside the stream.
        await published.create_slot()

    async def start(write: int, times: int, steps: int) -> int:
        arguments = published.dsn, published.slot, tmp_path, journal, str(write), str(times), str(steps)
        process = await asyncio.create_subprocess_exec(sys.executable, PROCESS, *map(str, arguments))
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            if write:
                group.create_task(write_rows(ended))
            code = await process.wait()
            ended.set()
        return code

    async def write_rows(ended: asyncio.Event) -> None:
        """Move rows between chunks, and insert, update and delete rows."""
        while not ended.is_set():
            key, other = chance.randrange(1, ROWS + 1), chance.randrange(ROWS + 1, 2 * ROWS)
            statement = chance.choice(
                (
                    f"UPDATE large SET version = version + 1 WHERE id = {key}",
                    f"DELETE FROM large WHERE id = {key}",
                    f"UPDATE large SET id = {other} WHERE id = {key} AND NOT EXISTS (SELECT FROM large WHERE id = {other})",
                    f"INSERT INTO large VALUES ({other}, 7, 'new') ON CONFLICT DO NOTHING",
                )
            )
            await published.connection.execute(statement)
            await asyncio.sleep(0.002)

    codes = [
        await start(chance.randrange(1, 12), chance.choice([1, 1, 3, 1000]), chance.randrange(12))
        for _ in range(KILLS)
    ]
    assert {-signal.SIGKILL, 0} >= {*codes}, codes
    assert 0 == await start(0, 0, 0)

    there = {
        row["id"]: (row["version"], row["fill"])
        for row in await published.connection.fetch("SELECT * FROM large")
    }
    assert there == rows(tmp_path / "sink")
