"""Takes pictures of the status page of a real pipeline with troubles: light, dark, and on a phone.

python scripts/status_page.py FOLDER [SECONDS]; ``make pictures`` puts the light one into docs/pictures.
"""
# ruff: noqa: INP001

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

import asyncpg
from playwright.async_api import async_playwright

from aiorepl import Batch, BatchPolicy, PermanentError, Pipeline, RetryPolicy, Source, TransientError
from aiorepl.cancellation import cancel_and_wait
from aiorepl.monitoring.app import status_app
from aiorepl.monitoring.server import listen, serve
from aiorepl.testing import EmbeddedServer, MemorySink
from aiorepl.testing.server.embedded import EmbeddedServer as Server

SECONDS = 90.0
PICTURES = {
    "light": ({"width": 1200, "height": 1150}, "light"),
    "dark": ({"width": 1200, "height": 1150}, "dark"),
    "phone": ({"width": 390, "height": 844}, "light"),
}
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (id bigserial PRIMARY KEY, customer int, status text, note text);
INSERT INTO customers SELECT i, 'customer ' || i FROM generate_series(1, 200000) AS i;
CREATE PUBLICATION shop FOR TABLE customers, orders;
"""


class Archive(MemorySink):
    """Writes at once."""

    async def write(self, batch: Batch) -> None:
        """Drop the batch."""


class Warehouse(Archive):
    """Writes slowly."""

    async def write(self, batch: Batch) -> None:
        """Take a while."""
        await asyncio.sleep(0.5)


class Search(Archive):
    """Is not reachable."""

    async def write(self, batch: Batch) -> None:
        """Fail for now."""
        raise TransientError("503 Service Unavailable")


class Audit(Archive):
    """Refuses a change."""

    async def write(self, batch: Batch) -> None:
        """Fail for good."""
        raise PermanentError("the table public.orders does not exist in the target")


async def load(dsn: str) -> None:
    """Write orders until this is cancelled."""
    connection = await asyncpg.connect(dsn)
    chance = random.Random(1)  # noqa: S311
    while True:
        count = chance.randint(1, 40)
        await connection.execute(
            "INSERT INTO orders (customer, status, note) SELECT i, 'new', repeat('x', 200) FROM generate_series(1, $1) i",
            count,
        )
        await asyncio.sleep(0.05)


async def take(server: Server, folder: Path, journal: Path, seconds: float) -> None:
    """Run the pipeline for a while, and take the pictures."""
    connection = await asyncpg.connect(server.dsn)
    await connection.execute("CREATE DATABASE shop")
    await connection.close()
    dsn = server.dsn_for("shop")
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLES)
    await connection.close()
    pipeline = Pipeline(
        Source(dsn, slot="orders", publication="shop", create_slot=True),
        {"archive": Archive(), "warehouse": Warehouse(), "search": Search(), "audit": Audit()},
        journal=journal,
        snapshot=True,
        batches=BatchPolicy(max_bytes="64KiB"),
        retry=RetryPolicy(timeout=None, wait_initial="10s", wait_max="30s"),
        shutdown_timeout=0,
    )
    bound = listen("127.0.0.1:0")
    tasks = [
        asyncio.create_task(pipeline.run()),
        asyncio.create_task(serve(status_app(pipeline), bound)),
        asyncio.create_task(load(dsn)),
    ]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        pages = {}
        for name, (viewport, scheme) in PICTURES.items():
            context = await browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
            pages[name] = await context.new_page()
            await pages[name].goto(f"http://127.0.0.1:{bound.getsockname()[1]}/")
        await asyncio.sleep(seconds / 2)
        connection = await asyncpg.connect(dsn)
        await connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        await connection.close()
        for page in pages.values():
            await page.locator("#lag .mark.reconnect").wait_for(state="attached", timeout=120_000)
        await asyncio.sleep(seconds / 2)
        for name, page in pages.items():
            await page.screenshot(path=f"{folder}/status-{name}.png", full_page=name == "phone")
        await browser.close()
    await cancel_and_wait(*tasks)


def main() -> None:
    """Take the pictures into a folder."""
    pictures = Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    pictures.mkdir(parents=True, exist_ok=True)
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(take(server, pictures, Path(folder) / "journal", seconds))


if __name__ == "__main__":
    main()
