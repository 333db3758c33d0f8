"""The status page of a pipeline that reads a real server, in a real browser."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import asyncpg
from playwright.async_api import Browser, expect

from aiorepl import BatchPolicy, Pipeline, Source
from aiorepl.cancellation import cancel_and_wait
from aiorepl.testing import MemorySink

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, note text);
CREATE TABLE b (id int PRIMARY KEY);
INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, 5000) AS i;
ANALYZE a;
CREATE PUBLICATION shop FOR TABLE a, b;
"""


async def test_a_real_pipeline(browser: Browser, monitor: Any, database: str, slot_name: str, tmp_path: Path):
    """The page says which server it reads, and for how long; rows that arrive, a snapshot and a reconnect are visible at once."""
    connection = await asyncpg.connect(database)
    await connection.execute(TABLES)
    pipeline = Pipeline(
        Source(database, slot=slot_name, publication="shop", create_slot=True),
        {"one": MemorySink(), "two": MemorySink()},
        journal=tmp_path / "journal",
        snapshot=True,
        batches=BatchPolicy(flush_seconds=0.0),
    )
    task = asyncio.create_task(pipeline.run())
    try:
        await pipeline.started()
        page = await browser.new_page()
        expect.set_options(timeout=60_000)
        await page.goto(monitor(pipeline).url)
        about = re.compile(r"^\S+ · database \S+ · PostgreSQL \d+[.\w]+ · up \d+ s$")
        await expect(page.locator("#about")).to_have_text(about)
        await expect(page.locator("#tables tr")).to_have_count(3)
        await expect(page.get_by_role("row", name="all tables 2 of 2 read")).to_be_visible()

        await connection.execute("INSERT INTO a SELECT i FROM generate_series(10001, 11000) AS i")
        await expect(page.locator("#throughput")).to_contain_text("Last changenow")
        await expect(page.locator("#throughput")).to_contain_text(re.compile(r"Rows[\d,.]+ rows/s"))
        await expect(page.locator("#rows-chart path.series")).to_have_count(1)
        await expect(page.get_by_role("row", name="public.a 1,000 0 0")).to_be_visible()

        await expect(page.locator("#lag path.mark.start")).to_have_count(1)
        assert 0 == await page.locator("#lag path.mark.reconnect").count()
        await connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
            slot_name,
        )
        await expect(page.locator("#lag path.mark.reconnect")).to_have_count(1)
        await expect(page.locator("#memory")).to_contain_text("reconnects1")
        buffers = await page.locator("#memory dd").all_inner_texts()
        assert all("nothing more is read" not in text for text in buffers)
    finally:
        await cancel_and_wait(task)
        await connection.close()
