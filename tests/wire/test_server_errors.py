"""Errors of logins and of START_REPLICATION: one line each that says what to do."""

from __future__ import annotations

import asyncpg
import pytest

from aiorepl import (
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    Pipeline,
    ServerError,
    SlotError,
    Source,
)
from aiorepl.lsn import LSN
from aiorepl.testing import MemorySink
from aiorepl.testing.walsender import Error, ScriptedWalsender
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.opening import connect_sql, translated


async def test_nobody_there():
    """A port without a server: the error says what to check, and is retried."""
    async with ScriptedWalsender() as server:
        dsn = server.dsn
    with pytest.raises(
        ConnectionFailed, match=r"cannot reach the server at 127.0.0.1:\d+: .*: check host and port"
    ) as caught:
        await ReplicationConnection.open(dsn)

    assert not caught.value.permanent
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("dsn", "wrong"),
    [
        ("postgresql://user:s3cr3t@host:port/db", "the DSN or the PG. environment is invalid"),
        ("mysql://s3cr3t", "the DSN is not a URL of PostgreSQL"),
        ("s3cr3t", "the DSN is not a URL"),
        ("host=h password=s3cr3t", "the DSN is not a URL, but libpq's form of name=value"),
    ],
)
async def test_a_dsn_that_cannot_be_read(dsn, wrong):
    """The error says what is wrong with the DSN without quoting it: it may contain a password."""
    with pytest.raises(ConfigurationError, match=f"^{wrong}: write postgresql://") as caught:
        await ReplicationConnection.open(dsn)

    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("sqlstate", "message", "expected", "permanent"),
    [
        ("28P01", 'password authentication failed for user "u"', "check the password", True),
        ("28000", 'no pg_hba.conf entry for host "h"', "pg_hba.conf", True),
        ("3D000", 'database "d" does not exist', "check the database name", True),
        ("42501", "permission denied to start WAL sender", "REPLICATION", True),
        ("08P01", "unsupported startup parameter: IntervalStyle", "PgBouncer or another pooler", True),
        ("53300", "sorry, too many clients already", "too many clients", False),
        ("57P03", "the database system is starting up", "starting up", False),
    ],
)
async def test_refused_logins(sqlstate, message, expected, permanent):
    """Each error of a login says what to do, and whether it is retried."""
    login = Error(S="FATAL", V="FATAL", C=sqlstate, M=message, D="a second line", H="a third")
    async with ScriptedWalsender(login=login) as server:
        with pytest.raises(ConnectionFailed, match=expected) as caught:
            await ReplicationConnection.open(server.dsn)

    assert message in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())
    assert permanent == caught.value.permanent


async def test_a_pooler_that_ignores_replication():
    """PgBouncer can be told to ignore the parameter; the error of the first replication command then names the cause."""
    refusal = Error(S="ERROR", C="42601", M='syntax error at or near "IDENTIFY_SYSTEM"')
    async with ScriptedWalsender(answers={"IDENTIFY_SYSTEM": refusal}) as server:
        connection = await ReplicationConnection.open(server.dsn)
        with pytest.raises(ConnectionFailed, match="a pooler such as PgBouncer") as caught:
            await connection.identify_system()
        await connection.close()
    assert caught.value.permanent


async def test_a_pooler_that_ignores_both():
    """In its ordinary connection, which other clients use as well, nothing is set."""
    refusal = Error(S="ERROR", C="42601", M='syntax error at or near "IDENTIFY_SYSTEM"')
    elsewhere = [{"name": "bytea_output", "wanted": "hex", "found": "escape", "pid": "2", "server": ""}]
    async with ScriptedWalsender(answers={"IDENTIFY_SYSTEM": refusal, "set_config": elsewhere}) as server:
        with pytest.raises(ConnectionFailed, match="a pooler such as PgBouncer"):
            await ReplicationConnection.open(server.dsn)
    setting, asking = server.queries
    assert "WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) 1 THEN" in setting
    assert "IDENTIFY_SYSTEM" == asking


async def test_a_setting_that_is_not_kept():
    """It is named, with its value, and the connection is not used."""
    rows = [
        {"name": "bytea_output", "wanted": "hex", "found": "hex", "pid": "1", "server": ""},
        {"name": "DateStyle", "wanted": "ISO", "found": "ISO, DMY", "pid": "1", "server": ""},
        {"name": "extra_float_digits", "wanted": "3", "found": "-5", "pid": "1", "server": ""},
    ]
    async with ScriptedWalsender(answers={"set_config": rows}) as server:
        with pytest.raises(
            ConnectionFailed, match=r"wrong: extra_float_digits is '-5' instead of '3': name"
        ) as caught:
            await ReplicationConnection.open(server.dsn)
    assert caught.value.permanent


@pytest.mark.parametrize(
    ("sqlstate", "message", "error", "expected"),
    [
        ("42704", 'replication slot "s" does not exist', SlotError, "create it"),
        ("42704", 'publication "p" does not exist', ConfigurationError, "CREATE PUBLICATION"),
        ("55006", 'replication slot "s" is active for PID 7', SlotError, "another consumer"),
        ("42501", "permission denied to use replication slots", ConnectionFailed, "REPLICATION"),
        ("55000", "logical decoding requires wal_level >= logical", ConfigurationError, "set wal_level"),
        ("55000", "cannot use physical replication slot for logical decoding", SlotError, "cannot be used"),
        ("55000", 'cannot read from logical replication slot "s"', SlotError, "cannot be used"),
        ("XX000", "something else", ServerError, "something else"),
    ],
)
async def test_refused_streams(sqlstate, message, error, expected):
    """Each error of START_REPLICATION says what to do; the connection stays usable."""
    refusal = Error(S="ERROR", C=sqlstate, M=message)
    async with ScriptedWalsender(answers={"START_REPLICATION": refusal}) as server:
        connection = await ReplicationConnection.open(server.dsn)
        with pytest.raises(error, match=expected) as caught:
            await connection.start_replication("s", LSN(0), {})
        assert "scripted" == (await connection.identify_system()).database
        await connection.close()

    assert (sqlstate == "55006") == getattr(caught.value, "busy", False)


USABLE = {
    "slot_type": "logical",
    "plugin": "pgoutput",
    "database": "scripted",
    "active": "false",
    "active_pid": None,
    "temporary": "false",
    "wal_status": "reserved",
    "invalidation_reason": None,
    "failover": "false",
    "two_phase": "false",
    "synchronized": "false",
    "retained": None,
    "catalog_xmin": None,
    "confirmed_flush_lsn": "0/10",
}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"slot_type": "physical"}, "is a physical slot: use another name"),
        ({"plugin": "wal2json"}, "decodes with wal2json, not pgoutput: use another name"),
        ({"database": "other"}, "belongs to database 'other', the DSN names 'scripted'"),
        ({"wal_status": "lost"}, "is lost (the WAL it needed was removed): changes are missing for good"),
        ({"invalidation_reason": "idle_timeout"}, "is lost (idle_timeout): changes are missing for good"),
        ({"synchronized": "true"}, "is being synchronized from the primary on this standby"),
        (
            {"active": "true", "active_pid": "7"},
            "is in use by process 7 on the server: stop that consumer, use a slot of your own, or let a pipeline wait for it (wait_for_slot = true)",
        ),
        ({"temporary": "true"}, "is temporary and belongs to another session: use another name"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_slots_that_cannot_be_used(found, expected):
    """A slot is checked before it is started, and the error says what is wrong with it."""
    async with ScriptedWalsender(answers={"pg_replication_slots": [USABLE | found]}) as server:
        with pytest.raises(SlotError) as caught:
            await Pipeline(
                Source(server.dsn, slot="s", publication="p"), [MemorySink()], reconnect=None
            ).run()

    assert f"slot 's' {expected}" in str(caught.value)
    assert (found.keys() <= {"active", "active_pid", "synchronized"}) == caught.value.busy
    assert not [sql for sql in server.queries if sql.startswith("START_REPLICATION")]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            {"pg_settings": [{"name": "wal_level", "setting": "replica"}]},
            "wal_level is replica: set wal_level = logical and restart it",
        ),
        ({"pg_publication": []}, "no publication 'p' in this database: CREATE PUBLICATION p"),
    ],
)
async def test_servers_that_cannot_be_used(answers, expected):
    """wal_level and the publications are checked before the start."""
    async with ScriptedWalsender(answers=answers) as server:
        with pytest.raises(ConfigurationError, match=expected):
            await Pipeline(
                Source(server.dsn, slot="s", publication="p"), [MemorySink()], reconnect=None
            ).run()


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_connection_that_is_closed_while_it_is_opened(monkeypatch, error):
    """The server may close it between two calls of asyncpg's, which has three errors for it; connecting may succeed later."""
    closed = []

    class Connection:
        async def fetch(self, statement):
            raise error

        def get_server_pid(self):
            return 1

        def get_server_version(self):
            return (18,)

        def terminate(self):
            closed.append(self)

    async def connect(dsn, **options):
        return Connection()

    monkeypatch.setattr(asyncpg, "connect", connect)

    with pytest.raises(ConnectionFailed, match="closed the connection while it was opened") as raised:
        await connect_sql("postgresql://somewhere/database")

    assert not raised.value.permanent
    assert 1 == len(closed)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
        asyncpg.CannotConnectNowError("the database system is shutting down"),
        asyncpg.InterfaceError("the underlying connection is closed"),
        ConnectionResetError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_ended_connection_is_lost(error):
    """An error that ends the connection is not one of the command, so a snapshot does not leave out the table for it."""
    assert isinstance(translated(error), ConnectionLost)
