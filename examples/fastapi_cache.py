"""A web service with a cache, whose rows are invalidated by changes in PostgreSQL.

    pip install . fastapi uvicorn
    cd examples
    psql "$DATABASE_URL" -c 'CREATE TABLE products (id int PRIMARY KEY, name text, price numeric)' \
                         -c 'CREATE PUBLICATION products FOR TABLE products'
    uvicorn fastapi_cache:app

Each process has its own cache and its own temporary slot; the server drops the slot with the connection. If ``JOURNAL`` names the
folder of a journal, several workers share the slot of ``cache_journal.py``:

    export JOURNAL=/var/lib/aiorepl/products
    python cache_journal.py &
    uvicorn fastapi_cache:app --workers 4
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from fastapi import FastAPI, HTTPException, Response

import aiorepl

DSN = os.environ["DATABASE_URL"]
JOURNAL = os.environ.get("JOURNAL")
MAX_AGE = 60.0  # seconds; limits the age of a row while a lost connection is not yet noticed


class Products:
    """A cache of rows by id."""

    def __init__(self) -> None:
        self.changed = aiorepl.Invalidations()
        self.rows: dict[int, tuple[float, dict[str, Any]]] = {}
        self.hits = self.invalidations = 0

    def _drop_changed(self) -> None:
        changed = self.changed.take()
        self.invalidations += bool(changed)
        keys = changed.keys("public", "products")
        if keys is None:
            self.rows.clear()
        else:
            for (number,) in keys:
                self.rows.pop(number, None)

    async def get(self, pool: asyncpg.Pool, number: int) -> dict[str, Any] | None:
        """Return a row, from the cache if it is there."""
        self._drop_changed()
        cached_at, row = self.rows.get(number, (0.0, None))
        if row is not None and time.monotonic() - cached_at < MAX_AGE:
            self.hits += 1
            return row
        before = self.invalidations
        found = await pool.fetchrow("SELECT id, name, price::text FROM products WHERE id = $1", number)
        if found is None:
            return None
        self._drop_changed()
        # Not cached if something changed while it was read: it may be out of date.
        if self.changed.live and before == self.invalidations:
            self.rows[number] = (time.monotonic(), dict(found))
        return dict(found)


@asynccontextmanager
async def reading(changed: aiorepl.Invalidations) -> AsyncIterator[None]:
    """Collect the keys of changed rows during the block."""
    if JOURNAL is not None:
        async with aiorepl.follow(JOURNAL) as stream:
            task = asyncio.create_task(changed.read(stream))
            yield
            task.cancel()
            await asyncio.wait({task})
        return
    slot = f"cache_{secrets.token_hex(8)}"
    # visible: a query after the delivery of a change reads the new row, also with synchronous standbys.
    source = aiorepl.Source(
        DSN, slot=slot, publication="products", create_slot=True, temporary=True, visible=True
    )
    async with aiorepl.Pipeline(source, [changed]):
        yield


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Read changes from before the first request until after the last. Each start of the application makes a new cache."""
    products = app.state.products = Products()
    async with asyncpg.create_pool(DSN) as app.state.pool, reading(products.changed):
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/products/{number}")
async def product(number: int, response: Response) -> dict[str, Any]:
    """Return a product."""
    products: Products = app.state.products
    hits = products.hits
    row = await products.get(app.state.pool, number)
    if row is None:
        raise HTTPException(404)
    response.headers["x-cache"] = "hit" if products.hits > hits else "miss"
    response.headers["x-worker"] = str(os.getpid())
    return row


@app.get("/health")
async def health() -> dict[str, bool]:
    """Return whether changes are being read. While they are not, rows are not cached."""
    return {"live": app.state.products.changed.live}
