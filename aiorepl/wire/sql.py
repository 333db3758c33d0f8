"""Reads a slot through SQL functions, for hosts that allow no replication connection.

The class has the interface of ``ReplicationConnection``. Each round *peeks* at a limited number of changes after the slot's
position, and returns them as the frames that a walsender would send. The slot is advanced only to what was confirmed, never
by ``get``, which confirms before the data was processed. A round ends with ``Restart``: the next peek begins at the slot's
position again, so the decoder has to begin again too.

A walsender keeps its slot in use; a poller uses it only during each poll. Therefore the connection holds an advisory lock
against a second poller, and verifies after each peek that the slot's confirmed LSN has not changed. Confirmed LSNs only
grow, also when a slot is dropped and created again, so an unchanged LSN proves that it is the slot of the peek.

Source: "Replication Management Functions"; logicalfuncs.c and slotfuncs.c.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from aiorepl.cancellation import Resumable
from aiorepl.errors import ConfigurationError, ConnectionFailed, ServerError, ServerNotice, SlotError
from aiorepl.lsn import LSN, ZERO
from aiorepl.wire.commands import require_slot
from aiorepl.wire.frames import Keepalive, Received, XLogData
from aiorepl.wire.interface import CreatedSlot, Restart, System
from aiorepl.wire.opening import (
    ANSWER_SECONDS,
    ASYNCPG_ERRORS,
    connect_sql,
    disable_conversion,
    exposure,
    is_sql_ascii,
    translated,
)
from aiorepl.wire.server_errors import slot_problem
from aiorepl.wire.server_process import ServerProcess, process_of
from aiorepl.wire.session_settings import GIVE_UP_CLIENT
from aiorepl.wire.slot_creation import cancellable_create
from aiorepl.wire.slot_position import confirmed_query, poll_lock, require_unmoved

# A peek stops at the end of the transaction in which it reaches this many messages. Messages are fetched in portions of about a
# megabyte, as estimated by the size of the previous messages.
_ROUND_ROWS: Final = 50_000
_FETCH_BYTES: Final = 1024 * 1024
_FETCH_ROWS: Final = 2_000
_FIRST_FETCH_ROWS: Final = 100
# The pause between rounds, and its limit while sinks catch up.
_PAUSE: Final = 0.3
_LONGEST: Final = 5.0
_CLOSE_SECONDS: Final = 5.0

_SYSTEM: Final = """
SELECT (SELECT system_identifier::text FROM pg_control_system()) AS identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::int AS timeline,
       pg_current_wal_flush_lsn()::text AS flushed, current_database()::text AS database
"""
_HISTORY: Final = "SELECT pg_read_file($1, 0, 1000000, true) AS content"
_PEEK: Final = """
SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes($1, $2::text::pg_lsn, $3, {options})
"""
_ADVANCE: Final = "SELECT end_lsn FROM pg_replication_slot_advance($1, $2::text::pg_lsn)"
_LOCK: Final = "SELECT pg_try_advisory_lock($1) AS taken"


class SqlConnection:
    """An ordinary connection that reads a slot by polling. One task may use it at a time."""

    def __init__(self, connection: Any, process: ServerProcess) -> None:
        self.server_version: int = connection.get_server_version().major
        self.exposure = exposure(connection.socket_transport)
        self.pooled: bool = connection.server_pid != connection.get_server_pid()
        self.bytes_received = 0
        self._connection = connection
        self._process = process
        self._slot = ""
        self._options: list[str] = []
        self._flushed = ZERO
        # The slot's last known LSN, and the last LSN that the slot was asked to advance to. The slot is between the two.
        self._advanced = ZERO
        self._requested = ZERO
        self._pause = 0.0
        self._receiving = Resumable(self._receive, "aiorepl poller")
        self._in_round = False
        self._cursor: Any = None
        self._count = 0
        # The limit of messages in a round. It grows while a round cannot be confirmed, because an undecided PREPARE holds the
        # slot.
        self._limit = _ROUND_ROWS
        # The number of messages to fetch at once.
        self._fetch_rows = _FIRST_FETCH_ROWS
        self._until = ZERO
        self._failure: Exception | None = None

    @classmethod
    async def open(cls, dsn: str | None, **kwargs: Any) -> SqlConnection:
        """Connect. ``kwargs`` go to ``asyncpg.connect``.

        :raises ConnectionFailed: the server cannot be reached or refuses the connection; says what to do.
        :raises ConfigurationError: the DSN is invalid, or the server is older than PostgreSQL 11.
        """
        connection = await connect_sql(dsn, **kwargs)
        version = connection.get_server_version().major
        if version < 11:
            connection.terminate()
            raise ConfigurationError(
                f"PostgreSQL {version} cannot advance a slot by SQL, which needs 11 or later: use interface = walsender"
            )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                # Set this before a lock or slot is taken, so that the server releases them a minute after the client is gone, as a walsender does.
                await connection.execute(GIVE_UP_CLIENT)
                if is_sql_ascii(connection):
                    await disable_conversion(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, Exception):
                raise translated(error) from None
            raise
        return cls(connection, process_of(connection))

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """Run SQL whose columns are all text; return rows by column name.

        :raises ServerError: the query failed.
        :raises ConnectionLost: the connection is gone.
        """
        return [dict(row) for row in await self._fetch(sql)]

    async def identify_system(self) -> System:
        """Return what IDENTIFY_SYSTEM returns.

        :raises ConnectionFailed: the role may not execute pg_control_system().
        """
        try:
            (row,) = await self._fetch(_SYSTEM)
        except ServerError as error:
            if error.sqlstate == "42501":
                raise ConnectionFailed(
                    f"{error.message}: GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO the role",
                    permanent=True,
                ) from None
            raise
        return System(row["identifier"], row["timeline"], LSN.parse(row["flushed"]), row["database"])

    async def timeline_history(self, timeline: int) -> str | None:
        """Return the history file of a timeline after the first; ``None`` if the role may not read it
        (``pg_read_server_files``) or the file is gone.
        """
        try:
            (row,) = await self._fetch(_HISTORY, f"pg_wal/{timeline:08X}.history")
        except ServerError as error:
            if error.sqlstate == "42501":
                return None
            raise
        content: str | None = row["content"]
        return content

    async def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
        snapshot: str = "nothing",
    ) -> CreatedSlot:
        """Call ``pg_create_logical_replication_slot``. If the call is cancelled, no slot is left.

        :raises ConfigurationError: a snapshot is requested, which no SQL function exports, or an option is not supported.
        :raises SlotError: the slot exists already, or all slots are in use.
        """
        if snapshot != "nothing":
            raise ConfigurationError(
                "only a replication connection exports a snapshot, for an initial one and for tables without a key: set "
                'interface="walsender"'
            )
        require_slot(server=self.server_version, temporary=temporary, two_phase=two_phase, failover=failover)
        arguments: list[Any] = [name, "pgoutput", temporary]
        if self.server_version >= 14:
            arguments.append(two_phase)
        if self.server_version >= 17:
            arguments.append(failover)
        return await cancellable_create(
            self._create(arguments),
            name,
            process=self._process,
            heard=lambda: self.bytes_received,
            fail=self.fail,
            drop=partial(self.drop_slot, name),
        )

    async def _create(self, arguments: list[Any]) -> CreatedSlot:
        parameters = ", ".join(f"${number}" for number in range(1, len(arguments) + 1))
        try:
            (row,) = await self._fetch(
                f"SELECT lsn::text FROM pg_create_logical_replication_slot({parameters})",
                *arguments,
                timeout=None,
            )
        except ServerError as error:
            raise slot_problem(error, arguments[0]) from None
        return CreatedSlot(arguments[0], LSN.parse(row["lsn"]), None)

    async def drop_slot(self, name: str, *, wait: bool = False) -> None:
        """Call ``pg_drop_replication_slot``.

        :param wait: ignored: no SQL function waits.
        :raises SlotError: the slot does not exist, or is in use.
        """
        try:
            await self._fetch("SELECT pg_drop_replication_slot($1)", name)
        except ServerError as error:
            raise slot_problem(error, name, wanted=False) from None

    async def start_replication(
        self, slot: str, lsn: LSN, options: Mapping[str, str], *, confirmed: LSN | None = None
    ) -> None:
        """Begin to read at the slot's confirmed LSN; ``lsn`` is not used.

        :param confirmed: the slot's confirmed LSN when it was checked; ``None``: not verified.
        :raises SlotError: another poller uses the slot, or it was moved or dropped since it was checked.
        """
        self._slot = slot
        self._options = [part for pair in options.items() for part in pair]
        (row,) = await self._fetch(_LOCK, poll_lock(slot))
        if not row["taken"]:
            raise SlotError(
                f"another consumer reads slot {slot!r} through SQL functions: stop it, or use another slot",
                busy=True,
            )
        self._advanced = self._requested = await self._require_unmoved(confirmed)

    async def receive(self) -> list[Received | Restart]:
        """Return the next frames of a round, or its end. A cancelled call consumes nothing.

        :raises SlotError: another consumer has moved the slot.
        :raises ServerError: the peek failed.
        :raises ConnectionLost: the connection is gone.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return await self._receiving.result()
        except Exception as error:
            # The rest of the round is lost, and the decoder may be in the middle of a transaction.
            self._failure = error
            raise

    def on_reply_request(self, callback: Callable[[], None]) -> None:
        """Do nothing: the SQL interface has no reply requests."""

    def on_notice(self, callback: Callable[[ServerNotice], None]) -> None:
        """Call ``callback`` for each notice of the server; ``receive`` raises the callback's exception."""

        def listener(_: Any, message: Any) -> None:
            fields = {"C": message.sqlstate, "M": message.message, "R": message.server_source_function}
            try:
                callback(ServerNotice({letter: text for letter, text in fields.items() if text is not None}))
            except Exception as error:  # noqa: BLE001 - ``receive`` raises it
                self.fail(error)

        # A closed connection takes no listener; the next query says that it was lost.
        if not self._connection.is_closed():
            self._connection.add_log_listener(listener)

    def send_status(self, received: LSN, flushed: LSN, applied: LSN, *, reply: bool = False) -> None:
        """Record the confirmed LSN; the slot is advanced before the next round."""
        self._flushed = max(self._flushed, flushed)

    async def stop(self) -> None:
        """Advance the slot to the confirmed LSN, and release the lock."""
        await self._receiving.stop()
        if not self._connection.is_closed():
            await self._end_round()
            await self._advance()
            await self._fetch("SELECT pg_advisory_unlock_all()")

    async def close(self) -> None:
        """Terminate the session, and wait until the socket is closed. After ``_CLOSE_SECONDS``, drop the connection."""
        with contextlib.suppress(TimeoutError):
            await self._connection.close(timeout=_CLOSE_SECONDS)

    def abort(self) -> None:
        """Drop the connection without terminating the session."""
        self._receiving.cancel()
        self._connection.terminate()

    def fail(self, error: Exception) -> None:
        """Drop the connection; ``receive`` raises ``error``."""
        self._failure = self._failure or error
        self._connection.terminate()

    def heard(self) -> int | None:
        """Return ``None``: a peek may take long, and TCP keepalives detect a peer that is gone."""
        return None

    async def _receive(self) -> list[Received | Restart]:
        begins = self._cursor is None
        if begins:
            await self._begin_round()
        try:
            rows = await self._cursor.fetch(self._fetch_rows)
        except ASYNCPG_ERRORS as error:
            raise slot_problem(self._translated(error), self._slot) from None
        if begins:
            # The server runs the whole peek for the first fetch, and keeps the remaining rows.
            await self._require_unmoved(self._requested)
        if rows:
            self._count += len(rows)
            frames: list[XLogData] = []
            before = self.bytes_received
            for row in rows:
                at = LSN.parse(row["lsn"])
                self.bytes_received += len(row["data"])
                frames.append(XLogData(at, at, 0, row["data"]))
            mean = (self.bytes_received - before) // len(rows)
            self._fetch_rows = min(max(_FETCH_BYTES // max(mean, 1), 1), _FETCH_ROWS)
            return [frames]
        # A round that stopped at the limit does not show that the WAL after its last transaction is empty.
        limited = self._count >= self._limit
        await self._end_round()
        idle = [] if limited else [Keepalive(self._until, 0, reply_requested=False)]
        return [*idle, Restart()]

    async def _begin_round(self) -> None:
        await self._advance()
        await asyncio.sleep(self._pause)
        self._until = (await self.identify_system()).xlogpos
        self._count = 0
        self._in_round = True
        try:
            await self._connection.execute("BEGIN", timeout=ANSWER_SECONDS)
            # A parameter for each value, because asyncpg encodes arrays of text in the connection's encoding, which may be
            # SQL_ASCII.
            options = ", ".join(f"${number}::text" for number in range(4, 4 + len(self._options)))
            self._cursor = await self._connection.cursor(
                _PEEK.format(options=options), self._slot, str(self._until), self._limit, *self._options
            )
        except ASYNCPG_ERRORS as error:
            raise slot_problem(self._translated(error), self._slot) from None

    async def _end_round(self) -> None:
        if not self._in_round:
            return
        self._cursor = None
        # The transaction wrote nothing. ROLLBACK also ends a failed one.
        await self._fetch("ROLLBACK")
        self._in_round = False
        # Unconfirmed changes would be read again at once: let the sinks catch up first.
        waiting = self._count > 0 and self._flushed <= self._advanced
        self._pause = min(2 * self._pause, _LONGEST) if waiting else _PAUSE
        if not waiting:
            self._limit = _ROUND_ROWS
        elif self._count >= self._limit:
            # The server may have sent a part of a prepared transaction. Read more, up to its COMMIT PREPARED.
            self._limit *= 2

    async def _advance(self) -> None:
        if (flushed := self._flushed) > self._advanced:
            self._requested = flushed
            try:
                await self._fetch(_ADVANCE, self._slot, str(flushed), timeout=None)
            except ServerError as error:
                raise slot_problem(error, self._slot) from None
            self._advanced = flushed

    async def _require_unmoved(self, known: LSN | None) -> LSN:
        rows = await self._fetch(confirmed_query(self._slot))
        return require_unmoved(self._slot, rows, known)

    async def _fetch(self, sql: str, *arguments: Any, timeout: float | None = ANSWER_SECONDS) -> list[Any]:
        try:
            return list(await self._connection.fetch(sql, *arguments, timeout=timeout))
        except ASYNCPG_ERRORS as error:
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> Exception:
        return self._failure or translated(error)
