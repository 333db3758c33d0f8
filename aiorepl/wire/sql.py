"""The other route: a slot read through SQL functions, for hosts that allow no replication connection.

Looks like a ``ReplicationConnection`` to its user. Each round *peeks* at what is behind the slot's position, bounded in
rows, and gives it out as the frames a walsender would have sent; the slot is advanced only to what was confirmed, and
never by ``get``, which confirms before anyone has seen the data. A round ends with ``Restart``: the next peek begins
anew from the slot's position, so whoever decodes has to begin anew as well.

A walsender keeps its slot; a poller uses it for moments. So the connection holds an advisory lock, which keeps a second
poller out, and looks after each peek whether the slot still stands where this connection has left it. Positions only
grow, also those of a slot that is dropped and created again, so a slot found there was there when the peek began.

Source: "Replication Management Functions"; logicalfuncs.c and slotfuncs.c.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import asyncpg

from aiorepl.cancellation import Resumable
from aiorepl.errors import ConfigurationError, ConnectionFailed, ServerError, ServerNotice, SlotError
from aiorepl.lsn import LSN, ZERO
from aiorepl.wire.commands import require_slot
from aiorepl.wire.frames import Keepalive, XLogData
from aiorepl.wire.interface import CreatedSlot, Restart, System
from aiorepl.wire.opening import (
    ANSWER_SECONDS,
    connect_sql,
    exposure,
    keeps_any_bytes,
    take_text_as_it_is,
    translated,
)
from aiorepl.wire.server_errors import slot_problem
from aiorepl.wire.slot_creation import cancel_backend, created
from aiorepl.wire.standing import poll_lock, require_standing, standing

# A peek stops at the first transaction end past this many messages. They are fetched in portions: so many bytes by the size
# of those before, and so many messages at most.
_ROUND: Final = 50_000
_PORTION_BYTES: Final = 1024 * 1024
_PORTION: Final = 2_000
_FIRST_PORTION: Final = 100
# How often to look for something new, and whether sinks have caught up.
_PAUSE: Final = 0.3
_LONGEST: Final = 5.0
_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)

SqlFrame = XLogData | Keepalive | Restart

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
# The server detects a vanished client, and releases its lock, as soon as a walsender would.
_KEEPALIVE: Final = """
SELECT set_config(name, value, false)
  FROM (VALUES ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'), ('tcp_keepalives_count', '3')) AS s(name, value)
"""


class SqlConnection:
    """An ordinary connection that reads a slot by polling. One task may use it at a time."""

    def __init__(self, connection: Any, cancel: Callable[[], Awaitable[None]]) -> None:
        self.server_version: int = connection.get_server_version().major
        self.exposure = exposure(connection.handed_over)
        self.bytes_received = 0
        self._connection = connection
        self._cancel = cancel
        self._slot = ""
        self._options: list[str] = []
        self._flushed = ZERO
        # The slot's last known LSN, and the LSN that was last requested; the slot is between the two.
        self._advanced = ZERO
        self._asked = ZERO
        self._pause = 0.0
        self._receiving = Resumable(self._receive, "aiorepl poller")
        self._begun = False
        self._cursor: Any = None
        self._count = 0
        # Messages of a round. The limit grows while a round cannot be confirmed: an undecided PREPARE may hold the slot.
        self._limit = _ROUND
        # How many messages to fetch at once, as large as they are.
        self._portion = _FIRST_PORTION
        self._until = ZERO
        self._failure: Exception | None = None

    @classmethod
    async def open(cls, dsn: str | None, **kwargs: Any) -> SqlConnection:
        """Connect. ``kwargs`` go to ``asyncpg.connect``.

        :raises ConnectionFailed: no server, or it refuses; says what to do.
        :raises ConfigurationError: when the DSN cannot be read, or the server is older than PostgreSQL 11.
        """
        connection = await connect_sql(dsn, **kwargs)
        version = connection.get_server_version().major
        if version < 11:
            await connection.close()
            raise ConfigurationError(
                f"PostgreSQL {version} cannot advance a slot by SQL: that needs 11 or later; use the walsender source"
            )
        if keeps_any_bytes(connection):
            try:
                await take_text_as_it_is(connection)
            except BaseException as error:
                connection.terminate()
                if isinstance(error, Exception):
                    raise translated(error) from None
                raise
        return cls(connection, partial(cancel_backend, connection.get_server_pid(), dsn, **kwargs))

    async def query(self, sql: str) -> list[dict[str, str | None]]:
        """Run SQL whose columns are all text.

        :raises ServerError: the server's refusal.
        :raises ConnectionLost: the connection is gone.
        """
        return [dict(row) for row in await self._fetch(sql, timeout=ANSWER_SECONDS)]

    async def identify_system(self) -> System:
        """What IDENTIFY_SYSTEM would say."""
        try:
            (row,) = await self._fetch(_SYSTEM, timeout=ANSWER_SECONDS)
        except ServerError as error:
            if error.sqlstate == "42501":
                raise ConnectionFailed(
                    f"{error.message}: GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO the role",
                    permanent=True,
                ) from None
            raise
        return System(row["identifier"], row["timeline"], LSN.parse(row["flushed"]), row["database"])

    async def timeline_history(self, timeline: int) -> str | None:
        """The history file of a timeline after the first, for roles that may read it (``pg_read_server_files``); else
        ``None``.
        """
        try:
            (row,) = await self._fetch(_HISTORY, f"pg_wal/{timeline:08X}.history", timeout=ANSWER_SECONDS)
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
        """``pg_create_logical_replication_slot``. If this is cancelled, no slot is left.

        :raises ConfigurationError: for a snapshot, which no SQL function exports, and what the server cannot do.
        :raises SlotError: the slot exists already, or none is free.
        """
        if snapshot != "nothing":
            raise ConfigurationError(
                "an initial load needs a replication connection: use the walsender source"
            )
        require_slot(server=self.server_version, temporary=temporary, two_phase=two_phase, failover=failover)
        arguments: list[Any] = [name, "pgoutput", temporary]
        if self.server_version >= 14:
            arguments.append(two_phase)
        if self.server_version >= 17:
            arguments.append(failover)
        return await created(self._create(arguments), cancel=self._cancel, drop=partial(self.drop_slot, name))

    async def _create(self, arguments: list[Any]) -> CreatedSlot:
        places = ", ".join(f"${place}" for place in range(1, len(arguments) + 1))
        try:
            (row,) = await self._fetch(
                f"SELECT lsn::text FROM pg_create_logical_replication_slot({places})", *arguments
            )
        except ServerError as error:
            raise slot_problem(error, arguments[0]) from None
        return CreatedSlot(arguments[0], LSN.parse(row["lsn"]), None)

    async def drop_slot(self, name: str, *, wait: bool = False) -> None:
        """``pg_drop_replication_slot``.

        :param wait: ignored, because no SQL function waits; a slot in use is refused at once.
        :raises SlotError: it does not exist, or is in use.
        """
        try:
            await self._fetch("SELECT pg_drop_replication_slot($1)", name)
        except ServerError as error:
            raise slot_problem(error, name) from None

    async def start_replication(
        self, slot: str, lsn: LSN, options: Mapping[str, str], *, confirmed: LSN | None = None
    ) -> None:
        """Begin to read. The slot's own position decides where: ``lsn`` is behind it at the earliest.

        :param confirmed: where the slot stood when it was checked; ``None``: wherever it stands.
        :raises SlotError: another poller has the slot, or it was moved since, or is gone.
        """
        self._slot = slot
        self._options = [part for pair in options.items() for part in pair]
        (row,) = await self._fetch(_LOCK, poll_lock(slot), timeout=ANSWER_SECONDS)
        if not row["taken"]:
            raise SlotError(
                f"another consumer reads slot {slot!r} through SQL functions: stop it, or use a slot of your own",
                busy=True,
            )
        await self._fetch(_KEEPALIVE, timeout=ANSWER_SECONDS)
        self._advanced = self._asked = await self._standing(confirmed)

    async def receive(self) -> list[SqlFrame]:
        """The next portion of a round, or its end; waits until there is something to say. A call that is cancelled
        consumes nothing.

        :raises SlotError: somebody else has moved the slot.
        :raises ServerError: the server's refusal.
        :raises ConnectionLost: the connection is gone.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return await self._receiving.result()
        except Exception as error:
            # The round is lost, and its reader may stand within a transaction.
            self._failure = error
            raise

    def on_reply_request(self, callback: Callable[[], None]) -> None:
        """Nobody asks for a reply on this route."""

    def on_notice(self, callback: Callable[[ServerNotice], None]) -> None:
        """Call ``callback`` for each notice of the server; ``receive`` raises the callback's exception."""

        def told(_: Any, message: Any) -> None:
            fields = {"C": message.sqlstate, "M": message.message, "R": message.server_source_function}
            try:
                callback(ServerNotice({letter: text for letter, text in fields.items() if text is not None}))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for, not in the loop
                self.fail(error)

        self._connection.add_log_listener(told)

    def send_status(self, received: LSN, flushed: LSN, applied: LSN, *, reply: bool = False) -> None:
        """Note what is confirmed; the slot is advanced before the next round."""
        self._flushed = max(self._flushed, flushed)

    async def stop(self) -> None:
        """Confirm the remaining progress, and release the lock."""
        await self._receiving.stop()
        if not self._connection.is_closed():
            await self._end_round()
            await self._advance()
            await self._fetch("SELECT pg_advisory_unlock_all()", timeout=ANSWER_SECONDS)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    def abort(self) -> None:
        """Drop the connection, as a crash would."""
        self._receiving.cancel()
        self._connection.terminate()

    def fail(self, error: Exception) -> None:
        """Drop the connection, and have ``receive`` raise this."""
        self._failure = self._failure or error
        self._connection.terminate()

    def heard(self) -> int | None:
        """Nothing: a peek may rightly take long, and a peer that is gone is found out by TCP's keepalives."""
        return None

    async def _receive(self) -> list[SqlFrame]:
        begins = self._cursor is None
        if begins:
            await self._begin_round()
        try:
            rows = await self._cursor.fetch(self._portion)
        except _ERRORS as error:
            raise slot_problem(self._translated(error), self._slot) from None
        if begins:
            # The server has done the peek with the first portion, and keeps the others.
            await self._standing(self._asked)
        if rows:
            self._count += len(rows)
            frames: list[SqlFrame] = []
            before = self.bytes_received
            for row in rows:
                at = LSN.parse(row["lsn"])
                self.bytes_received += len(row["data"])
                frames.append(XLogData(at, at, 0, row["data"]))
            mean = (self.bytes_received - before) // len(rows)
            self._portion = min(max(_PORTION_BYTES // max(mean, 1), 1), _PORTION)
            return frames
        # Stopped by the limit, a round says nothing of what lies behind its last transaction.
        limited = self._count >= self._limit
        await self._end_round()
        idle: list[SqlFrame] = [] if limited else [Keepalive(self._until, 0, reply_requested=False)]
        return [*idle, Restart()]

    async def _begin_round(self) -> None:
        await self._advance()
        await asyncio.sleep(self._pause)
        self._until = (await self.identify_system()).xlogpos
        self._count = 0
        self._begun = True
        try:
            await self._connection.execute("BEGIN")
            # One parameter each, for asyncpg makes an array of text by the connection's encoding, which may be none.
            options = ", ".join(f"${number}::text" for number in range(4, 4 + len(self._options)))
            self._cursor = await self._connection.cursor(
                _PEEK.format(options=options), self._slot, str(self._until), self._limit, *self._options
            )
        except _ERRORS as error:
            raise slot_problem(self._translated(error), self._slot) from None

    async def _end_round(self) -> None:
        if not self._begun:
            return
        self._cursor = None
        # Nothing was written: rolling back also ends a round that failed.
        await self._fetch("ROLLBACK")
        self._begun = False
        # What was given out and is not confirmed would be read again at once: rather let the sinks catch up.
        waiting = self._count > 0 and self._flushed <= self._advanced
        self._pause = min(2 * self._pause, _LONGEST) if waiting else _PAUSE
        if not waiting:
            self._limit = _ROUND
        elif self._count >= self._limit:
            # The COMMIT PREPARED that releases the slot may lie behind this round.
            self._limit *= 2

    async def _advance(self) -> None:
        if (flushed := self._flushed) > self._advanced:
            self._asked = flushed
            try:
                await self._fetch(_ADVANCE, self._slot, str(flushed))
            except ServerError as error:
                raise slot_problem(error, self._slot) from None
            self._advanced = flushed

    async def _standing(self, known: LSN | None) -> LSN:
        rows = await self._fetch(standing(self._slot), timeout=ANSWER_SECONDS)
        return require_standing(self._slot, rows, known)

    async def _fetch(self, sql: str, *arguments: Any, timeout: float | None = None) -> list[Any]:
        try:
            return list(await self._connection.fetch(sql, *arguments, timeout=timeout))
        except _ERRORS as error:
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> Exception:
        return self._failure or translated(error)
