"""Random transactions are open at any moment of several losses: no row is missing afterwards."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import asyncpg
import pytest

from tests.live.conftest import Published
from tests.live.lossy import INSERTS, SETTINGS, Lossy
from tests.today import day

pytestmark = pytest.mark.by_day


class Writer:
    """A session with a transaction that lasts over many steps of the test."""

    def __init__(self, connection: asyncpg.Connection, chance: random.Random, keys: Iterator[int]) -> None:
        self._connection, self._chance, self._keys = connection, chance, keys
        self._depth = -1
        self.prepared: list[str] = []

    async def step(self) -> None:
        """Begin or end a transaction or a subtransaction, or write."""
        action = self._chance.choice(
            ("write", "write", "open", "close", "undo", "commit", "prepare", "resolve")
        )
        execute = self._connection.execute
        if action == "resolve":
            if self.prepared and self._depth < 0:
                await execute(f"COMMIT PREPARED '{self.prepared.pop()}'")
        elif self._depth < 0:
            await execute(self._chance.choice(("BEGIN", "BEGIN; SELECT pg_current_xact_id()")))
            self._depth = 0
        elif action == "write":
            values = ", ".join(f"({next(self._keys)}, 'x')" for _ in range(self._chance.randrange(1, 5)))
            await execute(f"INSERT INTO {self._chance.choice(('items', 'events'))} VALUES {values}")
        elif action == "open" or (action in ("close", "undo") and not self._depth):
            self._depth += 1
            await execute(f"SAVEPOINT s{self._depth}")
        elif action in ("close", "undo"):
            await execute(f"{'RELEASE' if action == 'close' else 'ROLLBACK TO'} s{self._depth}")
            self._depth -= action == "close"
        elif action == "prepare":
            name = f"p{next(self._keys)}"
            await execute(f"PREPARE TRANSACTION '{name}'")
            self.prepared.append(name)
            self._depth = -1
        else:
            await execute("COMMIT")
            self._depth = -1

    async def finish(self) -> None:
        """Commit everything."""
        if self._depth >= 0:
            await self._connection.execute("COMMIT")
        self._depth = -1
        while self.prepared:
            await self._connection.execute(f"COMMIT PREPARED '{self.prepared.pop()}'")

    def close(self) -> None:
        """End the session."""
        self._connection.terminate()


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("version", [13, 15, 17, 18, 19])
async def test_rounds(
    publish: Callable[[str], Awaitable[Published]],
    servers: Any,
    way: dict[str, Any],
    version: int,
    two_phase: bool,
) -> None:
    if two_phase and version < 15:
        pytest.skip("this server decodes no prepared transactions of such slots")
    chance = random.Random(f"{day()}-{way}-{version}-{two_phase}")
    keys = count(1000)
    settings = {**SETTINGS, "max_prepared_transactions": "200"}
    with servers.new(version, **settings) as server:
        lossy = Lossy(await publish(server.dsn), way)
        lossy.options = {"two_phase": two_phase, "proto_version": 3} if two_phase else {}
        await lossy.execute(INSERTS, "CREATE TABLE events (id int, note text)")
        writers = [Writer(await asyncpg.connect(server.dsn), chance, keys) for _ in range(5)]

        async def work(steps: int) -> None:
            for _ in range(steps):
                await chance.choice(writers).step()
                if not chance.randrange(12):
                    await lossy.execute("CHECKPOINT")

        async def settle() -> None:
            """The server can create a slot only while no earlier transaction is open."""
            for writer in writers:
                await writer.finish()

        await lossy.run()
        kept = 0
        for _ in range(3):
            for _ in range(chance.randrange(1, 6)):
                await work(20)
                await lossy.run()
            await work(20)
            await lossy.published.lose_slot()
            await work(20)
            await lossy.lose()
            await settle()
            found = await lossy.run()
            kept += not [each for each in found if each[0] == "truncate"]
            assert (await lossy.both())["items"] <= lossy.copied["items"]
            assert (await lossy.both())["events"] <= lossy.copied["events"]
        await settle()
        await lossy.run()
        assert (await lossy.both())["items"] == lossy.copied["items"]
        assert (await lossy.both())["events"] == lossy.copied["events"]
        assert kept > 0
        for writer in writers:
            writer.close()
