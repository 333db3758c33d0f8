"""Cancels a call at its n-th await, for n = 1, 2, 3 and so on, and looks for what it left behind.

Steps are counted, not timed: a task is suspended once for each of its awaits that has to wait. At the n-th of them the
call is cancelled in one of three ways. ``once`` cancels what is awaited before it can complete. ``late`` lets it complete
and cancels the task before it sees the result, which is when a call loses what it has already taken. ``again`` cancels
every later await of the call as well, those of its cleanup included, as a cancelled scope of anyio's does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN
from aiorepl.wire import sql
from tests.waiting import until

DEADLINE = 60.0


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine that calls ``suspended`` with each future it waits for; ``None`` for a bare yield."""

    def __init__(self, work: Coroutine[Any, Any, Any], suspended: Callable[[Any], None]) -> None:
        self._work = work
        self._suspended = suspended

    def send(self, value: Any) -> Any:
        return self._told(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        return self._told(self._work.throw(*error))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError

    def _told(self, awaited: Any) -> Any:
        self._suspended(awaited)
        return awaited


class Cancelling:
    """Cancels a task at the n-th await of its own or, with ``everywhere``, of any task that it starts."""

    def __init__(self, number: int, way: str, *, everywhere: bool) -> None:
        self.number = number
        self.cancelled = False
        self._way = way
        self._everywhere = everywhere
        self._steps = 0
        self._task: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine in a task; ``cancelled`` is whether the task ended as cancelled."""
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        if self._everywhere:
            loop.set_task_factory(self._start)
        self._task = self._start(loop, work)
        try:
            await asyncio.wait({self._task})
        finally:
            loop.set_task_factory(before)
        self.cancelled = self._task.cancelled()
        return None if self.cancelled else self._task.result()

    def _start(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Steps(work, self._suspended), loop=loop, **options)

    def _suspended(self, awaited: Any) -> None:
        self._steps += 1
        if self._steps == self.number and self._way == "late" and awaited is not None:
            # Called before the task hears of it, because the task adds its callback after this one.
            awaited.add_done_callback(self._cancel)
        elif self._steps == self.number or (self._way == "again" and self._steps > self.number and self._own):
            self._cancel()

    @property
    def _own(self) -> bool:
        return asyncio.current_task() is self._task

    def _cancel(self, _: Any = None) -> None:
        assert self._task is not None
        self._task.cancel()


@pytest.fixture(params=["once", "late", "again"])
def cancelling(request: pytest.FixtureRequest) -> Callable[..., Cancelling]:
    """``cancelling(n)``: cancels at the n-th await, in one of the three ways."""

    def cancelling(number: int, *, everywhere: bool = False) -> Cancelling:
        return Cancelling(number, request.param, everywhere=everywhere)

    return cancelling


class Watched:
    """The tasks and descriptors that a call may leave behind in this process."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._descriptors = _descriptors()

    async def nothing_left(self) -> None:
        """Check that there are no more tasks and descriptors than before."""
        own = {asyncio.current_task()}
        await until(lambda: asyncio.all_tasks() - self._tasks - own, lambda left: not left)
        # uvloop opens sockets of its own for each run of the loop.
        if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            await until(lambda: _descriptors() - self._descriptors, lambda left: not left)


def _descriptors() -> Counter[str]:
    """Return the targets of the open descriptors."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[str(descriptor.readlink())] += 1
    # A spool is closed by the garbage collector.
    return Counter({name: count for name, count in found.items() if "aiorepl-spool" not in name})


class ReplicatedDatabase:
    """A database with a publication ``p`` of all tables, and its slot."""

    def __init__(self, dsn: str, slot: str, connection: asyncpg.Connection) -> None:
        self.dsn = dsn
        self.slot = slot
        self.connection = connection

    async def execute(self, *statements: str) -> None:
        """Run each statement in its own transaction."""
        for statement in statements:
            await self.connection.execute(statement)

    async def create_slot(self) -> None:
        """Create the slot that tests copy."""
        await self.connection.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", self.slot)

    @contextlib.asynccontextmanager
    async def copied_slot(self) -> AsyncIterator[str]:
        """A copy of the slot; nothing may be left of its consumers."""
        copy = f"{self.slot[:50]}_{secrets.token_hex(4)}"
        await self.connection.execute("SELECT pg_copy_logical_replication_slot($1, $2)", self.slot, copy)
        yield copy
        await self.nothing_left()
        await self.connection.execute("SELECT pg_drop_replication_slot($1)", copy)

    async def confirmed(self, slot: str) -> LSN:
        """Return the slot's confirmed LSN."""
        text = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
        return LSN.parse(await self.connection.fetchval(text, slot))

    async def nothing_left(self) -> None:
        """Check that there are no sessions of ours and no active slots."""
        await until(
            lambda: self.connection.fetch(
                "SELECT pid, state, left(query, 60) AS query FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND backend_type IN ('client backend', 'walsender')"
            ),
            lambda left: not left,
        )
        in_use = "SELECT slot_name FROM pg_replication_slots WHERE active AND database = current_database()"
        assert not await self.connection.fetch(in_use)


@pytest.fixture
async def replicated(database: str, slot_name: str) -> AsyncIterator[ReplicatedDatabase]:
    """The test's database with a table ``items``."""
    connection = await asyncpg.connect(database)
    # asyncpg logs a future of its own when it is cancelled while it asks whether the server speaks TLS.
    fixture = ReplicatedDatabase(f"{database}?sslmode=disable", slot_name, connection)
    await fixture.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text)", "CREATE PUBLICATION p FOR ALL TABLES"
    )
    yield fixture
    connection.terminate()


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: these tests write hundreds of journals."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SQL source fetch a transaction of two hundred rows in more than one portion."""
    monkeypatch.setattr(sql, "_FETCH_ROWS", 100)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """The tasks and descriptors of this process; threads must end with the test."""
    yield Watched()
    async with asyncio.timeout(DEADLINE):
        for thread in threading.enumerate():
            if thread.name.startswith("aiorepl"):
                await asyncio.to_thread(thread.join)
