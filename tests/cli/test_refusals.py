"""Commands that cannot work print one line that says what is wrong and what to do, with the right exit code."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import asyncpg
import pytest

pytestmark = pytest.mark.by_day

FLAGS = ["--slot", "s", "--publication", "p"]
NOWHERE = ["--dsn", "postgresql://u:s3cret@127.0.0.1:1/d", *FLAGS]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tail", "--colour", *NOWHERE], "No such option"),
        (["tial"], "No such command 'tial'"),
        (["tail", "--publication", "p"], "Missing option '--slot'"),
        (["tail", "--slot", "s"], "Missing option '--publication'"),
        (["tail", *NOWHERE, "--until", "tomorrow"], "'tomorrow' is not an LSN"),
        (["tail", *NOWHERE, "--proto-version", "9"], "--proto-version"),
        (["tail", *NOWHERE, "--values", "yaml"], "--values"),
        (["tail", *NOWHERE, "--temporary"], "--create-slot"),
        (["tail", *NOWHERE, "--binary", "--values", "text"], "--binary"),
        (["tail", *NOWHERE, "--slot", ""], "name a replication slot"),
        (["tail", "--dsn", "nonsense:s3cret", *FLAGS], "write postgresql://"),
        (["tail", "--dsn", "postgresql://u:s3cret@h:port/d", *FLAGS], "write postgresql://"),
        (["tail", "--dsn", "mysql://u:s3cret@h/d", *FLAGS], "write postgresql://"),
    ],
)
async def test_usage(refused, arguments, reason):
    """Before anything is connected: exit code 2."""
    await refused(2, reason, *arguments)


async def test_nobody_listens(refused):
    """The server does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        dsn = f"postgresql://u:s3cret@127.0.0.1:{bound.getsockname()[1]}/d"
        await refused(3, "cannot reach the server", "tail", "--dsn", dsn, *FLAGS)


async def test_an_unknown_host(refused):
    """The host is unknown."""
    await refused(
        3, "check host and port", "tail", "--dsn", "postgresql://u:s3cret@aiorepl.invalid/d", *FLAGS
    )


async def test_a_wrong_password(refused, published):
    """The error names the password, and does not quote it."""
    parts = urlsplit(published.dsn)
    dsn = parts._replace(netloc=f"postgres:s3cret@{parts.hostname}:{parts.port}").geturl()
    await refused(3, "check the password", "tail", "--dsn", dsn, *FLAGS)


async def test_no_such_database(refused, published):
    """A database that is not there."""
    dsn = urlsplit(published.dsn)._replace(path="/nowhere").geturl()
    secret = urlsplit(published.dsn).password
    await refused(3, "check the database name", "tail", "--dsn", dsn, *FLAGS, secret=secret)


async def test_a_missing_slot(refused, published):
    """A missing slot is created only with ``--create-slot``."""
    await refused(3, "does not exist", "tail", *published.flags)


async def test_a_slot_in_use(refused, start, published):
    """Another consumer is named by its process."""
    await published.create_slot()
    running = await start("tail", *published.flags)
    await published.wait_until_active()
    await refused(3, "is in use by process", "tail", *published.flags)
    assert running.process.returncode is None


async def test_a_physical_slot(refused, published):
    """A slot of the other kind."""
    await published.connection.fetchval("SELECT pg_create_physical_replication_slot($1)", published.slot)
    try:
        await refused(3, "is a physical slot", "tail", *published.flags)
    finally:
        await published.connection.fetchval("SELECT pg_drop_replication_slot($1)", published.slot)


async def test_a_missing_publication(refused, published):
    """If the publication is missing, the error names those that exist, and no slot is created."""
    flags = [*published.flags[:-1], "p,absent", "--create-slot"]
    await refused(2, "no publication 'absent' in this database, which has 'p': ", "tail", *flags)
    assert 0 == await published.connection.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", published.slot
    )


@pytest.mark.parametrize("version", [15, 18])
async def test_no_replication_privilege(refused, servers, version, slot_name):
    """A role that may connect and not replicate."""
    server = servers(version)
    role = f"r_{slot_name[-8:]}"
    connection = await asyncpg.connect(server.dsn)
    try:
        await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 's3cret'")
        dsn = f"postgresql://{role}:s3cret@127.0.0.1:{server.port}/postgres"
        await refused(3, "REPLICATION", "tail", "--dsn", dsn, *FLAGS)
    finally:
        await connection.execute(f"DROP ROLE {role}")
        await connection.close()


async def test_wal_level_is_not_logical(refused, servers):
    """A server that keeps too little in its WAL."""
    with servers.new(18, wal_level="replica") as server:
        await refused(2, "set wal_level = logical", "tail", "--dsn", server.dsn, *FLAGS, "--create-slot")


async def test_an_unreadable_configuration(refused, tmp_path):
    """A file for ``run`` that is not there, or is not TOML."""
    broken = tmp_path / "broken.toml"
    broken.write_text("[source\ndsn = 's3cret'")
    await refused(2, "absent.toml", "run", str(tmp_path / "absent.toml"))
    await refused(2, "broken.toml", "run", str(broken))


@pytest.mark.parametrize("name", ["Orders", "", "two words", "a" * 64])
@pytest.mark.parametrize(
    "command",
    [
        ["slots", "create"],
        ["slots", "drop", "--yes"],
        ["slots", "alter", "--failover"],
        ["snapshot", "t", "--slot"],
    ],
)
async def test_a_name_that_no_slot_has(refused, published, command, name):
    """The error says which names there are. The server would cut a longer name off, and so find another slot."""
    text = (
        "name a replication slot"
        if (command[0], name) == ("snapshot", "")
        else "is not a slot name: use up to 63"
    )
    await refused(2, text, *command, name, *(["--dsn", published.dsn]))


@pytest.mark.parametrize("command", ["inspect", "verify", "prune", "compact"])
async def test_a_journal_without_a_name(refused, command):
    """An empty name, as of a variable that is not set, is not the current folder."""
    await refused(2, "url is empty", "journal", command, "")


async def test_a_folder_without_a_journal(refused, tmp_path):
    """There is nothing to prune, and ``prune`` does not say that it has."""
    await refused(1, "there is no journal in", "journal", "prune", str(tmp_path))


@pytest.mark.parametrize("option", ["--rows", "--writers", "--largest"])
async def test_nothing_to_prove(refused, tmp_path, option):
    """Without rows, or writers, nothing is proved."""
    command = ["create"] if option == "--rows" else ["write", str(tmp_path / "history")]
    await refused(2, f"Invalid value for '{option}': 0 is not in the range", "prove", *command, option, "0")
