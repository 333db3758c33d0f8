"""The sink keeps the contract, by the kit that every sink's author has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl.testing import LossyProxy
from aiorepl.testing.conformance import TABLES, MirrorConformance, SampleTable
from aiorepl_sinks.postgres import PostgresSink
from aiorepl_sinks.postgres.identifiers import quoted

pytestmark = pytest.mark.by_day

POISON = "a poisoned note"


class Mirroring(MirrorConformance):
    """The guarantees of every mode of the sink."""

    exactly_once = True
    atomic = True
    poison = POISON
    options: dict[str, Any] = {}  # noqa: RUF012
    answer = b"COMMIT\0"

    @pytest.fixture(autouse=True)
    def target(self, database: str, server: Any, superuser: Any, lossy: Callable[..., LossyProxy]) -> None:
        """A database with the kit's tables, and a proxy in front of it."""
        self.dsn = database
        self.superuser = superuser
        parts = urlsplit(database)
        self.proxy = lossy((parts.hostname, parts.port), answer=self.answer)
        user = parts.netloc.rpartition("@")[0]
        # asyncpg logs a future of its own when it is cancelled while it asks whether the server speaks TLS.
        plain = {"netloc": f"{user}@127.0.0.1:{self.proxy.port}", "query": "sslmode=disable"}
        self.by_proxy = parts._replace(**plain).geturl()
        self.admin = server.dsn
        self.name = database.rpartition("/")[2]
        self.execute(
            database,
            *(table.ddl for table in TABLES),
            f"ALTER TABLE items ADD CONSTRAINT no_poison CHECK (note <> '{POISON}')",
        )

    def execute(self, dsn: str, *statements: str) -> None:
        """Run each statement in its own transaction."""

        async def execute(connection: asyncpg.Connection) -> None:
            for statement in statements:
                await connection.execute(statement)

        self.superuser.run(dsn, execute)

    def make_sink(self) -> PostgresSink:
        return PostgresSink(self.by_proxy, **self.options)

    def lost_answer(self) -> AbstractContextManager[object]:
        """The target commits, and its answer is lost."""
        return self.proxy.losing()

    def rows(self, table: SampleTable) -> Sequence[Mapping[str, Any]]:
        columns = ", ".join(f"{quoted(name)}::text" for name, _, _ in table.columns)

        async def rows(connection: asyncpg.Connection) -> list[dict[str, Any]]:
            await connection.execute("SET TimeZone = 'UTC'; SET extra_float_digits = 3")
            return [dict(row) for row in await connection.fetch(f"SELECT {columns} FROM {table}")]

        return self.superuser.run(self.dsn, rows)

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.execute(
            self.admin,
            f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS false',
            f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{self.name}'",
        )
        try:
            yield
        finally:
            self.execute(self.admin, f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS true')


class TestUpsert(Mirroring):
    """The default options."""


class TestStrict(Mirroring):
    """Strict mode finds no difference."""

    options = {"mode": "strict", "transactions": "source"}  # noqa: RUF012


class TestTwoPhase(Mirroring):
    """Prepared transactions are prepared on the target."""

    options = {"two_phase": True}  # noqa: RUF012
