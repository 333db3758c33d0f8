"""A replication connection: asyncpg opens it, our protocol takes the socket over.

asyncpg brings DSNs, service and password files, TLS, SCRAM and several hosts with target_session_attrs. It cannot
go on, because a walsender refuses the extended query protocol, so the transport is handed to
``ReplicationProtocol`` as soon as it is authenticated. SCRAM channel binding is not in asyncpg, nor then here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from aiorepl.epoch import EPOCH_SECONDS
from aiorepl.errors import (
    AioreplError,
    ConfigurationError,
    ConnectionLost,
    ServerError,
    ServerNotice,
    printable,
)
from aiorepl.lsn import LSN
from aiorepl.wire import commands, frames
from aiorepl.wire.interface import CreatedSlot, System
from aiorepl.wire.opening import (
    ANSWER_SECONDS,
    AS_IT_IS,
    TEXT_SETTINGS,
    Opened,
    connect_sql,
    exposure,
    keeps_any_bytes,
)
from aiorepl.wire.protocol import CopyFrame, ReplicationProtocol
from aiorepl.wire.server_errors import slot_problem
from aiorepl.wire.slot_creation import cancel_backend, created
from aiorepl.wire.standing import require_standing, standing

_log = logging.getLogger("aiorepl.wire")


class ReplicationConnection:
    """A walsender of one database. One task may use it at a time; ``send_status`` may be called from any."""

    def __init__(
        self, protocol: ReplicationProtocol, server_version: int, exposed: str | None = None
    ) -> None:
        self.server_version = server_version
        self.exposure = exposed
        self._protocol = protocol
        self._slot = ""
        self._cancel: Callable[[], Awaitable[None]] = self._hang_up
        protocol.on_notice = _log_notice

    @classmethod
    async def open(cls, dsn: str | None, **kwargs: Any) -> ReplicationConnection:
        """Connect and authenticate. ``kwargs`` go to ``asyncpg.connect``.

        :raises ConnectionFailed: no server, or it refuses; says what to do.
        :raises ConfigurationError: when the DSN cannot be read, or the server is older than PostgreSQL 10.
        """
        opened: Opened = await connect_sql(dsn, {**TEXT_SETTINGS, "replication": "database"}, **kwargs)
        version = opened.get_server_version().major
        transport = opened.handed_over
        protocol = ReplicationProtocol(transport, asyncio.get_running_loop())
        transport.set_protocol(protocol)
        pid, any_bytes = opened.get_server_pid(), keeps_any_bytes(opened)
        opened.retire()
        if version < 10:
            protocol.abort()
            raise ConfigurationError(f"PostgreSQL {version} is too old: logical replication begins with 10")
        connection = cls(protocol, version, exposure(transport))
        connection._cancel = partial(cancel_backend, pid, dsn, **kwargs)
        if any_bytes:
            try:
                await connection.query(AS_IT_IS)
            except BaseException:
                connection.abort()
                raise
        return connection

    @property
    def bytes_received(self) -> int:
        """What has come from the socket so far."""
        return self._protocol.bytes_received

    async def query(self, sql: str, *, timeout: float | None = ANSWER_SECONDS) -> list[dict[str, str | None]]:
        """Run SQL or a replication command by the simple protocol; rows as text by column name.

        :param timeout: seconds to wait for the answer; ``None`` for what may rightly take as long as it likes.
        :raises ServerError: the server's refusal.
        :raises ConnectionLost: the socket is gone, or there was no answer.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._protocol.query(sql)
        except TimeoutError:
            self.abort()
            raise ConnectionLost(f"the server has not answered for {timeout:g} s") from None

    async def identify_system(self) -> System:
        """IDENTIFY_SYSTEM."""
        (row,) = await self.query(commands.IDENTIFY_SYSTEM)
        return System(
            row["systemid"] or "",
            int(row["timeline"] or 0),
            LSN.parse(row["xlogpos"] or "0/0"),
            row["dbname"] or "",
        )

    async def timeline_history(self, timeline: int) -> str | None:
        """TIMELINE_HISTORY: the history file of a timeline after the first; ``None`` where it is gone."""
        try:
            (row,) = await self.query(commands.timeline_history(timeline))
        except ServerError as error:
            if error.sqlstate == "58P01":
                return None
            raise
        return row["content"]

    async def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
        snapshot: str = "nothing",
    ) -> CreatedSlot:
        """CREATE_REPLICATION_SLOT for pgoutput. If this is cancelled, no slot is left.

        :raises SlotError: it exists already, or none is free.
        :raises ConfigurationError: the server cannot do what was asked, or its ``wal_level`` is not logical.
        """
        command = commands.create_slot(
            name,
            server=self.server_version,
            temporary=temporary,
            two_phase=two_phase,
            failover=failover,
            snapshot=snapshot,
        )
        return await created(
            self._create(command, name), cancel=self._cancel, drop=partial(self.drop_slot, name)
        )

    async def _create(self, command: str, name: str) -> CreatedSlot:
        try:
            # It waits for the end of transactions that are in progress.
            (row,) = await self.query(command, timeout=None)
        except ServerError as error:
            raise slot_problem(error, name) from None
        return CreatedSlot(
            row["slot_name"] or name,
            LSN.parse(row["consistent_point"] or "0/0"),
            row["snapshot_name"] or None,
        )

    async def alter_slot(
        self, name: str, *, failover: bool | None = None, two_phase: bool | None = None
    ) -> None:
        """ALTER_REPLICATION_SLOT; ``None`` leaves an option as it is. The server waits until nobody uses the slot.

        :raises SlotError: it does not exist.
        :raises ConfigurationError: the server cannot do what was asked.
        """
        command = commands.alter_slot(
            name, server=self.server_version, failover=failover, two_phase=two_phase
        )
        try:
            await self.query(command, timeout=None)
        except ServerError as error:
            raise slot_problem(error, name) from None

    async def drop_slot(self, name: str, *, wait: bool = False) -> None:
        """DROP_REPLICATION_SLOT.

        :raises SlotError: it does not exist, or is in use.
        """
        try:
            await self.query(commands.drop_slot(name, wait=wait), timeout=None)
        except ServerError as error:
            raise slot_problem(error, name) from None

    async def start_replication(
        self, slot: str, lsn: LSN, options: Mapping[str, str], *, confirmed: LSN | None = None
    ) -> None:
        """START_REPLICATION: from here on ``receive`` and ``send_status``.

        :param confirmed: where the slot stood when it was checked; ``None``: wherever it stands.
        :raises SlotError: the slot is missing, in use, lost, of another kind, or was moved since.
        :raises ConfigurationError: a publication is missing, or an option is refused.
        """
        self._slot = slot
        if confirmed is not None:
            require_standing(slot, await self.query(standing(slot)), confirmed)
        try:
            await self.query(commands.start_replication(slot, lsn, options))
        except ServerError as error:
            raise slot_problem(error, slot) from None

    async def receive(self) -> list[CopyFrame]:
        """All frames that have arrived, at least one; an empty list when the server ended the stream.

        While nobody calls this, at most about a megabyte is read ahead.

        :raises ServerError: the server gave up.
        :raises ProtocolError: it sent nonsense.
        :raises ConnectionLost: the socket is gone.
        """
        try:
            return await self._protocol.receive()
        except ServerError as error:
            if error.sqlstate == "42704":
                raise slot_problem(error, self._slot) from None
            raise

    def on_reply_request(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called as soon as the server asks for a status update, whoever is busy with what."""
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
        """End CopyBoth in order: CopyDone both ways. What still arrives is dropped."""
        try:
            async with asyncio.timeout(timeout):
                await self._protocol.end_copy()
        except (TimeoutError, AioreplError):
            self._protocol.abort()

    async def close(self) -> None:
        """Terminate the session and wait until the socket is closed."""
        await self._protocol.close()

    async def _hang_up(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Drop the socket, as a crash would."""
        self._protocol.abort()

    def fail(self, error: Exception) -> None:
        """Drop the socket, and have ``receive`` raise this when it has given out what arrived before."""
        self._protocol.fail(error)

    def heard(self) -> int | None:
        """A number that grows with every sign of life; ``None`` while it is us who do not listen."""
        return None if self._protocol.paused else self._protocol.bytes_received


def _log_notice(notice: ServerNotice) -> None:
    # Such as that it waits for a standby which is not there.
    level = logging.WARNING if notice.severity == "WARNING" else logging.INFO
    _log.log(level, "%s: %s", printable(notice.severity or "NOTICE"), notice.text)
