"""A TCP server on a free port of 127.0.0.1, each connection of which is served in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from aiorepl.errors import ConfigurationError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


class Listener:
    """What the servers of the kit have in common.

    :param serve: serves one connection.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that it listens on.

        :raises ConfigurationError: it does not.
        """
        if not self.listening or self._server is None:
            raise ConfigurationError("nothing listens: use it within an async with statement")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None and self._server.is_serving()

    async def listen(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    def close(self) -> None:
        """Accept no more; those that are served still are."""
        if self._server is not None:
            self._server.close()

    def cancel(self) -> None:
        """Serve no more."""
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """Wait until nothing is accepted or served."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
