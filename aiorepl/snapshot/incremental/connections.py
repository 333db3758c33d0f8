"""The two connections for tables that are read beside the stream; tables that are read in turn share them."""

from __future__ import annotations

from typing import Any

from aiorepl.snapshot.chunk_reader import connect_for_rows
from aiorepl.snapshot.former_backend import Backend, backend_of, end_backend
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.merging.watermarks import require_messages


class ReadingConnections:
    """Opens each connection at its first use, and again after it was closed.

    Tables share the connections, because each new backend has to fill its catalog caches first.
    """

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._control: Any = None
        self._reader: Any = None
        self._backend: Backend | None = None

    async def control(self) -> Any:
        """Return the connection without a snapshot. It reads the catalog and emits logical messages.

        :raises ConfigurationError: the server cannot emit logical messages.
        :raises ConnectionFailed: no connection can be opened.
        """
        if self._control is None or self._control.is_closed():
            connection = self._control = await self._source.connect()
            timeout = self._source.options.lock_timeout
            await connection.execute(f"SET lock_timeout = {round((timeout or 0) * 1000)}")
            await require_messages(connection, self._source.slot)
        return self._control

    async def reader(self) -> Any:
        """Return the connection that reads rows. It has no open transaction.

        :raises ConnectionFailed: no connection can be opened.
        """
        if self._reader is None or self._reader.is_closed():
            reader = self._reader = await connect_for_rows(self._source.connect)
            await end_backend(reader, self._backend)
            self._backend = await backend_of(reader)
        return self._reader

    def close(self) -> None:
        """Drop both connections."""
        for connection in (self._reader, self._control):
            if connection is not None:
                connection.terminate()
        self._reader = self._control = None
