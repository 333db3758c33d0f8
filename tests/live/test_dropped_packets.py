"""A network drops all packets of a connection, in each state of the pipeline: the stream continues, and the server keeps no lock."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from hashlib import md5

import pytest

from aiorepl import ConnectionFailed, ConnectionLost, Pipeline, RetryPolicy
from aiorepl.testing.faults import MemorySink
from aiorepl.wire import opening, sql
from aiorepl.wire.session_settings import GIVE_UP_CLIENT
from aiorepl.wire.slot_position import poll_lock
from tests.live.dropping_proxy import DroppingProxy
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops packets on request")

QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
STATES = {
    "login": ("up", b"\0user\0"),
    "password": ("down", b"SCRAM-SHA-256"),
    "identification": ("up", b"IDENTIFY_SYSTEM"),
    "start of the stream": ("up", b"START_REPLICATION"),
    "the stream": ("down", b"in the stream"),
    # A Standby Status Update of 34 bytes in CopyData.
    "status updates": ("up", b"d\0\0\0&r"),
}
OF_SNAPSHOTS = {
    "creation of the slot": ("up", b"CREATE_REPLICATION_SLOT"),
    "the slot is created": ("down", b"consistent_point"),
    "export of the snapshot": ("up", b"pg_export_snapshot"),
    "COPY": ("up", b"COPY (SELECT"),
    "rows of the snapshot": ("down", b"before"),
}
# Version 13 cannot read tables beside the stream, so an initial snapshot does not survive a failed start.
CASES = [*((13, state) for state in STATES), *((18, state) for state in STATES | OF_SNAPSHOTS)]
# The server's processes with an open transaction, or with a lock of the table, other than this session.
HOLDERS = """
SELECT a.pid, a.query FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
   AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'items'::regclass AND l.granted)
"""
ADVISORY = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Let the kernel close the connection of a dead peer within seconds, and let a login time out as fast."""
    quick = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 2000}
    monkeypatch.setattr(opening, "_KEEPALIVE", quick)
    monkeypatch.setattr(opening, "_ONE_HOST_SECONDS", 2.0)


async def supervise(make, pipelines):
    """Run new pipelines until one does not fail; add each to the list."""
    while True:
        pipelines.append(make())
        with suppress(ConnectionFailed, ConnectionLost):
            return await pipelines[-1].run()


def rows(changes):
    """Return the rows of the table after these changes, by key."""
    found = {}
    for change in changes:
        found[change.key["id"]] = change.new["note"]
    return found


@pytest.mark.parametrize(("server", "state"), CASES, indirect=["server"])
async def test_dropped_packets_in_each_state(published, server, state, tmp_path):
    """One or two connections in a row lose their packets. The pipeline is started again if its start fails, and delivers every row."""
    await published.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''1s''', current_database()); END $$",
        "INSERT INTO items SELECT i, 'before' FROM generate_series(1, 1000) i",
    )
    snapshot = server.version > 13
    if not snapshot:
        await published.create_slot()
    sink = MemorySink()
    # A slot is created once.
    times = 1 if state == "the slot is created" else 2
    async with DroppingProxy(published.dsn, *(STATES | OF_SNAPSHOTS)[state], times) as proxy:
        source = published.source(proxy.dsn)
        pipelines = []

        def make():
            return Pipeline(
                source, [sink], reconnect=QUICK, retry=QUICK, snapshot=snapshot, state_dir=tmp_path
            )

        running = asyncio.create_task(supervise(make, pipelines))
        number = 1000
        async with asyncio.timeout(240):
            while not proxy.lost.is_set():
                number += 1
                await published.execute(f"INSERT INTO items VALUES ({number}, 'in the stream')")
                await asyncio.wait({running}, timeout=0.1)
                assert not running.done()
        await published.execute("INSERT INTO items VALUES (-1, 'last')")
        await until(lambda: rows(sink.changes), lambda found: -1 in found)
        wanted = dict(await published.connection.fetch("SELECT id, note FROM items"))
        if not snapshot:
            wanted = {key: note for key, note in wanted.items() if note != "before"}
        assert wanted == await until(lambda: rows(sink.changes), lambda found: len(found) == len(wanted))
        await published.confirmed_past(await published.wal() - 1)
        pipelines[-1].stop()
        await running


@pytest.mark.parametrize(
    ("server", "beside"),
    [(13, False), (18, False), (18, True)],
    indirect=["server"],
    ids=["13", "18", "beside"],
)
async def test_a_copy_leaves_no_lock(published, tmp_path, beside):
    """The server process that sends rows to a lost connection ends, in an initial snapshot and beside the stream.

    Otherwise it would keep its lock of the table for about 15 minutes.
    """
    # More bytes than all buffers between the server and the client hold.
    await published.execute(
        "INSERT INTO items SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 5000) i"
    )
    sink = MemorySink()
    async with DroppingProxy(published.dsn, "down", md5(b"2000").hexdigest().encode()) as proxy:
        pipeline = Pipeline(
            published.source(proxy.dsn),
            [sink],
            reconnect=QUICK,
            retry=QUICK,
            snapshot=not beside,
            state_dir=tmp_path,
        )
        async with pipeline:
            if beside:
                await pipeline.snapshots.add("public.items")
            await proxy.lost.wait()
            await until(lambda: rows(sink.changes), lambda found: len(found) == 5000)
            await until(lambda: published.connection.fetch(HOLDERS), lambda found: not found, seconds=60)


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_a_poller_leaves_no_advisory_lock(published, monkeypatch):
    """A connection is lost while the server's answer to the advisory lock is under way. The next connection gets the lock soon."""
    monkeypatch.setattr(sql, "GIVE_UP_CLIENT", GIVE_UP_CLIENT.replace("60000", "2000"))
    await published.create_slot()
    sink = MemorySink()
    key = poll_lock(published.slot).to_bytes(8, signed=True)
    async with DroppingProxy(published.dsn, "up", key, delivers=True) as proxy:
        pipelines = []

        def make():
            source = published.source(proxy.dsn, interface="sql")
            return Pipeline(source, [sink], reconnect=QUICK, retry=QUICK, wait_for_slot=True)

        running = asyncio.create_task(supervise(make, pipelines))
        await proxy.lost.wait()
        held = await until(lambda: published.connection.fetch(ADVISORY), bool)
        await published.execute("INSERT INTO items VALUES (1, 'in the stream')")
        await until(lambda: rows(sink.changes), lambda found: 1 in found, seconds=50)
        assert held != await published.connection.fetch(ADVISORY)
        pipelines[-1].stop()
        await running
