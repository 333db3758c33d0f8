"""A web service whose cache PostgreSQL invalidates: a pipeline runs in the application's lifespan.

    pip install . fastapi uvicorn
    cd examples
    psql "$DATABASE_URL" -c 'CREATE TABLE products (id int PRIMARY KEY, name text, price numeric)' \
                         -c 'CREATE PUBLICATION products FOR TABLE products'
    uvicorn fastapi_cache:app

Each process has its own cache, so it needs its own slot: set a different ``INSTANCE`` for every process, and drop the slot of one
that is removed (``aiorepl slots drop cache_1``).
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from fastapi import FastAPI, HTTPException, Response

import aiorepl

DSN = os.environ["DATABASE_URL"]
SLOT = f"cache_{os.environ.get('INSTANCE', '1')}"
MAX_AGE = 60.0  # seconds; limits the age of a row if the stream is slow


class Products(aiorepl.Sink):
    """A cache of rows by id. As a sink it drops changed rows; it is empty while no pipeline runs."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[float, dict[str, Any]]] = {}
        self.hits = self.invalidations = 0
        self._fresh = False

    async def open(self, context: aiorepl.SinkContext) -> None:
        self._fresh = True

    async def write(self, batch: aiorepl.Batch) -> None:
        self.invalidations += 1
        for change in batch.changes:
            if isinstance(change, aiorepl.RowChange) and change.key is not None:
                self.rows.pop(change.key["id"], None)
            else:
                self.rows.clear()  # TRUNCATE

    async def close(self) -> None:
        # The pipeline has ended, perhaps with an error: changes are no longer delivered.
        self._fresh = False
        self.rows.clear()

    async def get(self, pool: asyncpg.Pool, number: int) -> dict[str, Any] | None:
        """Return a row, from the cache if it is there."""
        cached_at, row = self.rows.get(number, (0.0, None))
        if row is not None and time.monotonic() - cached_at < MAX_AGE:
            self.hits += 1
            return row
        before = self.invalidations
        found = await pool.fetchrow("SELECT id, name, price::text FROM products WHERE id = $1", number)
        if found is None:
            return None
        # Not cached if something changed while it was read: it may be out of date.
        if self._fresh and before == self.invalidations:
            self.rows[number] = (time.monotonic(), dict(found))
        return dict(found)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run a pipeline from before the first request until after the last; at the end it confirms the slot.

    A pipeline runs only once, so each start of the application makes another one.
    """
    products = Products()
    # visible: a query after the delivery of a change reads the new row, also with synchronous standbys.
    source = aiorepl.Source(DSN, slot=SLOT, publication="products", create_slot=True, visible=True)
    pipeline = aiorepl.Pipeline(source, {"products": products})
    async with asyncpg.create_pool(DSN) as pool, pipeline:
        app.state.products, app.state.pipeline, app.state.pool = products, pipeline, pool
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
    return row


@app.get("/health")
async def health() -> dict[str, Any]:
    """Return the confirmed position of the stream."""
    statistics = app.state.pipeline.statistics()
    return {"flushed": str(statistics.flushed), "reconnects": statistics.reconnects}
