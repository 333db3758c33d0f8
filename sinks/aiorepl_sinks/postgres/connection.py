"""A connection to the target: its settings, its lock, and its replication origin."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

import asyncpg

from aiorepl import LSN, PermanentError, Position, SinkContext, TransientError, credentials
from aiorepl.credentials import PasswordCommand
from aiorepl_sinks.postgres.errors import translate_connect
from aiorepl_sinks.postgres.liveness import Liveness
from aiorepl_sinks.postgres.state import TargetState

# The settings with which the source printed its values. In the startup packet they override ALTER DATABASE and ALTER ROLE.
_TEXT: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "client_encoding": "UTF8",
    "xmloption": "content",
}
# Unqualified names in the sink's statements are found in pg_catalog only, never among a user's operators and functions.
SEARCH_PATH: Final = {"search_path": ""}
# Parameters that the server's version does not have are left out.
_SESSION: Final = {
    # Find rows by an index if there is one, even if statistics are out of date or the table was empty.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
    # A transaction in slices stays open while the sink waits for the source.
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # A connection that was cut off must not hold the lock for hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# The client's TCP keepalives, with the same times as the server's. Without TCP_USER_TIMEOUT, because a target that waits for a lock reads
# nothing, and the kernel would close its connection. ``Liveness`` detects a target that does not answer.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_LOCK_TIMEOUT: Final = 5


def reserved(settings: Mapping[str, str]) -> str | None:
    """Return a parameter that the user may not set, if there is one."""
    names = {name.lower() for name in _TEXT}
    return next((name for name in settings if name.lower() in names), None)


class KeepaliveConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection with TCP keepalives, which detect a lost host."""

    def __init__(self, protocol: Any, transport: Any, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        found = transport.get_extra_info("socket")
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    found.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The sink's options for the connection; see ``PostgresSink``."""

    dsn: str = field(repr=False)
    password: PasswordCommand | None = field(repr=False)
    schema: str
    replica: bool
    origin: str | None
    settings: Mapping[str, str] = field(repr=False)
    two_phase: bool
    timeout: float

    async def connect(self, settings: Mapping[str, str], **arguments: Any) -> Any:
        """Connect to the target, and translate errors. Parameters as ``open``.

        :raises TransientError, PermanentError: the target cannot be reached, or rejects the login.
        """
        try:
            return await self.open(settings, **arguments)
        except Exception as error:  # noqa: BLE001 - every error is translated
            dsn = "" if credentials.is_file(self.dsn) else self.dsn
            expire = credentials.expire(self.dsn, {"password": self.password})
            raise translate_connect(error, dsn, expire=expire) from None

    async def open(self, settings: Mapping[str, str], **arguments: Any) -> Any:
        """Connect to the target, with the current credentials.

        :param settings: the session's parameters.
        :param arguments: further arguments for ``asyncpg.connect``.
        :raises ConnectionFailed: the DSN's file or the password cannot be read.
        :raises asyncpg.PostgresError, asyncpg.InterfaceError, OSError: the target cannot be reached, or rejects the login.
        """
        arguments |= {"server_settings": dict(settings), "timeout": self.timeout}
        if self.password is not None:
            arguments["password"] = self.password
        try:
            return await asyncpg.connect(await credentials.current_dsn(self.dsn), **arguments)
        except asyncpg.InvalidAuthorizationSpecificationError:
            if not credentials.expire(self.dsn, arguments):
                raise
        # The password may have changed between its look-up and the login.
        return await asyncpg.connect(await credentials.current_dsn(self.dsn), **arguments)


class Session:
    """A connection that holds the lock of its sink and slot.

    :ivar position: up to where the target has everything.
    :ivar backend: the backend's process ID and start time.
    """

    def __init__(self, connection: Any, state: TargetState, origin: str | None) -> None:
        self.connection = connection
        self.state = state
        self.position = LSN(0)
        self._origin = origin
        self.backend: tuple[int, datetime] | None = None
        self.liveness: Liveness

    @classmethod
    async def open(
        cls,
        options: ConnectionOptions,
        context: SinkContext,
        predecessor: tuple[int, datetime] | None = None,
        waits: Callable[[str | None], None] = lambda _: None,
    ) -> tuple[Session, Position]:
        """Connect, and return the session and the target's position.

        :param predecessor: the backend of this sink's lost connection, which may still be running; it is terminated.
        :param waits: called with the lock that a call waits for, and with ``None`` at the end of the call.
        :raises TransientError: the target cannot be reached, or another connection holds the lock.
        :raises PermanentError: the target's version or configuration does not allow the options.
        """
        connection = await options.connect(
            {
                **_TEXT,
                **SEARCH_PATH,
                "application_name": f"aiorepl {context.name}"[:63],
                **({"session_replication_role": "replica"} if options.replica else {}),
                **options.settings,
            },
            connection_class=KeepaliveConnection,
            statement_cache_size=1000,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
        )
        session = cls(connection, TargetState(connection, options.schema, context), options.origin)
        try:
            async with asyncio.timeout(options.timeout + _LOCK_TIMEOUT):
                await session._set_up(options, context, predecessor, waits)
            position = await session._watched_position()
        except TimeoutError:
            connection.terminate()
            raise TransientError(
                f"postgres: the target has accepted the connection, but has not answered for {options.timeout:g} s"
            ) from None
        except BaseException:
            connection.terminate()
            raise
        return session, position

    async def mark_origin(self, lsn: LSN, commit_time: datetime) -> None:
        """Set the origin of the connection's next commit (``pg_replication_origin_xact_setup``)."""
        if self._origin is not None:
            await self.connection.execute(
                "SELECT pg_catalog.pg_replication_origin_xact_setup($1::text::pg_lsn, $2)",
                str(lsn),
                commit_time,
            )

    async def _set_up(
        self,
        options: ConnectionOptions,
        context: SinkContext,
        predecessor: tuple[int, datetime] | None,
        waits: Callable[[str | None], None],
    ) -> None:
        connection = self.connection
        if connection.get_server_version().major < 13:
            raise PermanentError("postgres: the target is older than PostgreSQL 13: upgrade it")
        known = {name: value for name, value in _SESSION.items() if name not in options.settings}
        await connection.execute(
            "SELECT pg_catalog.set_config(s.name, s.value, false) FROM unnest($1::text[], $2::text[]) AS s(name, value) "
            "JOIN pg_catalog.pg_settings USING (name)",
            list(known),
            list(known.values()),
        )
        # A commit must be durable; stronger settings, such as remote_apply, stay.
        await connection.execute(
            "SELECT pg_catalog.set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
        if predecessor is not None:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2",
                *predecessor,
            )
        await self._lock(context)
        if options.two_phase and await connection.fetchval("SHOW max_prepared_transactions") == "0":
            raise PermanentError(
                "postgres: two_phase needs max_prepared_transactions above 0 on the target: raise it and restart that server"
            )
        backend: tuple[int, datetime] = tuple(
            await connection.fetchrow(
                "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            )
        )
        self.backend = backend
        self.liveness = Liveness(
            partial(options.open, SEARCH_PATH),
            context.name,
            connection,
            backend,
            options.timeout,
            self.state.gid_prefix,
            waits,
        )

    async def _watched_position(self) -> Position:
        """Return the stored position. Like a write, this may wait for locks or synchronous standbys without a time limit."""
        try:
            async with self.liveness.watch():
                position = await self.state.open()
                if self._origin is not None:
                    await self._set_origin(self._origin)
        except Exception as error:
            if self.liveness.problem is None:
                raise
            raise TransientError(f"postgres: {self.liveness.problem}") from error
        self.position = position.lsn
        return position

    async def _lock(self, context: SinkContext) -> None:
        """Take the advisory lock of this sink and slot, because a connection that was cut off may still commit."""
        identity = f"aiorepl {context.name} {context.position.slot}"
        try:
            await self.connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}s'")
            await self.connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", identity)
        except asyncpg.LockNotAvailableError:
            raise TransientError(
                f"postgres: another connection delivers to the target as sink {context.name!r}: stop its process, or give this "
                "sink another name"
            ) from None
        await self.connection.execute("RESET lock_timeout")

    async def _set_origin(self, origin: str) -> None:
        try:
            await self.connection.execute(
                "SELECT pg_catalog.pg_replication_origin_create($1) "
                "WHERE pg_catalog.pg_replication_origin_oid($1) IS NULL",
                origin,
            )
            await self.connection.execute("SELECT pg_catalog.pg_replication_origin_session_setup($1)", origin)
        except asyncpg.InsufficientPrivilegeError:
            raise PermanentError(
                "postgres: origin needs a superuser, or GRANT EXECUTE on the functions pg_replication_origin_*"
            ) from None
        except asyncpg.ObjectInUseError:
            raise TransientError(
                f"postgres: another connection uses replication origin {origin!r}: give each sink its own"
            ) from None
