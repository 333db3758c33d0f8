"""Settings of a session that the decoders and our queries rely on: set once the connection is open, and verified. Pure.

Only ``STARTUP`` is in the startup packet. PgBouncer and other poolers refuse parameters that they do not know, or ignore them;
the value of ALTER DATABASE or ALTER ROLE would then apply, and text would be wrong without an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiorepl.errors import ConnectionFailed
from aiorepl.wire.commands import literal

STARTUP: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "application_name": "aiorepl",
}
"""The settings of the startup packet, which every pooler knows."""

TEXT_SETTINGS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    # A role that may create objects in a schema of the path could define operators and functions that fit better than those of
    # pg_catalog, and our queries would run them. With an empty path, the server also qualifies the names of reg* values, as in
    # snapshots.
    "search_path": "",
}
"""The text forms that the decoders rely on."""

GIVE_UP_CLIENT: Final = """
SELECT pg_catalog.set_config('tcp_user_timeout', '60000', false)
 WHERE pg_catalog.current_setting('tcp_user_timeout', true) IS NOT NULL
"""
"""A query after which the server closes the connection of a client that has not acknowledged data for a minute.

Only for connections whose answers are read at once. A client that reads nothing for a minute, because its sinks are slow, would lose its
connection, too.
"""

# A role or database may have timeouts for its clients. They would end a stream in the middle of a large transaction, or a
# connection that waits while another one reads. Some of these settings are new in PostgreSQL 14 or 17. A table may be replaced by
# a view of the same name after it was looked up, and a view runs its owner's functions as our role; since the minor releases of
# August 2024 the server can refuse that.
_SESSION: Final[Mapping[str, str]] = {
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "transaction_timeout": "0",
    "restrict_nonsystem_relation_kind": "view",
    # Our literals may contain backslashes.
    "standard_conforming_strings": "on",
}
# With keepalives, the server detects within a minute that its client is gone, unless the server is sending. Without them, a process
# would hold locks and snapshots for hours after the loss of its client. The values are not verified, because connections without TCP
# do not have these settings.
_KEEPALIVE: Final[Mapping[str, str]] = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
# The text of money has the sign and the decimals of the database's locale. An earlier client of a pooler may have changed
# lc_monetary.
_MONEY: Final = "lc_monetary"
_LOCALE: Final = (
    "(SELECT reset_val FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) 'lc_monetary')"
)
_QUERY: Final = """
SELECT s.name, s.value AS wanted, pg_catalog.pg_backend_pid()::pg_catalog.text AS pid,
       pg_catalog.concat(pg_catalog.inet_server_addr(), pg_catalog.inet_server_port()) AS server,
       CASE WHEN {condition} THEN pg_catalog.set_config(s.name, s.value, false)
            ELSE pg_catalog.current_setting(s.name) END AS found
  FROM (VALUES {values}) AS s (name, value)
 WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL
"""

NO_POOLER: Final = "name the host and port of PostgreSQL itself in the DSN"

Rows = Sequence[Mapping[str, Any]]


def set_if_own(settings: Mapping[str, str], pid: int) -> str:
    """Return the query that sets everything in the session of the server process ``pid``, and changes no other session.

    Behind a pooler, another process than ``pid`` runs the query. A setting might stay in that session after this client.
    """
    return _query({**settings, **_KEEPALIVE}, f"pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) {pid}")


def set_in_pool(settings: Mapping[str, str]) -> str:
    """Return the query that sets everything, and resets ``lc_monetary``, in a session that a pooler has given to this client."""
    return _query(settings, "true", f", ({literal(_MONEY)}, {_LOCALE})")


def read_back(settings: Mapping[str, str]) -> str:
    """Return the query that reads the settings, and changes none."""
    return _query(settings, "false", f", ({literal(_MONEY)}, {_LOCALE})")


class ProcessId(NamedTuple):
    """A server process.

    :param pid: its number.
    :param server: the address and port of its server, as the server reports them. A proxy has several servers at one address.
    """

    pid: int
    server: str


def served_by(rows: Rows) -> ProcessId:
    """Return the server process that answered."""
    return ProcessId(int(rows[0]["pid"]), str(rows[0]["server"]))


def require_exact(rows: Rows, server: str) -> None:
    """Check that the session has every setting.

    :param server: the server as a noun phrase.
    :raises ConnectionFailed: the session lacks settings; the message names them.
    """
    wrong = [
        f"{row['name']} is {row['found']!r} instead of {row['wanted']!r}"
        for row in rows
        if row["name"] not in _KEEPALIVE
        and not _equal(str(row["name"]), str(row["found"]), str(row["wanted"]))
    ]
    if wrong:
        raise ConnectionFailed(
            f"{server} does not keep the settings of this connection, so values would be wrong: {', '.join(wrong)}: {NO_POOLER}",
            permanent=True,
        )


def _query(settings: Mapping[str, str], condition: str, further: str = "") -> str:
    values = ", ".join(
        f"({literal(name)}, {literal(value)})" for name, value in {**settings, **_SESSION}.items()
    )
    return _QUERY.format(condition=condition, values=values + further)


def _equal(name: str, found: str, wanted: str) -> bool:
    if name == "DateStyle":
        # The order of fields, after the comma, does not matter under ISO.
        found = found.partition(",")[0]
    return found.strip('"') == wanted.strip('"')
