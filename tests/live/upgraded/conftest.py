"""A server that pg_upgrade turns into one of a later version, with its slots."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.server.installation import server_user

_OLD, _NEW = 18, 19


def _programs(server: EmbeddedServer) -> Path:
    """Return the folder of the real programs: initdb of copied clusters is a script."""
    return (server.bin_dir / "postgres").resolve().parent


class Upgradable:
    """An old cluster and an empty new one.

    :ivar client: a connection to the cluster that is running.
    """

    def __init__(self, old: EmbeddedServer, new: EmbeddedServer) -> None:
        self.old, self.new = old, new
        self.client: asyncpg.Connection

    @property
    def dsn(self) -> str:
        """The DSN of the old cluster."""
        return self.old.dsn

    async def connect(self, server: EmbeddedServer) -> None:
        """Connect to a cluster."""
        self.client = await asyncpg.connect(server.dsn)

    async def upgrade(self) -> None:
        """Shut both clusters down, run pg_upgrade, and start the new one."""
        await self.client.close()
        for server in (self.old, self.new):
            os.kill(server.pid, signal.SIGINT)
            while (server.folder / "data" / "postmaster.pid").exists():
                await asyncio.sleep(0.02)
        await asyncio.to_thread(self._upgrade)
        await self.connect(self.new)

    async def restarted(self) -> None:
        """Restart the new cluster."""
        await self.client.close()
        await asyncio.to_thread(self.new.restart)
        await self.connect(self.new)

    async def confirmed(self, slot: str) -> LSN:
        """Return the slot's confirmed LSN, on a new connection."""
        self.client.terminate()
        await self.connect(self.new)
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
        return LSN.parse(await self.client.fetchval(query, slot))

    def _upgrade(self) -> None:
        uid, gid = server_user() or (None, None)
        programs = _programs(self.new)
        command = [programs / "pg_upgrade", "-U", "postgres", "--copy", "--socketdir", self.new.folder]
        command += ["-b", _programs(self.old), "-B", programs]
        command += ["-d", self.old.folder / "data", "-D", self.new.folder / "data"]
        done = subprocess.run(
            [str(part) for part in command],
            check=False,
            cwd=self.new.folder,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            env={"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.new.start()


@pytest.fixture
async def upgradable(servers: Any) -> AsyncIterator[Upgradable]:
    """A published database on a cluster that can be upgraded; skips without pg_upgrade."""
    old, new = servers.new(_OLD), servers.new(_NEW)
    with old, new:
        if not (_programs(new) / "pg_upgrade").exists():
            pytest.skip("no pg_upgrade here: run make servers")
        both = Upgradable(old, new)
        await both.connect(old)
        await both.client.execute(
            "CREATE TABLE items (id int PRIMARY KEY, note text); CREATE TABLE gone (); DROP TABLE gone; "
            "CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id); "
            "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10); "
            "CREATE PUBLICATION p FOR ALL TABLES"
        )
        yield both
        both.client.terminate()
