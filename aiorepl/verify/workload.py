"""Several writers on one database, with their history.

::

    workload = Workload(dsn, seed=1)
    await workload.create()            # the schema, with rows; then publish it and create the slot
    async with workload:               # the writers run
        ...                            # the pipeline, and faults
        last = await workload.mark()   # the writers have stopped; wait until this row of the ledger has come
    history = await workload.finish()
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Final, Self

from aiorepl.errors import ConfigurationError
from aiorepl.verify import tables
from aiorepl.verify.history import History, Tables
from aiorepl.verify.writer import (
    RETRY_SECONDS,
    UNAVAILABLE,
    Mixture,
    Writer,
    connected,
)

# How often a writer that has reached the limit checks whether it was raised.
_IDLE_SECONDS: Final = 0.05
_ORIGIN: Final = """
SELECT pg_replication_origin_create('{name}') WHERE NOT EXISTS (SELECT FROM pg_replication_origin WHERE roname = '{name}');
"""


class Workload:
    """Runs writers until they are stopped.

    :param dsn: an asyncpg DSN, for a role that may create schemas.
    :param seed: the seed of all random choices; it does not determine how the writers interleave.
    :param writers: the number of concurrent writers.
    :param limit: write nothing more after about this many changes; ``None`` for no limit.
    :ivar limit: may be raised while the writers run.
    """

    def __init__(
        self,
        dsn: str | None,
        *,
        seed: int,
        writers: int = 2,
        mixture: Mixture | None = None,
        schema: str = tables.SCHEMA,
        limit: int | None = None,
    ) -> None:
        self.limit = limit
        self._dsn = dsn
        self._schema = schema
        self._mixture = mixture or Mixture()
        self._writers = [
            Writer(
                dsn,
                number,
                random.Random(f"{seed}-{number}"),
                self._mixture,
                schema,
                f"{schema}_{seed}_{number}",
            )
            for number in range(1, writers + 1)
        ]
        self._marker = Writer(dsn, 0, random.Random(0), self._mixture, schema)
        self._history = History(keys=dict(tables.KEYS))
        self._tasks: list[asyncio.Task[None]] = []
        self._running = asyncio.Event()
        self._stopping = False

    @property
    def committed(self) -> int:
        """The number of transactions that committed, as far as the writers know."""
        return sum(one.outcome == "committed" for writer in self._writers for one in writer.transactions)

    @property
    def changes(self) -> int:
        """The number of changes, including rolled-back changes."""
        return sum(len(one.operations) for writer in self._writers for one in writer.transactions)

    async def create(self) -> None:
        """Create the schema and its tables, with rows."""
        connection = await connected(self._dsn)
        try:
            await connection.execute(self._create())
        finally:
            connection.terminate()
        await self.begin()

    def _create(self) -> str:
        mixture = self._mixture
        statements = [
            tables.create(
                rows=mixture.keys,
                schema=self._schema,
                generated=mixture.generated,
                renames=mixture.renames,
                children=len(self._writers) if mixture.children else 0,
                guests=len(self._writers) if mixture.guests else 0,
                traps=mixture.traps,
            )
        ]
        statements += [_ORIGIN.format(name=one.origin) for one in self._writers if mixture.origins]
        return "".join(statements)

    async def begin(self) -> None:
        """Read the tables' initial rows, before any write.

        :raises ConfigurationError: the tables were written to before.
        """
        self._history.initial = await self._contents()
        if self._history.initial["ledger"]:
            raise ConfigurationError(
                f"the tables in the schema {self._schema} were written to before: drop the schema, and create it again"
            )

    async def finish(self, *, promoted: bool = False) -> History:
        """Return the resolved history. Call ``mark`` before.

        :param promoted: whether a standby was promoted meanwhile, see ``History.resolve``.
        """
        final: Tables | None = None
        while final is None:
            try:
                final = await self._contents()
            except UNAVAILABLE:
                await asyncio.sleep(RETRY_SECONDS)
        self._history.final = final
        self._collect()
        self._history.resolve(final["ledger"], promoted=promoted)
        return self._history

    async def complete(self, wait: float) -> History:
        """Stop the writers, and return the history.

        If the server does not answer, the history lacks the final rows, and the outcomes of some transactions are unknown.

        :param wait: the maximum time to wait for the server, in seconds.
        """
        try:
            async with asyncio.timeout(wait):
                await self.mark()
                return await self.finish()
        except TimeoutError:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
        self._collect()
        for one in self._history.transactions:
            if one.outcome == "unknown" and not one.earliest:  # no COMMIT was sent
                one.outcome = "aborted"
        return self._history

    def _collect(self) -> None:
        self._history.transactions = [one for writer in self._writers for one in writer.transactions]
        added = {name: value for writer in self._writers for name, value in writer.added.items()}
        self._history.defaults = {"accounts": added}
        written = {
            op.table for one in self._history.transactions for op in one.operations if op.kind != "message"
        }
        written |= self._history.initial.keys()
        self._history.keys |= dict.fromkeys(written - tables.KEYS.keys(), tables.CHILD_KEY)

    async def _contents(self) -> Tables:
        connection = await connected(self._dsn)
        try:
            return await tables.contents(connection, self._schema)
        finally:
            connection.terminate()

    async def mark(self) -> tuple[int, int]:
        """Stop the writers, and commit a last transaction. Return its row in the ledger, which is delivered after all other rows."""
        await self._stop()
        for writer in self._writers:
            await writer.settle()
        if self._marker not in self._writers:
            self._writers.append(self._marker)
        await self._marker.mark()
        return 0, self._marker.transactions[-1].number

    @property
    def running(self) -> bool:
        """Whether the writers may write: not after ``pause``."""
        return self._running.is_set()

    def pause(self) -> None:
        """Pause the writers before their next transactions, until ``resume``."""
        self._running.clear()

    def resume(self) -> None:
        """Resume the writers."""
        self._running.set()

    async def __aenter__(self) -> Self:
        self.resume()
        self._tasks = [asyncio.create_task(self._run(writer)) for writer in self._writers]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            # A writer may wait for a lock for a long time.
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
        await self._stop()
        for writer in self._writers:
            writer.close()

    async def _run(self, writer: Writer) -> None:
        while not self._stopping:
            await self._running.wait()
            if self.limit is not None and self.changes > self.limit:
                await asyncio.sleep(_IDLE_SECONDS)
            else:
                await writer.step()

    async def _stop(self) -> None:
        self._stopping = True
        self.resume()
        await asyncio.gather(*self._tasks)
