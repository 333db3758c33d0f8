"""The calls that wait until tables are complete. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Collection


class Completion:
    """Calls that wait for tables. Each call has a set of tables, by their ids in the ledger."""

    def __init__(self) -> None:
        # The tables that are not complete, for each call.
        self._calls: dict[asyncio.Future[None], set[int]] = {}

    def wait_for(self, tables: Collection[int]) -> asyncio.Future[None]:
        """Return a future that is done once these tables are complete, or has the error of one of them."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls[done] = set(tables)
        return done

    def replace(self, table: int, others: Collection[int]) -> None:
        """Let the calls that wait for a requested name wait for the tables that the name stands for."""
        for tables in self._calls.values():
            if table in tables:
                tables.discard(table)
                tables |= set(others)

    def finish(self, table: int, error: BaseException | None = None) -> None:
        """Record that a table is complete, or why it never will be."""
        for done, tables in list(self._calls.items()):
            if table not in tables:
                continue
            tables.discard(table)
            if tables and error is None:
                continue
            del self._calls[done]
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def end(self, error: BaseException) -> None:
        """End all calls with this error, because no table is read any more."""
        for tables in list(self._calls.values()):
            for table in list(tables):
                self.finish(table, error)
