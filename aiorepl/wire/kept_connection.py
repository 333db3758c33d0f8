"""A connection for occasional queries. The first query opens it, and so does the first query after one that failed."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiorepl.wire.opening import ANSWER_SECONDS


class KeptConnection:
    """Runs queries on one connection, one at a time.

    :param connect: opens an asyncpg connection.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]]) -> None:
        self._connect = connect
        self._connection: Any = None

    async def server_version(self) -> int:
        """Return the server's major version. An error drops the connection."""
        try:
            return int((await self.opened()).get_server_version().major)
        except BaseException:
            self.drop()
            raise

    async def fetchrow(self, query: str, *arguments: Any) -> Any:
        """Return the first row; ``None`` if there is none. An error drops the connection."""
        return next(iter(await self.fetch(query, *arguments)), None)

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """Return all rows. An error drops the connection."""
        try:
            connection = await self.opened()
            return list(await connection.fetch(query, *arguments, timeout=ANSWER_SECONDS))
        except BaseException:
            self.drop()
            raise

    async def opened(self) -> Any:
        """Return the connection, which is opened if there is none."""
        if self._connection is None:
            self._connection = await self._connect()
        return self._connection

    def drop(self) -> None:
        """Drop the connection at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.terminate()
