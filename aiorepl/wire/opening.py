"""Opens connections with asyncpg: verified settings, one timeout per host, and errors that say what to do.

asyncpg applies one timeout to all hosts of a DSN together, so if one host drops packets, asyncpg never tries the next host. Here
each host has its own timeout.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import starmap
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from aiorepl import credentials
from aiorepl.dsn import wrong_form
from aiorepl.errors import ConfigurationError, ConnectionFailed, ConnectionLost, ServerError
from aiorepl.wire.commands import literal
from aiorepl.wire.pooler import prepare_sql
from aiorepl.wire.session_settings import NO_POOLER, STARTUP, TEXT_SETTINGS

# A database with encoding SQL_ASCII may hold any bytes. Under another client encoding the server refuses text that is not
# valid in it, so that one value would end the stream. Therefore conversion is off, and each value is decoded as UTF-8.
NO_CONVERSION: Final = "SET client_encoding = 'SQL_ASCII'"
GRANT: Final = "ALTER ROLE … REPLICATION on the source, or connect as a role that has it"

# asyncpg's query for target_session_attrs.
_STANDBY: Final = "SELECT pg_catalog.pg_is_in_recovery()"

# Errors of asyncpg on an open connection. asyncpg calls an error "internal" if the connection was lost just before the command.
_ENDED: Final = (
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
)
ASYNCPG_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

# The timeout of short queries.
ANSWER_SECONDS: Final = 60.0

_ROOT: Final = "name the CA's file in sslrootcert (PGSSLROOTCERT; ~/.postgresql/root.crt)"
_ONE_HOST_SECONDS: Final = 60.0
_EACH_HOST_SECONDS: Final = 10.0
_PORT: Final = "5432"
_NO_DSN: Final = (
    "the server on this machine (no DSN was given: pass one, by --dsn or AIOREPL_DSN, or set PGHOST)"
)
# Detect within about a minute that a peer is gone: by probes of an idle connection, and by unacknowledged data. Linux has
# all of these options, other systems some.
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPALIVE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
}


class DetachableConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """An asyncpg connection whose transport can be handed over; ``detach`` keeps its finalizer from closing the socket."""

    def __init__(
        self, protocol: Any, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *rest: Any
    ) -> None:
        super().__init__(protocol, transport, loop, *rest)
        self.socket_transport = transport
        self.server_pid = 0
        """The number of the server process. A pooler reports an invented number to its clients."""
        self.server = ""
        """As in ``ProcessId``."""
        self.open_another: Callable[[], Awaitable[Any]]
        """Opens another connection in the same way; set by ``connect_sql`` only."""
        _keep_alive(transport)

    async def fetchval(self, query: str, *args: Any, **kwargs: Any) -> Any:
        """As asyncpg's method, but replaces asyncpg's query for standbys. A walsender before PostgreSQL 14 refuses it."""
        if query != _STANDBY or "replication" not in self._params.server_settings:
            return await super().fetchval(query, *args, **kwargs)
        # A walsender accepts only the simple protocol, for which asyncpg returns no rows, but reports changed settings.
        name = self.get_settings().application_name
        await self.execute(
            "SELECT pg_catalog.set_config('application_name', pg_catalog.pg_is_in_recovery()::text, false)"
        )
        found = self.get_settings().application_name
        await self.execute(f"SET application_name = {literal(name)}")
        return found == "true"

    def detach(self) -> None:
        """Mark this connection as closed for asyncpg."""
        self._aborted = True


async def connect_sql(dsn: str | None, settings: Mapping[str, str] = TEXT_SETTINGS, **kwargs: Any) -> Any:
    """Open an ordinary asyncpg connection, with verified text settings, an empty search_path, and without the server's timeouts
    for idle clients and transactions. Where the server supports ``restrict_nonsystem_relation_kind``, the connection can read no
    views except the system's. A pooler has to be in session mode.

    :param kwargs: for ``asyncpg.connect``; ``timeout`` applies to each host, in seconds.
    :raises ConnectionFailed: the server cannot be reached, refuses the connection, or does not keep a setting; says what to do.
    :raises ConfigurationError: the DSN is invalid.
    """
    connection = await _connect_each(dsn, STARTUP, settings, kwargs)
    connection.open_another = partial(connect_sql, dsn, settings, **kwargs)
    return connection


async def connect_walsender(dsn: str | None, **kwargs: Any) -> DetachableConnection:
    """Open a connection that asks for a walsender, without preparing its session. Parameters and errors as ``connect_sql``."""
    connection: DetachableConnection = await _connect_each(
        dsn, {**STARTUP, "replication": "database"}, None, kwargs
    )
    return connection


async def _connect_each(
    dsn: str | None, startup: Mapping[str, str], settings: Mapping[str, str] | None, kwargs: dict[str, Any]
) -> Any:
    expire = credentials.expire(dsn, kwargs)
    current = dsn
    try:
        for again in (expire, False):
            current = await credentials.current_dsn(dsn)
            try:
                return await _connect_hosts(current, startup, settings, dict(kwargs))
            except asyncpg.InvalidAuthorizationSpecificationError:
                # The password may have changed between its look-up and the login.
                if not again:
                    raise
    except Exception as error:  # noqa: BLE001 - translated or raised as it is
        server = "the server" if "host" in kwargs else server_name(current)
        raise connect_error(error, server, expire=expire, wrong=wrong_form(current)) from None


async def _connect_hosts(
    dsn: str | None, startup: Mapping[str, str], settings: Mapping[str, str] | None, kwargs: dict[str, Any]
) -> Any:
    dsn, seconds = _connect_timeout(dsn)
    hosts = _several_hosts(dsn) if "host" not in kwargs else []
    if seconds is not None:
        kwargs.setdefault("timeout", seconds)
    else:
        kwargs.setdefault("timeout", _EACH_HOST_SECONDS if hosts else _ONE_HOST_SECONDS)
    for host, port in hosts[:-1]:
        try:
            return await _connect(dsn, startup, settings, {**kwargs, "host": host, "port": port})
        except (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched):
            continue
    if hosts:
        kwargs["host"], kwargs["port"] = hosts[-1]
    return await _connect(dsn, startup, settings, kwargs)


async def _connect(
    dsn: str | None, startup: Mapping[str, str], settings: Mapping[str, str] | None, kwargs: dict[str, Any]
) -> Any:
    async def authenticated() -> Any:
        return await asyncpg.connect(
            dsn, server_settings=dict(startup), connection_class=DetachableConnection, **kwargs
        )

    connection = await authenticated()
    if settings is None or connection.get_server_version() < (10,):
        return connection
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            process = await prepare_sql(connection, settings, server_name(dsn), authenticated)
            connection.server_pid, connection.server = process
    except asyncpg.InterfaceError:
        # The server has closed the connection. An InterfaceError of ``asyncpg.connect`` would be about the DSN.
        connection.terminate()
        raise asyncpg.ConnectionDoesNotExistError from None
    except BaseException:
        connection.terminate()
        raise
    return connection


def is_sql_ascii(connection: Any) -> bool:
    """Return whether the database's encoding is SQL_ASCII, so that its text may be any bytes."""
    return bool(connection.get_settings().server_encoding == "SQL_ASCII")


async def disable_conversion(connection: Any) -> None:
    """Read text of an SQL_ASCII database without conversion; bytes that are not UTF-8 become escapes."""
    await connection.set_type_codec(
        "text",
        schema="pg_catalog",
        encoder=str.encode,
        decoder=lambda data: bytes(data).decode("utf-8", "backslashreplace"),
        format="binary",
    )
    await connection.execute(NO_CONVERSION)


def _connect_timeout(dsn: str | None) -> tuple[str | None, float | None]:
    """Return the DSN without libpq's ``connect_timeout``, and the timeout itself. asyncpg would send the option to the server."""
    given = os.environ.get("PGCONNECT_TIMEOUT")
    if dsn is not None and "connect_timeout" in dsn:
        parts = urlsplit(dsn)
        options = parse_qsl(parts.query, keep_blank_values=True)
        given = dict(options).get("connect_timeout", given)
        rest = [option for option in options if option[0] != "connect_timeout"]
        dsn = urlunsplit(parts._replace(query=urlencode(rest)))
    seconds = None if given is None else float(given)
    return dsn, None if seconds is not None and seconds <= 0 else seconds


def _several_hosts(dsn: str | None) -> list[tuple[str, int]]:
    """Return hosts and ports if the DSN or the environment names several; empty for one host, or for prefer-standby."""
    options = dict(parse_qsl(urlsplit(dsn or "").query))
    attributes = options.get("target_session_attrs", os.environ.get("PGTARGETSESSIONATTRS"))
    hosts = _hosts(dsn)
    if len(hosts) < 2 or attributes == "prefer-standby" or "service" in options:
        # asyncpg has to try all hosts for a preference.
        return []
    return hosts


def _hosts(dsn: str | None) -> list[tuple[str, int]]:
    """Return the hosts and ports that the DSN or the environment names; empty if neither does."""
    parts = urlsplit(dsn or "")
    options = dict(parse_qsl(parts.query))
    named = parts.netloc.rpartition("@")[2] or options.get("host") or os.environ.get("PGHOST", "")
    ports = (options.get("port") or os.environ.get("PGPORT") or _PORT).split(",")
    hosts = [_host_and_port(each) for each in named.split(",") if named]
    if len(ports) == 1:
        ports *= len(hosts)
    return [(host, int(port or other)) for (host, port), other in zip(hosts, ports, strict=True)]


def server_name(dsn: str | None) -> str:
    """Name the server for messages: its hosts and ports."""
    if dsn is None and not {"PGHOST", "PGSERVICE"} & os.environ.keys():
        return _NO_DSN
    hosts = address(dsn)
    return f"the server at {hosts}" if hosts else "the server"


def address(dsn: str | None) -> str:
    """Return the hosts and ports that the DSN or the environment names; empty if neither does."""
    try:
        return ", ".join(starmap(_address, _hosts(dsn)))
    except ValueError:
        return ""


def _address(host: str, port: int) -> str:
    if host.startswith("/"):
        return f"{host}/.s.PGSQL.{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_and_port(named: str) -> tuple[str, str]:
    if named.startswith("["):
        host, _, port = named[1:].partition("]")
        return unquote(host), port.removeprefix(":")
    host, _, port = named.partition(":")
    return unquote(host), port


def _keep_alive(transport: asyncio.Transport) -> None:
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            found.setsockopt(socket.IPPROTO_TCP, option, value)


def exposure(transport: asyncio.BaseTransport) -> str | None:
    """Return why the connection is not secure, as a predicate; ``None`` if the server is verified or local."""
    if _local(transport):
        return None
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if tls is None:
        return "is not encrypted"
    if tls.context.verify_mode is not ssl.CERT_REQUIRED:
        return "is encrypted, but the server's certificate is not verified"
    return None if tls.context.check_hostname else "is encrypted, but the server's name is not verified"


def _local(transport: asyncio.BaseTransport) -> bool:
    """Return whether the peer is on this machine: a Unix socket, or a loopback address."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return True
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def connect_error(
    error: Exception, server: str, *, expire: bool = False, wrong: str = "the DSN is invalid"
) -> Exception:
    """Return the error that says what to do about an error of asyncpg's while connecting. It quotes no DSN.

    :param server: the server with hosts and ports, as a noun phrase.
    :param expire: whether the credentials are read again for every attempt, so that a later attempt may succeed.
    :param wrong: what is wrong with a DSN that cannot be read.
    """
    pg = asyncpg.exceptions
    if isinstance(error, pg.TargetServerAttributeNotMatched):
        # Transient during a failover. The class is also an InternalClientError, so this check comes first.
        return ConnectionFailed(
            "no host of the DSN matches target_session_attrs: check the hosts, or leave the option out"
        )
    if isinstance(error, (pg.ConnectionDoesNotExistError, pg.InternalClientError)):
        # InternalClientError: the server closed the connection between two calls of asyncpg.
        return ConnectionFailed(f"{server} closed the connection while it was opened")
    if isinstance(error, pg.PostgresError):
        return _refusal(error, server, expire=expire)
    if isinstance(error, pg.ClientConfigurationError) and "root certificate" in str(error):
        return ConfigurationError(
            f"sslmode requires a verified server certificate, and no root certificate was found: {_ROOT}"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionFailed(
            f"the certificate of {server} is not accepted: {error.verify_message.rstrip('.')}: {_ROOT}, and use the host name of "
            "the certificate"
        )
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):
        return ConnectionFailed(
            f"{server} does not support TLS, which sslmode requires, and nothing was sent to it: set ssl = on on the server"
        )
    if isinstance(error, pg.InterfaceError) and "authentication method" in str(error):
        return ConnectionFailed(
            f"{server} requests an authentication method that aiorepl does not have: allow scram-sha-256 in pg_hba.conf",
            permanent=True,
        )
    if isinstance(error, (pg.ClientConfigurationError, pg.InterfaceError, ValueError)) and not isinstance(
        error, OSError
    ):
        return ConfigurationError(
            f"{wrong}: write postgresql://user@host:5432/database ({type(error).__name__})"
        )
    if isinstance(error, TimeoutError):
        return ConnectionFailed(
            f"{server} did not answer in time: check host and port, and that it is running"
        )
    if isinstance(error, (FileNotFoundError, ssl.SSLError)):
        return ConnectionFailed(
            f"cannot reach {server}: {_os_error_text(error)}: check that it is running, and the files that sslrootcert, sslcert "
            "and sslkey name"
        )
    if isinstance(error, OSError):
        return ConnectionFailed(
            f"cannot reach {server}: {_os_error_text(error)}: check host and port, and that it is running"
        )
    return error


def _refusal(error: Any, server: str, *, expire: bool) -> ConnectionFailed:
    """Return the error for an ErrorResponse of the server. Parameters as ``connect_error``."""
    # Take only the message: ``str(error)`` also has detail and hint, on further lines.
    text = str(error.args[0])
    permanent = True
    match error.sqlstate:
        case "28P01" | "28000" if expire:
            text += (
                ": check that the password function, the command or the DSN's file gives the current password"
            )
            permanent = False
        case "28P01":
            text += ": check the password in the DSN, PGPASSWORD or the password file"
        case "28000":
            text += ": check user and pg_hba.conf"
        case "3D000":
            text += ": check the database name in the DSN"
        case "42501":
            text += f": {_missing_grant(error)}"
        case "08P01" if "startup parameter" in text:
            text += f": this is PgBouncer or another pooler: {NO_POOLER}"
        case _:
            permanent = False
    return ConnectionFailed(f"{server} refuses the connection: {text}", permanent=permanent)


def _missing_grant(error: Any) -> str:
    """Return the missing grant, identified by the error's C function, because the message may be translated."""
    match getattr(error, "server_source_function", None):
        case "CheckMyDatabase":
            return "GRANT CONNECT ON DATABASE … to the role"
        case "aclcheck_error":
            return "GRANT it to the role"
    return GRANT


def translated(error: Exception) -> Exception:
    """Translate an error of asyncpg's on an open connection to one of ``aiorepl.errors``, which quotes no row.

    ``ConnectionLost`` also stands for a server that ends the connection, and for asyncpg's own ``ConnectionDoesNotExistError``,
    which has an SQLSTATE although no server has sent it.
    """
    if isinstance(error, _ENDED):
        return ConnectionLost(f"the connection to the server was lost: {type(error).__name__}")
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate is not None:
        fields = {"C": error.sqlstate, "M": getattr(error, "message", None) or type(error).__name__}
        if routine := getattr(error, "server_source_function", None):
            fields["R"] = routine
        return ServerError(fields)
    if isinstance(error, ASYNCPG_ERRORS):
        return ConnectionLost(f"the connection to the server was lost: {type(error).__name__}")
    return error


def _os_error_text(error: OSError) -> str:
    return (
        re.sub(r"^\[Errno -?\d+\] ", "", str(error).splitlines()[0]) if str(error) else type(error).__name__
    )
