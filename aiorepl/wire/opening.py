"""Opening connections: asyncpg does it, under our text settings, host by host, and what goes wrong says what to do.

asyncpg gives all hosts of a DSN one timeout together, so that one that swallows packets would keep us from ever trying
the next; here each host has its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from aiorepl.errors import ConfigurationError, ConnectionFailed, ConnectionLost, ServerError
from aiorepl.wire.commands import literal

# The text forms that every reader of values relies on, set in the startup packet, where they beat
# ALTER DATABASE and ALTER ROLE.
TEXT_SETTINGS: Final[Mapping[str, str]] = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "client_encoding": "UTF8",
    "application_name": "aiorepl",
}
# In a database whose encoding is SQL_ASCII the server converts nothing, and under any other client encoding refuses text
# that is not valid in it: one such value would end the stream. So it is taken as it is, and each value is read as UTF-8.
AS_IT_IS: Final = "SET client_encoding = 'SQL_ASCII'"
GRANT: Final = "ALTER ROLE … REPLICATION on the source, or connect as a role that has it"

# As asyncpg asks it for target_session_attrs.
_STANDBY: Final = "SELECT pg_catalog.pg_is_in_recovery()"

# What is asked beside the stream is answered at once, by a server that is there.
ANSWER_SECONDS: Final = 60.0

_ROOT: Final = "name the file of its authority in sslrootcert (PGSSLROOTCERT; ~/.postgresql/root.crt)"
_ONE_HOST_SECONDS: Final = 60.0
_EACH_HOST_SECONDS: Final = 10.0
_PORT: Final = "5432"
# A peer that is gone without a word is found out within about a minute: probes of an idle connection, and what was
# sent and never acknowledged. Linux has all of them, other systems some.
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPALIVE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
}


class Opened(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """Keeps the transport that asyncpg opened, and can be retired without its finalizer closing the socket."""

    def __init__(
        self, protocol: Any, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *rest: Any
    ) -> None:
        super().__init__(protocol, transport, loop, *rest)
        self.handed_over = transport
        _keep_alive(transport)

    async def fetchval(self, query: str, *args: Any, **kwargs: Any) -> Any:
        """As asyncpg's, also for its question whether a server before 14 is a standby, which a walsender would refuse."""
        if query != _STANDBY or "replication" not in self._params.server_settings:
            return await super().fetchval(query, *args, **kwargs)
        # It takes the simple protocol alone, by which asyncpg gives no rows; settings that change it tells.
        name = self.get_settings().application_name
        await self.execute(
            "SELECT pg_catalog.set_config('application_name', pg_catalog.pg_is_in_recovery()::text, false)"
        )
        found = self.get_settings().application_name
        await self.execute(f"SET application_name = {literal(name)}")
        return found == "true"

    def retire(self) -> None:
        """Make asyncpg believe that this connection is closed."""
        self._aborted = True


async def connect_sql(dsn: str | None, settings: Mapping[str, str] = TEXT_SETTINGS, **kwargs: Any) -> Any:
    """An ordinary asyncpg connection under our text settings.

    :param kwargs: for ``asyncpg.connect``; ``timeout`` is that of each host.
    :raises ConnectionFailed: with what to do about it.
    :raises ConfigurationError: when the DSN cannot be read.
    """
    try:
        dsn, seconds = _connect_timeout(dsn)
        places = _places(dsn) if "host" not in kwargs else []
        if seconds is not None:
            kwargs.setdefault("timeout", seconds)
        else:
            kwargs.setdefault("timeout", _EACH_HOST_SECONDS if places else _ONE_HOST_SECONDS)
        for host, port in places[:-1]:
            try:
                return await _connect(dsn, settings, {**kwargs, "host": host, "port": port})
            except (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched):
                continue
        if places:
            kwargs["host"], kwargs["port"] = places[-1]
        return await _connect(dsn, settings, kwargs)
    except Exception as error:  # noqa: BLE001 - every one is explained or raised as it is
        raise explained(error) from None


async def _connect(dsn: str | None, settings: Mapping[str, str], kwargs: dict[str, Any]) -> Any:
    return await asyncpg.connect(dsn, server_settings=dict(settings), connection_class=Opened, **kwargs)


def keeps_any_bytes(connection: Any) -> bool:
    """Whether the database's encoding is SQL_ASCII, so that its text may be anything."""
    return bool(connection.get_settings().server_encoding == "SQL_ASCII")


async def take_text_as_it_is(connection: Any) -> None:
    """Take text from an SQL_ASCII database as it is; what is not UTF-8 stays readable and distinct."""
    await connection.set_type_codec(
        "text",
        schema="pg_catalog",
        encoder=str.encode,
        decoder=lambda data: bytes(data).decode("utf-8", "backslashreplace"),
        format="binary",
    )
    await connection.execute(AS_IT_IS)


def _connect_timeout(dsn: str | None) -> tuple[str | None, float | None]:
    """The DSN without libpq's ``connect_timeout``, which asyncpg would send to the server, and that timeout."""
    said = os.environ.get("PGCONNECT_TIMEOUT")
    if dsn is not None and "connect_timeout" in dsn:
        parts = urlsplit(dsn)
        options = parse_qsl(parts.query, keep_blank_values=True)
        said = dict(options).get("connect_timeout", said)
        rest = [option for option in options if option[0] != "connect_timeout"]
        dsn = urlunsplit(parts._replace(query=urlencode(rest)))
    seconds = None if said is None else float(said)
    return dsn, None if seconds is not None and seconds <= 0 else seconds


def _places(dsn: str | None) -> list[tuple[str, int]]:
    """Hosts and ports where the DSN or the environment names several; empty where it is one, or a preference."""
    parts = urlsplit(dsn or "")
    options = dict(parse_qsl(parts.query))
    attributes = options.get("target_session_attrs", os.environ.get("PGTARGETSESSIONATTRS"))
    named = parts.netloc.rpartition("@")[2] or options.get("host") or os.environ.get("PGHOST", "")
    if "," not in named or attributes == "prefer-standby" or "service" in options:
        # Of a preference asyncpg has to see all hosts.
        return []
    ports = (options.get("port") or os.environ.get("PGPORT") or _PORT).split(",")
    hosts = [_host_and_port(each) for each in named.split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    return [(host, int(port or other)) for (host, port), other in zip(hosts, ports, strict=True)]


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
    """The connection's lack of protection, as a predicate; ``None`` if the server is verified or local."""
    if _local(transport):
        return None
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if tls is None:
        return "is not encrypted"
    if tls.context.verify_mode is not ssl.CERT_REQUIRED:
        return "is encrypted, but the server's certificate is not verified"
    return None if tls.context.check_hostname else "is encrypted, but the server's name is not verified"


def _local(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer is on this machine: a Unix socket, or a loopback address."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return True
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def explained(error: Exception) -> Exception:
    """What asyncpg raised while connecting, as an error that says what to do and quotes no DSN."""
    pg = asyncpg.exceptions
    if isinstance(error, pg.PostgresError):
        # The message alone: asyncpg's own text has detail and hint behind it, each on a line of its own.
        text = str(error.args[0])
        permanent = True
        match error.sqlstate:
            case "28P01":
                text = f"{text}: check the password in the DSN, PGPASSWORD or the password file"
            case "28000":
                text = f"{text}: check user and pg_hba.conf"
            case "3D000":
                text = f"{text}: check the database name in the DSN"
            case "42501":
                text = f"{text}: {_granting(error)}"
            case _:
                permanent = False
        return ConnectionFailed(text, permanent=permanent)
    if isinstance(error, pg.TargetServerAttributeNotMatched):
        # During a failover this passes: the standby is promoted, or the primary comes back.
        return ConnectionFailed(
            "no host of the DSN is what target_session_attrs asks for: check that one of them is, or leave it out"
        )
    if isinstance(error, pg.ClientConfigurationError) and "root certificate" in str(error):
        return ConfigurationError(
            f"sslmode demands a verified server certificate, and no root certificate was found: {_ROOT}"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionFailed(
            f"the server's certificate is not accepted: {error.verify_message.rstrip('.')}: {_ROOT}, and call the server as "
            "its certificate does"
        )
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):
        return ConnectionFailed(
            "the server does not speak TLS, which sslmode demands; nothing was sent to it: set ssl = on there"
        )
    if isinstance(error, (pg.ClientConfigurationError, pg.InterfaceError, ValueError)) and not isinstance(
        error, OSError
    ):
        return ConfigurationError(
            "the DSN or the PG* environment cannot be used: write postgresql://user@host:5432/database "
            f"({type(error).__name__})"
        )
    if isinstance(error, TimeoutError):
        return ConnectionFailed("no answer from the server in time: check host and port, and that it is up")
    if isinstance(error, OSError):
        return ConnectionFailed(
            f"cannot reach the server: {_plain(error)}: check host and port, and that it is up"
        )
    if isinstance(error, pg.ConnectionDoesNotExistError):
        return ConnectionFailed("the server closed the connection while it was being opened")
    return error


def _granting(error: Any) -> str:
    """The missing grant. The error's C function identifies it, because the message may be translated."""
    match getattr(error, "server_source_function", None):
        case "CheckMyDatabase":
            return "GRANT CONNECT ON DATABASE … to the role"
        case "aclcheck_error":
            return "GRANT it to the role"
    return GRANT


def translated(error: Exception) -> Exception:
    """What asyncpg raised on a connection that was open, as an error of ours that quotes no row."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate is not None:
        fields = {"C": error.sqlstate, "M": getattr(error, "message", None) or type(error).__name__}
        return ServerError(fields)
    if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        return ConnectionLost(f"the connection to the server was lost: {type(error).__name__}")
    return error


def _plain(error: OSError) -> str:
    return (
        re.sub(r"^\[Errno -?\d+\] ", "", str(error).splitlines()[0]) if str(error) else type(error).__name__
    )
