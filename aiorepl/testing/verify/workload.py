"""Several writers on one database, and what they have written.

::

    workload = Workload(dsn, seed=1)
    await workload.create()            # the schema, with rows; then publish it and create the slot
    async with workload:               # the writers run
        ...                            # the pipeline, and faults
        last = await workload.mark()   # the writers have stopped; wait until this row of the ledger has come
    history, final = await workload.finish()
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Any, Self

import asyncpg

from aiorepl.testing.verify import tables
from aiorepl.testing.verify.history import History, Tables
from aiorepl.testing.verify.writer import Mixture, Writer


class Workload:
    """Writers that run until they are stopped.

    :param dsn: a DSN of asyncpg, of a role that may create schemas.
    :param seed: of everything that is drawn; the interleaving of the writers is the server's.
    :param writers: how many write at the same time.
    """

    def __init__(
        self,
        dsn: str,
        *,
        seed: int,
        writers: int = 2,
        mixture: Mixture | None = None,
        schema: str = tables.SCHEMA,
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._mixture = mixture or Mixture()
        self._writers = [
            Writer(dsn, number, random.Random(f"{seed}-{number}"), self._mixture, schema)
            for number in range(1, writers + 1)
        ]
        self._history = History(keys=dict(tables.KEYS))
        self._tasks: list[asyncio.Task[None]] = []
        self._running = asyncio.Event()
        self._stopping = False

    @property
    def committed(self) -> int:
        """How many transactions have committed, as far as the writers know."""
        return sum(one.outcome == "committed" for writer in self._writers for one in writer.transactions)

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The columns that were added, as a ``Promise`` needs them."""
        return {"accounts": {name: value for writer in self._writers for name, value in writer.added.items()}}

    async def create(self) -> None:
        """Create the schema and its tables, with rows."""
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(tables.create(rows=self._mixture.keys, schema=self._schema))
            self._history.initial = await tables.contents(connection, self._schema)
        finally:
            connection.terminate()

    async def finish(self) -> tuple[History, Tables]:
        """Return the resolved history, and the rows of all tables. Call ``mark`` before."""
        connection = await asyncpg.connect(self._dsn)
        try:
            final = await tables.contents(connection, self._schema)
        finally:
            connection.terminate()
        self._history.transactions = [one for writer in self._writers for one in writer.transactions]
        self._history.resolve(final["ledger"])
        return self._history, final

    async def mark(self) -> tuple[int, int]:
        """Commit a last transaction, after those of the writers; return its row in the ledger, which tells that all has come."""
        await self._stop()
        for writer in self._writers:
            await writer.settle()
        marker = Writer(self._dsn, 0, random.Random(0), self._mixture, self._schema)
        await marker.mark()
        self._writers.append(marker)
        return 0, 1

    def pause(self) -> None:
        """Let the writers begin no more transactions, until ``resume``."""
        self._running.clear()

    def resume(self) -> None:
        """Let the writers go on."""
        self._running.set()

    async def __aenter__(self) -> Self:
        self.resume()
        self._tasks = [asyncio.create_task(self._run(writer)) for writer in self._writers]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()
        for writer in self._writers:
            writer.close()

    async def _run(self, writer: Writer) -> None:
        while not self._stopping:
            await self._running.wait()
            await writer.step()

    async def _stop(self) -> None:
        self._stopping = True
        self.resume()
        await asyncio.gather(*self._tasks)
