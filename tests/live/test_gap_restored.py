"""A server whose data were restored from an older copy has other rows at the same LSNs and xids, on the same timeline.

After the loss of its slot nothing proves what the consumers have, so all tables are read as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl.testing import EmbeddedServer
from tests.live.backup import Backup
from tests.live.conftest import Published
from tests.live.lossy import SETTINGS, Log, Lossy

pytestmark = pytest.mark.by_day


@pytest.fixture
def primary(servers: Any) -> Iterator[EmbeddedServer]:
    """A server that invalidates slots early."""
    with servers.new(18, **SETTINGS) as server:
        yield server


@pytest.fixture
async def lossy(
    publish: Callable[[str], Awaitable[Published]], primary: EmbeddedServer, way: dict[str, Any]
) -> Any:
    """Two tables, whose updates and deletes are not published, after two runs of a pipeline."""
    found = Lossy(await publish(primary.dsn), way)
    found.sinks["log"] = Log(keeps_position=True)
    await found.run_twice()
    return found


async def reconnect(lossy: Lossy) -> None:
    """Connect again after a restart of the server."""
    await lossy.published.connection.close()
    lossy.published.connection = await asyncpg.connect(lossy.published.dsn)


@pytest.mark.parametrize("slot", ["copied", "made anew"])
async def test_a_backup_that_was_restored(
    lossy: Lossy, primary: EmbeddedServer, tmp_path: Path, slot: str
) -> None:
    """No row of the restored server is missing, and the rows that it has lost are gone."""
    backup = Backup(primary, tmp_path)
    await backup.take()
    await reconnect(lossy)
    await lossy.execute(*(f"INSERT INTO events VALUES ({n}, repeat('y', 1000))" for n in range(200, 220)))
    await lossy.run()
    await backup.restore()
    await reconnect(lossy)
    await lossy.execute("INSERT INTO items VALUES (51)", "INSERT INTO events VALUES (300)")
    if slot == "made anew":
        await lossy.execute(
            f"SELECT pg_drop_replication_slot('{lossy.published.slot}')",
            f"SELECT pg_create_logical_replication_slot('{lossy.published.slot}', 'pgoutput')",
        )
    await lossy.execute("INSERT INTO items VALUES (52)")
    await lossy.lose()
    await lossy.run()
    assert lossy.copied == await lossy.both()


async def test_a_server_that_was_restarted(lossy: Lossy, primary: EmbeddedServer) -> None:
    """The rows of the gap are enough if the consumers are exactly where the slot was."""
    await asyncio.to_thread(primary.restart)
    await reconnect(lossy)
    await lossy.execute("INSERT INTO items VALUES (51)")
    await lossy.lose()
    found = await lossy.run()
    assert ("read", "items", 51) in found
    assert not [key for kind, _, key in found if kind == "truncate" or key < 50]
