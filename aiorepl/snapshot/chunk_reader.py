"""Reads the rows of a chunk with COPY, on a connection that can import an exported snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from aiorepl.errors import ServerError, SlotError
from aiorepl.snapshot.copy_rows import RowSplitter, skip_rows
from aiorepl.snapshot.reading_transaction import begin_reading, translating
from aiorepl.wire.copy_out import copy_out
from aiorepl.wire.opening import NO_CONVERSION, is_sql_ascii

Connect = Callable[[], Awaitable[Any]]
"""Opens a connection of ``connect_sql``."""

# Smaller parts cost more passes through all stages. The changes of one part take about 2 MiB once they are decoded.
PART_BYTES: Final = 512 * 1024
"""About how many bytes of rows are yielded at a time."""

TIMED_OUT: Final = "57014"
"""The SQLSTATE of a command that was cancelled, because it took too long."""


class RateLimit:
    """A limit on rows per second, of several readers together.

    :param rows_per_second: ``None``: no limit.
    """

    def __init__(self, rows_per_second: int | None) -> None:
        self._rows_per_second = rows_per_second
        self._free_at = 0.0

    async def wait(self, rows: int) -> None:
        """Wait until that many more rows may be read."""
        if self._rows_per_second is None:
            return
        now = asyncio.get_running_loop().time()
        begin = max(self._free_at, now)
        self._free_at = begin + rows / self._rows_per_second
        await asyncio.sleep(begin - now)


class ChunkReader:
    """Reads one chunk at a time. The connection is opened by the first call, and again after an error.

    :param connect: opens a connection.
    :param snapshot: the name of the exported snapshot.
    :param timeout: the most seconds to wait for the server's data of one chunk; ``None``: no limit.
    """

    def __init__(self, connect: Connect, snapshot: str, timeout: float | None) -> None:
        self._connect = connect
        self._snapshot = snapshot
        self._timeout = timeout
        self._connection: Any = None

    async def open(self) -> None:
        """Connect, unless there is a connection.

        :raises SnapshotGone: the snapshot cannot be imported any more.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
        """
        if self._connection is not None and not self._connection.is_closed():
            return
        self._connection = None
        connection = await self._connect()
        try:
            with translating():
                await begin_reading(connection, self._snapshot)
                if is_sql_ascii(connection):
                    await connection.execute(NO_CONVERSION)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    async def read(self, statement: str, columns: int, skip: int = 0) -> AsyncGenerator[tuple[bytes, int]]:
        """Run a COPY command, and yield its rows: their bytes, and how many.

        While the caller does not ask for more, the server is held back.

        :param columns: the number of columns.
        :param skip: the number of rows to drop at the beginning.
        :raises ServerError: the command failed.
        :raises SlotError: it took too long.
        :raises ConnectionLost, ProtocolError: the connection is lost.
        """
        await self.open()
        try:
            async with aclosing(
                copied_rows(self._connection, statement, columns, self._timeout, skip)
            ) as parts:
                async for part in parts:
                    yield part
        except ServerError as error:
            # The transaction has failed, and with it the import.
            self.abort()
            if error.sqlstate == TIMED_OUT:
                # The next attempt would take as long.
                raise SlotError(str(error)) from None
            raise

    def abort(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


async def copied_rows(
    connection: Any,
    statement: str,
    columns: int,
    timeout: float | None,
    skip: int = 0,
) -> AsyncGenerator[tuple[bytes, int]]:
    """Run a COPY command, and yield its rows: their bytes, and how many.

    :param connection: an asyncpg connection.
    :param columns: the number of columns.
    :param timeout: the most seconds to wait for the server's data; ``None``: no limit.
    :param skip: the number of rows to drop at the beginning.
    :raises ServerError: the command failed, or took too long.
    :raises ConnectionLost, ProtocolError: the connection is lost.
    """
    splitter = RowSplitter(columns)
    left = timeout
    try:
        async with copy_out(connection, statement) as copy:
            while True:
                began = asyncio.get_running_loop().time()
                async with asyncio.timeout(left):
                    data = await copy.read(max(PART_BYTES, splitter.missing))
                if left is not None:
                    left -= asyncio.get_running_loop().time() - began
                rows, count = splitter.take(data)
                if skip:
                    dropped = min(skip, count)
                    rows, count = rows[skip_rows(rows, 0, dropped) :], count - dropped
                    skip -= dropped
                if count:
                    yield rows, count
                if copy.ended:
                    break
            splitter.finish()
    except TimeoutError:
        raise ServerError(
            {"C": TIMED_OUT, "M": f"the server took longer than the statement_timeout of {timeout:g} s"}
        ) from None
