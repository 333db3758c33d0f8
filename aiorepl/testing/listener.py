"""A TCP server on a free port of 127.0.0.1, with a task for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from aiorepl.errors import ConfigurationError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


class Listener:
    """Accepts connections for the walsender and the proxies.

    :param serve: handles one connection.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port.

        :raises ConfigurationError: the server is not listening.
        """
        if not self.listening or self._server is None:
            raise ConfigurationError("the server is not listening: use it in an async with statement")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None and self._server.is_serving()

    async def listen(self) -> None:
        """Start accepting connections."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    def close(self) -> None:
        """Stop accepting connections; open ones continue."""
        if self._server is not None:
            self._server.close()

    def cancel(self) -> None:
        """Cancel the tasks of all connections."""
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """Wait until all connections have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
