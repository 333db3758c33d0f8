"""A replication connection: asyncpg opens it, then ``ReplicationProtocol`` takes over the transport.

asyncpg provides DSNs, service and password files, TLS, SCRAM, and several hosts with target_session_attrs. A walsender
refuses the extended query protocol that asyncpg uses, so the transport is handed over as soon as it is authenticated.
asyncpg has no SCRAM channel binding.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from aiorepl.epoch import EPOCH_SECONDS
from aiorepl.errors import (
    AioreplError,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    ServerError,
    ServerNotice,
)
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.wire import commands, frames
from aiorepl.wire.frames import Received
from aiorepl.wire.interface import CreatedSlot, System
from aiorepl.wire.opening import (
    ANSWER_SECONDS,
    NO_CONVERSION,
    connect_sql,
    connect_walsender,
    exposure,
    is_sql_ascii,
    server_name,
)
from aiorepl.wire.pooler import prepare
from aiorepl.wire.protocol import ReplicationProtocol
from aiorepl.wire.query_results import parsing
from aiorepl.wire.server_errors import slot_problem
from aiorepl.wire.server_process import ServerProcess
from aiorepl.wire.session_settings import NO_POOLER, TEXT_SETTINGS
from aiorepl.wire.slot_creation import cancellable_create
from aiorepl.wire.slot_position import confirmed_query, require_unmoved

_log = logger("aiorepl.wire")

_SYNTAX_ERROR: Final = "42601"


class ReplicationConnection:
    """A walsender of one database. One task may use it at a time; any task may call ``send_status``."""

    def __init__(
        self, protocol: ReplicationProtocol, server_version: int, exposed: str | None = None
    ) -> None:
        self.server_version = server_version
        self.exposure = exposed
        self.pooled = False
        self._protocol = protocol
        self._slot = ""
        # Set by ``open``.
        self._process: ServerProcess
        protocol.on_notice = _log_notice

    @classmethod
    async def open(cls, dsn: str | None, **kwargs: Any) -> ReplicationConnection:
        """Connect and authenticate. ``kwargs`` go to ``asyncpg.connect``.

        :raises ConnectionFailed: the server cannot be reached or refuses the connection; says what to do.
        :raises ConfigurationError: the DSN is invalid, or the server is older than PostgreSQL 10.
        """
        opened = await connect_walsender(dsn, **kwargs)
        version = opened.get_server_version().major
        transport = opened.socket_transport
        protocol = ReplicationProtocol(transport, asyncio.get_running_loop())
        transport.set_protocol(protocol)
        pid, any_bytes = opened.get_server_pid(), is_sql_ascii(opened)
        opened.detach()
        if version < 10:
            protocol.abort()
            raise ConfigurationError(f"PostgreSQL {version} is too old: logical replication begins with 10")
        connection = cls(protocol, version, exposure(transport))
        server = server_name(dsn)
        try:
            with parsing("the settings of the session"):
                # A pooler in any mode gives a walsender its own process, and may share any other process.
                is_walsender = connection.identify_system
                process = await prepare(connection.query, pid, TEXT_SETTINGS, server, is_walsender)
            connection.pooled = process.pid != pid
            if any_bytes:
                await connection.query(NO_CONVERSION)
        except ConnectionLost:
            raise ConnectionFailed(f"{server} closed the connection while it was opened") from None
        except BaseException:
            connection.abort()
            raise
        connection._process = ServerProcess(
            process, transport, partial(connect_sql, dsn, **kwargs), pooled=connection.pooled
        )
        return connection

    @property
    def bytes_received(self) -> int:
        """The number of bytes received so far."""
        return self._protocol.bytes_received

    async def query(self, sql: str, *, timeout: float | None = ANSWER_SECONDS) -> list[dict[str, str | None]]:
        """Run SQL or a replication command by the simple query protocol; return rows as text by column name.

        :param timeout: seconds to wait for the result; ``None``: no limit.
        :raises ServerError: the command failed.
        :raises ConnectionLost: the connection is gone, or the timeout has passed.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._protocol.query(sql)
        except TimeoutError:
            self.abort()
            raise ConnectionLost(f"the server has not answered for {timeout:g} s") from None

    async def identify_system(self) -> System:
        """Run IDENTIFY_SYSTEM.

        :raises ConnectionFailed: a pooler has opened an ordinary connection.
        :raises ServerError, ConnectionLost: the command failed.
        :raises ProtocolError: the result is not one that PostgreSQL returns.
        """
        with parsing("IDENTIFY_SYSTEM"):
            try:
                (row,) = await self.query(commands.IDENTIFY_SYSTEM)
            except ServerError as error:
                if error.sqlstate != _SYNTAX_ERROR:
                    raise
                raise ConnectionFailed(
                    "this is not a replication connection: a pooler such as PgBouncer before 1.23 ignores the parameter replication: "
                    f"{NO_POOLER}",
                    permanent=True,
                ) from None
            return System(
                row["systemid"] or "",
                int(row["timeline"] or 0),
                LSN.parse(row["xlogpos"] or "0/0"),
                row["dbname"] or "",
            )

    async def timeline_history(self, timeline: int) -> str | None:
        """Run TIMELINE_HISTORY: the history file of a timeline after the first; ``None`` if the file is gone.

        :raises ServerError, ConnectionLost: the command failed.
        """
        try:
            with parsing("TIMELINE_HISTORY"):
                (row,) = await self.query(commands.timeline_history(timeline))
                return row["content"]
        except ServerError as error:
            if error.sqlstate == "58P01":
                return None
            raise

    async def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
        snapshot: str = "nothing",
    ) -> CreatedSlot:
        """Run CREATE_REPLICATION_SLOT for pgoutput. If the call is cancelled, no slot is left.

        :raises SlotError: the slot exists already, or all slots are in use.
        :raises ConfigurationError: the server does not support an option, or its ``wal_level`` is not logical.
        """
        command = commands.create_slot(
            name,
            server=self.server_version,
            temporary=temporary,
            two_phase=two_phase,
            failover=failover,
            snapshot=snapshot,
        )
        return await cancellable_create(
            self._create(command, name),
            name,
            process=self._process,
            heard=lambda: self.bytes_received,
            fail=self.fail,
            drop=partial(self.drop_slot, name),
        )

    async def _create(self, command: str, name: str) -> CreatedSlot:
        try:
            with parsing("CREATE_REPLICATION_SLOT"):
                # The server waits until the transactions in progress have ended.
                (row,) = await self.query(command, timeout=None)
                return CreatedSlot(
                    row["slot_name"] or name,
                    LSN.parse(row["consistent_point"] or "0/0"),
                    row["snapshot_name"] or None,
                )
        except ServerError as error:
            raise slot_problem(error, name) from None

    async def alter_slot(
        self, name: str, *, failover: bool | None = None, two_phase: bool | None = None
    ) -> None:
        """Run ALTER_REPLICATION_SLOT; ``None`` leaves an option unchanged. The server waits until the slot is not in use.

        :raises SlotError: the slot does not exist.
        :raises ConfigurationError: the server does not support an option.
        """
        command = commands.alter_slot(
            name, server=self.server_version, failover=failover, two_phase=two_phase
        )
        try:
            await self.query(command, timeout=None)
        except ServerError as error:
            raise slot_problem(error, name, wanted=False) from None

    async def drop_slot(self, name: str, *, wait: bool = False) -> None:
        """Run DROP_REPLICATION_SLOT.

        :param wait: wait until the slot is not in use.
        :raises SlotError: the slot does not exist, or is in use.
        """
        try:
            await self.query(commands.drop_slot(name, wait=wait), timeout=None)
        except ServerError as error:
            raise slot_problem(error, name, wanted=False) from None

    async def start_replication(
        self, slot: str, lsn: LSN, options: Mapping[str, str], *, confirmed: LSN | None = None
    ) -> None:
        """Run START_REPLICATION; then ``receive`` and ``send_status`` can be used.

        :param confirmed: the slot's confirmed LSN when it was checked; ``None``: not verified.
        :raises SlotError: the slot is missing, in use, lost, of another kind, or was moved since it was checked.
        :raises ConfigurationError: a publication is missing, or the server refuses an option.
        :raises ProtocolError: the server does not begin CopyBoth.
        """
        self._slot = slot
        if confirmed is not None:
            require_unmoved(slot, await self.query(confirmed_query(slot)), confirmed)
        try:
            await self.query(commands.start_replication(slot, lsn, options))
        except ServerError as error:
            raise slot_problem(error, slot) from None
        self._protocol.require_copy()

    async def receive(self) -> list[Received]:
        """Return all frames that have arrived, at least one; an empty list when the server ended the stream.

        Between calls at most about a megabyte is read ahead.

        :raises ServerError: the server ended the stream with an error.
        :raises ProtocolError: a frame is malformed.
        :raises ConnectionLost: the connection is gone.
        """
        try:
            return await self._protocol.receive()
        except ServerError as error:
            if error.sqlstate == "42704":
                raise slot_problem(error, self._slot) from None
            raise

    def on_reply_request(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` as soon as the server requests a status update, from within the read callback."""
        self._protocol.on_reply_request = callback

    def on_notice(self, callback: Callable[[ServerNotice], None]) -> None:
        """Call ``callback`` for each notice of the server, which is logged as well. ``receive`` raises the callback's
        exception after the messages that arrived before it.
        """

        def both(notice: ServerNotice) -> None:
            _log_notice(notice)
            callback(notice)

        self._protocol.on_notice = both

    def send_status(self, received: LSN, flushed: LSN, applied: LSN, *, reply: bool = False) -> None:
        """Send a Standby Status Update, without waiting."""
        now = int((time.time() - EPOCH_SECONDS) * 1_000_000)
        self._protocol.send(frames.status_update(received, flushed, applied, now, reply=reply))

    async def stop(self, timeout: float = 5.0) -> None:
        """End CopyBoth by CopyDone in both directions. Frames that still arrive are dropped.

        :param timeout: seconds after which the connection is dropped.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._protocol.end_copy()
        except (TimeoutError, AioreplError):
            self._protocol.abort()

    async def close(self) -> None:
        """Terminate the session, and wait until the socket is closed."""
        await self._protocol.close()

    def abort(self) -> None:
        """Drop the connection without terminating the session."""
        self._protocol.abort()

    def fail(self, error: Exception) -> None:
        """Drop the connection; ``receive`` raises ``error`` after the frames that arrived before."""
        self._protocol.fail(error)

    def heard(self) -> int | None:
        """Return a number that grows with all data received; ``None`` while reading is paused."""
        return None if self._protocol.paused else self._protocol.bytes_received


def _log_notice(notice: ServerNotice) -> None:
    # For example, a notice says that the server waits for a standby that is not connected.
    level = logging.WARNING if notice.severity == "WARNING" else logging.INFO
    _log.log(level, "%s: %s", notice.severity or "NOTICE", notice.text)
