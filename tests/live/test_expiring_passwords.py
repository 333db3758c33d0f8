"""Passwords that expire: a function, a command or a file gives the current one to every connection of the source and of the sink."""

from __future__ import annotations

import asyncio
import secrets
import sys

import asyncpg
import pytest

from aiorepl import ConfigurationError, ConnectionFailed, Pipeline, SnapshotOptions, Source
from aiorepl.cli.pipeline_file import load
from aiorepl.credentials import PasswordCommand
from aiorepl.monitoring import Watch
from aiorepl.wire.opening import connect_sql
from aiorepl_sinks.postgres import PostgresSink

pytestmark = [pytest.mark.by_day, pytest.mark.server]

READ = "import pathlib, sys; print(pathlib.Path(sys.argv[1]).read_text())"


class Rotating:
    """A role whose password changes, and the files that have the current one."""

    def __init__(self, server, superuser, folder):
        self.server, self.superuser = server, superuser
        self.password, self.dsn = folder / "password", folder / "dsn"

    async def rotate(self):
        """Change the password, write the files, and end every connection of the role."""
        password = secrets.token_hex(8)
        await self.superuser.execute(f"ALTER ROLE cdc PASSWORD '{password}'")
        replace(self.password, password)
        replace(self.dsn, self.dsn_with(f"cdc:{password}"))
        await self.superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cdc'"
        )

    def dsn_with(self, user, database="postgres"):
        """The server's DSN for a user."""
        return f"postgresql://{user}@127.0.0.1:{self.server.port}/{database}"

    def credentials(self, way):
        """The DSN and the options of a source or a sink."""

        async def function():
            return self.password.read_text()

        return {
            "function": (self.dsn_with("cdc"), {"connect": {"password": function}}),
            "command": (
                self.dsn_with("cdc"),
                {"password_command": [sys.executable, "-c", READ, str(self.password)]},
            ),
            "file": (f"file:{self.dsn}", {}),
        }[way]


def replace(path, text):
    """Replace a file at once, as a secret's manager does."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


@pytest.fixture
async def rotating(servers, tmp_path):
    """A server with a role that owns a table and a mirror of it, in another database."""
    with servers.new(18) as server:
        superuser = await asyncpg.connect(server.dsn)
        await superuser.execute("CREATE ROLE cdc LOGIN REPLICATION")
        await superuser.execute("CREATE DATABASE mirror OWNER cdc")
        await superuser.execute("CREATE TABLE t (id int PRIMARY KEY, v int); ALTER TABLE t OWNER TO cdc")
        await superuser.execute("CREATE PUBLICATION p FOR TABLE t")
        target = await asyncpg.connect(server.dsn_for("mirror"))
        await target.execute("CREATE TABLE t (id int PRIMARY KEY, v int); ALTER TABLE t OWNER TO cdc")
        rotating = Rotating(server, superuser, tmp_path)
        rotating.target = target
        await rotating.rotate()
        yield rotating
        for connection in (superuser, target):
            connection.terminate()


@pytest.mark.parametrize("way", ["function", "command", "file"])
async def test_every_connection_has_the_current_password(rotating, way, tmp_path):
    """The password changes before each of several reconnects: stream, snapshot, look-ups, heartbeats, watch and target go on."""
    dsn, options = rotating.credentials(way)
    source = Source(dsn, slot="s", publication="p", create_slot=True, heartbeat_interval=0.05, **options)
    # An async function cannot be given to the sink; the command does the same.
    target, given = rotating.credentials("command" if way == "function" else way)
    if way == "file":
        mirrored = tmp_path / "mirrored"
        target = f"file:{mirrored}"
    else:
        target = rotating.dsn_with("cdc", "mirror")

    async def rotate():
        await rotating.rotate()
        if way == "file":
            replace(mirrored, rotating.dsn.read_text().replace("/postgres", "/mirror"))

    await rotate()
    await rotating.superuser.execute("INSERT INTO t VALUES (0, 0)")
    sink = PostgresSink(target, **given)
    pipeline = Pipeline(source, {"mirror": sink}, snapshot=SnapshotOptions(state=str(tmp_path / "state")))
    async with asyncio.timeout(150), pipeline, Watch(pipeline, seconds=0.05) as watch:
        for number in range(1, 4):
            await rotate()
            sent = pipeline.statistics().heartbeat.sent
            await rotating.superuser.execute("INSERT INTO t VALUES ($1, 0)", number)
            await pipeline.resnapshot("public.t")
            while await rotating.target.fetchval("SELECT count(*) FROM t") <= number:
                await asyncio.sleep(0.02)
            while pipeline.statistics().heartbeat.sent <= sent or watch.slot is None or watch.slot.error:
                await asyncio.sleep(0.02)
    assert pipeline.statistics().reconnects >= 2


async def test_a_password_that_changes_while_it_is_used(rotating):
    """If the password changes between its look-up and the login, it is looked up again; a wrong one may pass later."""
    calls = []

    async def late():
        calls.append(1)
        password = rotating.password.read_text()
        if len(calls) == 1:
            await rotating.rotate()
        return password

    connection = await connect_sql(rotating.dsn_with("cdc"), password=late)
    await connection.close()
    assert 2 == len(calls)
    with pytest.raises(ConnectionFailed, match="gives the current password") as caught:
        await connect_sql(rotating.dsn_with("cdc"), password=lambda: "wrong")
    assert not caught.value.permanent
    with pytest.raises(ConnectionFailed, match="check the password in the DSN") as caught:
        await connect_sql(rotating.dsn_with("cdc:wrong"))
    assert caught.value.permanent


async def test_a_pipeline_file(rotating, tmp_path):
    """In TOML, ``file:`` is read for every connection, by the source and the sink, and ``password_command`` is an array."""
    mirrored, file = tmp_path / "mirrored", tmp_path / "aiorepl.toml"
    mirrored.write_text(rotating.dsn.read_text().replace("/postgres", "/mirror"))
    command = [sys.executable, "-c", READ, str(rotating.password)]
    file.write_text(
        f'[source]\ndsn = "{rotating.dsn_with("cdc")}"\npassword_command = {command!r}\n'
        f'slot = "s"\npublication = "p"\ncreate_slot = true\n[[sinks]]\ntype = "postgres"\ndsn = "file:{mirrored}"\n'
    )
    pipeline = load(file).pipeline
    await rotating.rotate()
    replace(mirrored, rotating.dsn.read_text().replace("/postgres", "/mirror"))
    async with asyncio.timeout(90), pipeline:
        await rotating.superuser.execute("INSERT INTO t VALUES (1, 1)")
        while not await rotating.target.fetchval("SELECT count(*) FROM t"):
            await asyncio.sleep(0.02)


async def test_commands_that_fail(tmp_path):
    """Each failure says what happened, and shows nothing that the command printed."""
    secret = "s3cr3t"
    for code, expected in {
        f"print('{secret}'); raise SystemExit(3)": "has failed with exit code 3",
        f"import sys; print('{secret}', file=sys.stderr)": "must print the password as one line",
        f"print('{secret}'); print('{secret}')": "must print the password as one line",
    }.items():
        with pytest.raises(ConnectionFailed, match=expected) as caught:
            await PasswordCommand([sys.executable, "-c", code])()
        assert secret not in str(caught.value)
        assert not caught.value.permanent
    with pytest.raises(ConnectionFailed, match="cannot be started: No such file") as caught:
        await PasswordCommand([str(tmp_path / "missing")])()
    assert caught.value.permanent
    with pytest.raises(ConfigurationError, match="password_command is of type str, but must be a list"):
        Source("postgresql://", slot="s", publication="p", password_command="aws rds")
    with pytest.raises(ConfigurationError, match="give password_command or"):
        Source("postgresql://", slot="s", publication="p", password_command=["a"], connect={"password": "b"})
    with pytest.raises(ConnectionFailed, match=r"the DSN's file .*missing cannot be read: No such file"):
        await connect_sql(f"file:{tmp_path / 'missing'}")
    source = Source("postgresql://", slot="s", publication="p", password_command=["program", secret])
    assert secret not in repr(source)
