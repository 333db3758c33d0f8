"""Real servers for tests: an embedded one per version and worker, started when first asked for, and a database of
its own for each test.

``AIOREPL_TEST_DSN`` names a server to use instead: its user a superuser, its ``wal_level`` logical. Tests marked
``postgres(15, 16, 18)`` run on each of these versions, and say so where one is not to be had.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote, urlsplit

import asyncpg
import pytest

from aiorepl.testing import EmbeddedServer

DEFAULT_VERSION = 18
# Versions that do not come in a wheel, and where Debian and its relatives put them.
INSTALLED: Mapping[int, Path] = {
    15: Path("/usr/lib/postgresql/15/bin"),
    17: Path("/usr/lib/postgresql/17/bin"),
}

_T = TypeVar("_T")


class Server(Protocol):
    """What tests may ask of a server, embedded or given."""

    @property
    def version(self) -> int:
        """The major version."""

    @property
    def dsn(self) -> str:
        """A superuser's, to a database that is always there."""

    def dsn_for(self, database: str) -> str:
        """The same, to another database."""


class GivenServer:
    """The server that ``AIOREPL_TEST_DSN`` names. It is not ours: it is neither started, stopped nor killed."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.version = int(_now(_fetch(dsn, "SHOW server_version_num"))[0][0]) // 10000

    def dsn_for(self, database: str) -> str:
        return urlsplit(self.dsn)._replace(path="/" + quote(database, safe="")).geturl()


class Servers:
    """The servers of this worker. One that runs is used again by the tests that follow."""

    def __init__(self, given: str | None) -> None:
        self._given = None if given is None else GivenServer(given)
        self._running: dict[int, EmbeddedServer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, version: int | None) -> Server:
        """A server of that version, of any if ``None``; skips the test where there is none."""
        if self._given is not None:
            if version not in (None, self._given.version):
                pytest.skip(f"AIOREPL_TEST_DSN names a PostgreSQL {self._given.version}, not {version}")
            return self._given
        version = version or DEFAULT_VERSION
        bin_dir = INSTALLED.get(version)
        if bin_dir is not None and not bin_dir.is_dir():
            pytest.skip(f"PostgreSQL {version} is not installed here")
        if version not in self._running:
            self._running[version] = self._stack.enter_context(EmbeddedServer(version, bin_dir=bin_dir))
        return self._running[version]


@dataclass(frozen=True)
class Database:
    """A test's own database. Its name begins the names of what a server has once only, such as slots."""

    server: Server
    name: str

    @property
    def dsn(self) -> str:
        """As superuser."""
        return self.server.dsn_for(self.name)

    def slot(self, suffix: str = "") -> str:
        """The name of a slot that no other test has."""
        return f"{self.name}_{suffix}" if suffix else self.name

    def run(self, *statements: str) -> list[asyncpg.Record]:
        """Run statements, each in a transaction of its own; returns the last one's rows. Blocks the caller."""
        return _now(_fetch(self.dsn, *statements))

    async def connect(self, **settings: Any) -> asyncpg.Connection:
        """Another connection, which the test closes."""
        return await asyncpg.connect(self.dsn, **settings)


NewDatabase = Callable[..., AbstractContextManager[Database]]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "postgres(*versions): run on a server of each of these versions")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once per version that the marker names."""
    marker = metafunc.definition.get_closest_marker("postgres")
    if marker is not None:
        metafunc.parametrize("server", marker.args, indirect=True, ids=lambda version: f"pg{version}")


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """All servers of this worker."""
    with Servers(os.environ.get("AIOREPL_TEST_DSN")) as servers:
        yield servers


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A server that runs. Whoever stops or changes one starts an ``EmbeddedServer`` instead: this one is shared."""
    return servers.of(getattr(request, "param", None))


@pytest.fixture
def new_database(request: pytest.FixtureRequest, server: Server) -> NewDatabase:
    """What makes further databases: call it with a purpose, in a ``with`` statement."""

    @contextmanager
    def new_database(purpose: str = "") -> Iterator[Database]:
        database = Database(server, _name_for(request.node.nodeid + purpose))
        _now(_drop(database))  # left by a run that was killed, on a server that outlived it
        _now(_fetch(server.dsn, f'CREATE DATABASE "{database.name}"'))
        try:
            yield database
        finally:
            _now(_drop(database))

    return new_database


@pytest.fixture
def database(new_database: NewDatabase) -> Iterator[Database]:
    """An empty database, dropped afterwards with its slots and whoever holds them."""
    with new_database() as database:
        yield database


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the test's database."""
    connection = await database.connect()
    yield connection
    await connection.close()


def _name_for(test: str) -> str:
    # Told by the hash: names are cut at 63 bytes, and slots take a-z, 0-9 and _ only. Room is left for suffixes.
    plain = re.sub("[^a-z0-9]+", "_", test.rpartition("::")[2].lower()).strip("_")
    return f"{plain[:32]}_{hashlib.sha256(test.encode()).hexdigest()[:8]}"


async def _fetch(dsn: str, *statements: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        rows: list[asyncpg.Record] = []
        for statement in statements:
            rows = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()


async def _drop(database: Database) -> None:
    connection = await asyncpg.connect(database.server.dsn)
    try:
        rollbacks = await connection.fetch(
            "SELECT 'ROLLBACK PREPARED ' || quote_literal(gid) FROM pg_prepared_xacts WHERE database = $1",
            database.name,
        )
        if rollbacks:  # possible from the database itself only
            await _fetch(database.dsn, *(rollback for (rollback,) in rollbacks))
        # An active slot can be taken again between the two statements, by a test's client that reconnects.
        async with asyncio.timeout(30):
            while slots := await connection.fetch(
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = $1", database.name
            ):
                for name, pid in slots:
                    if pid is not None:
                        await connection.fetch("SELECT pg_terminate_backend($1)", pid)
                        await asyncio.sleep(0.01)  # nothing tells when a slot is let go of
                        continue
                    try:
                        await connection.fetch("SELECT pg_drop_replication_slot($1)", name)
                    except (asyncpg.ObjectInUseError, asyncpg.UndefinedObjectError):
                        continue
        await connection.execute(f'DROP DATABASE IF EXISTS "{database.name}" WITH (FORCE)')
    finally:
        await connection.close()


def _now(work: Coroutine[Any, Any, _T]) -> _T:
    """Run it to its end in a loop of its own, also where a test's loop runs already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
