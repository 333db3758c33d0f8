"""Reads the rows of a chunk with COPY, on a connection that can import an exported snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeVar

from aiorepl.errors import ServerError, SlotError
from aiorepl.snapshot.copy_rows import RowSplitter, skip_rows
from aiorepl.snapshot.former_backend import Backend, backend_of, end_backend
from aiorepl.snapshot.reading_transaction import TableLocked, begin_reading, translating
from aiorepl.wire.copy_out import copy_out
from aiorepl.wire.opening import NO_CONVERSION, is_sql_ascii
from aiorepl.wire.server_process import process_of

T_co = TypeVar("T_co", covariant=True)
Connect = Callable[[], Awaitable[Any]]
"""Opens a connection of ``connect_sql``."""

# Smaller parts cost more passes through all stages. The changes of one part take about 2 MiB once they are decoded.
PART_BYTES: Final = 512 * 1024
"""About how many bytes of rows are yielded at a time."""

TIMED_OUT: Final = "57014"
"""The SQLSTATE of a command that was cancelled because it took too long."""

_NOT_LOCKED: Final = "55P03"
# The snapshot has locked all tables, so COPY waits only behind a session that waits for the snapshot's own lock. PostgreSQL does
# not know that the snapshot and COPY belong together, so neither COPY nor any other session could read the table meanwhile.
_LOCK_SECONDS: Final = 1.0


async def connect_for_rows(connect: Connect) -> Any:
    """Open a connection for COPY. The text of an SQL_ASCII database may be any bytes, so it is not converted.

    :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
    """
    connection = await connect()
    if is_sql_ascii(connection):
        try:
            with translating():
                await connection.execute(NO_CONVERSION)
        except BaseException:
            connection.terminate()
            raise
    return connection


class RowTaker(Protocol[T_co]):
    """Takes rows out of the data of a COPY. ``RowSplitter`` is one."""

    missing: int

    def take(self, data: bytearray) -> tuple[T_co, int]:
        """Remove all complete rows from the beginning of ``data``; return them, and how many."""
        ...

    def finish(self) -> None:
        """Check that the data has ended."""


class RateLimit:
    """A limit on rows per second, of several readers together.

    :param rows_per_second: ``None``: no limit.
    """

    def __init__(self, rows_per_second: int | None) -> None:
        self._rows_per_second = rows_per_second
        self._free_at = 0.0

    async def wait(self, rows: int) -> None:
        """Wait until the limit permits ``rows`` more rows."""
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
    :ivar pid: the server process, which holds the locks of the tables that it has read; ``None``: not connected.
    """

    def __init__(self, connect: Connect, snapshot: str, timeout: float | None) -> None:
        self._connect = connect
        self._snapshot = snapshot
        self._timeout = timeout
        self._connection: Any = None
        self._backend: Backend | None = None
        self.pid: int | None = None

    async def open(self) -> None:
        """Connect, unless there is a connection.

        :raises SnapshotGone: the snapshot cannot be imported any more.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
        """
        if self._connection is not None and not self._connection.is_closed():
            return
        self._connection = None
        connection = await connect_for_rows(self._connect)
        try:
            with translating(connection):
                await end_backend(connection, self._backend)
                self._backend = await backend_of(connection)
                await begin_reading(connection, self._snapshot, _LOCK_SECONDS)
                self.pid = self._backend.pid
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    async def read(self, statement: str, columns: int, skip: int = 0) -> AsyncGenerator[tuple[bytes, int]]:
        """Run a COPY command, and yield its rows: their bytes, and how many. Parameters and errors as ``read_by``.

        :param columns: the number of columns.
        :param skip: the number of rows to drop at the beginning.
        """
        async with aclosing(self.read_by(RowSplitter(columns), statement)) as parts:
            async for rows, count in parts:
                dropped = min(skip, count)
                skip -= dropped
                if dropped < count:
                    yield rows[skip_rows(rows, 0, dropped) :] if dropped else rows, count - dropped

    async def read_by(
        self, taker: RowTaker[T_co], statement: str, part_bytes: int | None = None
    ) -> AsyncGenerator[tuple[T_co, int]]:
        """Run a COPY command, and yield its rows as ``taker`` takes them, and how many.

        While the caller does not ask for more, the server is held back.

        :param part_bytes: about how many bytes of rows are taken at a time; by default ``PART_BYTES``.
        :raises TableLocked: another session is going to alter the table.
        :raises ServerError: the command failed.
        :raises SlotError: the command took too long.
        :raises ConnectionLost, ProtocolError: the connection is lost.
        """
        await self.open()
        try:
            async with aclosing(
                copied_rows(self._connection, statement, taker, self._timeout, part_bytes)
            ) as parts:
                async for part in parts:
                    yield part
        except ServerError as error:
            # The transaction has failed, and with it the import of the snapshot.
            self.abort()
            if error.sqlstate == _NOT_LOCKED:
                raise TableLocked(
                    "another session waits for the snapshot's lock, to alter or truncate a table that is not read yet"
                ) from None
            if error.sqlstate == TIMED_OUT:
                # Not retried: a repeated command would take as long.
                raise SlotError(str(error)) from None
            raise

    def abort(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = self.pid = None


async def copied_rows(
    connection: Any,
    statement: str,
    taker: RowTaker[T_co],
    timeout: float | None,
    part_bytes: int | None = None,
) -> AsyncGenerator[tuple[T_co, int]]:
    """Run a COPY command, and yield its rows as ``taker`` takes them, and how many.

    :param connection: an asyncpg connection.
    :param timeout: the most seconds to wait for the server's data; ``None``: no limit.
    :param part_bytes: about how many bytes of rows are taken at a time; by default ``PART_BYTES``.
    :raises ServerError: the command failed, or took too long.
    :raises ConnectionLost, ProtocolError: the connection is lost.
    """
    left, process = timeout, process_of(connection)
    try:
        async with copy_out(connection, statement) as copy:
            while True:
                began = asyncio.get_running_loop().time()
                with process.watch(lambda: copy.arrived, copy.fail):
                    async with asyncio.timeout(left):
                        data = await copy.read(max(part_bytes or PART_BYTES, taker.missing))
                if left is not None:
                    left -= asyncio.get_running_loop().time() - began
                rows, count = taker.take(data)
                if count:
                    yield rows, count
                if copy.ended:
                    break
            taker.finish()
    except TimeoutError:
        raise ServerError(
            {"C": TIMED_OUT, "M": f"the server took longer than the statement_timeout of {timeout:g} s"}
        ) from None
