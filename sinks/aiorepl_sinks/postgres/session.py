"""One connection to the target: opened, set up, and alone in what it does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import asyncpg

from aiorepl import LSN, PermanentError, Position, SinkContext, TransientError
from aiorepl_sinks.postgres.errors import unreachable
from aiorepl_sinks.postgres.liveness import Liveness
from aiorepl_sinks.postgres.state import MirrorState

# The form of the source's texts, in the startup packet, where it beats ALTER DATABASE and ALTER ROLE.
_TEXT: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "client_encoding": "UTF8",
    "xmloption": "content",
}
# Of these, those that the server knows.
_SESSION: Final = {
    # Rows are always found by an index if there is one, also where statistics are old or a table was empty.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
    # A transaction in slices waits for the source.
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # Whoever is cut off shall not hold the lock for hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# The same for our side.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
_LOCK_SECONDS: Final = 5


def fixed(settings: Mapping[str, str]) -> str | None:
    """One of these parameters that is not to be chosen, if there is one."""
    ours = {name.lower() for name in _TEXT}
    return next((name for name in settings if name.lower() in ours), None)


class KeptAlive(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection that notices a target which is gone without a word."""

    def __init__(self, protocol: Any, transport: Any, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        found = transport.get_extra_info("socket")
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    found.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user wants of a connection."""

    dsn: str = field(repr=False)
    schema: str
    replica: bool
    origin: str | None
    settings: Mapping[str, str] = field(repr=False)
    two_phase: bool
    timeout: float


class Session:
    """A connection that holds the lock of its sink and slot; ``position`` is what the target has."""

    def __init__(self, connection: Any, books: MirrorState, origin: str | None) -> None:
        self.connection = connection
        self.books = books
        self.position = LSN(0)
        self._origin = origin
        self.backend: tuple[int, datetime] | None = None
        self.liveness: Liveness

    @classmethod
    async def open(
        cls, choices: Choices, context: SinkContext, predecessor: tuple[int, datetime] | None = None
    ) -> tuple[Session, Position]:
        """Connect and find the position.

        :param predecessor: our own backend whose connection was lost: it may still be at work.
        :raises TransientError: the target is not there, or another process is at work as this sink.
        :raises PermanentError: it cannot work like this.
        """
        try:
            connection = await asyncpg.connect(
                choices.dsn,
                connection_class=KeptAlive,
                server_settings={
                    **_TEXT,
                    "application_name": f"aiorepl {context.name}"[:63],
                    **({"session_replication_role": "replica"} if choices.replica else {}),
                    **choices.settings,
                },
                statement_cache_size=1000,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
                timeout=choices.timeout,
            )
        except Exception as error:  # noqa: BLE001 - every one is explained
            raise unreachable(error) from None
        session = cls(connection, MirrorState(connection, choices.schema, context), choices.origin)
        try:
            async with asyncio.timeout(choices.timeout + _LOCK_SECONDS):
                position = await session._set_up(choices, context, predecessor)
        except TimeoutError:
            connection.terminate()
            raise TransientError(
                f"postgres: the target lets us in and does not answer for {choices.timeout:g} s"
            ) from None
        except BaseException:
            connection.terminate()
            raise
        return session, position

    async def mark_origin(self, lsn: LSN, moment: datetime) -> None:
        """The transaction that commits next on this connection comes from there."""
        if self._origin is not None:
            await self.connection.execute(
                "SELECT pg_catalog.pg_replication_origin_xact_setup($1::text::pg_lsn, $2)", str(lsn), moment
            )

    async def _set_up(
        self, choices: Choices, context: SinkContext, predecessor: tuple[int, datetime] | None
    ) -> Position:
        connection = self.connection
        if connection.get_server_version().major < 13:
            raise PermanentError("postgres: the target is older than PostgreSQL 13")
        known = {name: value for name, value in _SESSION.items() if name not in choices.settings}
        await connection.execute(
            "SELECT pg_catalog.set_config(s.name, s.value, false) FROM unnest($1::text[], $2::text[]) AS s(name, value) "
            "JOIN pg_catalog.pg_settings USING (name)",
            list(known),
            list(known.values()),
        )
        # Durable means durable; what the server has beyond that (remote_apply) stays.
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
        if choices.two_phase and await connection.fetchval("SHOW max_prepared_transactions") == "0":
            raise PermanentError(
                "postgres: two_phase needs max_prepared_transactions above 0 on the target: raise it and restart that server"
            )
        position = await self.books.open()
        self.position = position.lsn
        if self._origin is not None:
            await self._set_origin(self._origin)
        backend: tuple[int, datetime] = tuple(
            await connection.fetchrow(
                "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            )
        )
        self.backend = backend
        self.liveness = Liveness(choices.dsn, context.name, connection, backend, choices.timeout)
        return position

    async def _lock(self, context: SinkContext) -> None:
        """Be the only one that delivers as this sink: whom a network cut off may still be committing."""
        who = f"aiorepl {context.name} {context.position.slot}"
        try:
            await self.connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
            await self.connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", who)
        except asyncpg.LockNotAvailableError:
            raise TransientError(
                f"postgres: another connection delivers to the target as sink {context.name!r}: stop that process, or give "
                "this sink another name"
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
                f"postgres: replication origin {origin!r} is in use by another connection: give each sink one of its own"
            ) from None
