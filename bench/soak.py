"""A soak: mixed load through a journal into two sinks for as long as told, and the resources of the process over time.

    .venv/bin/python bench/soak.py --minutes 120

The load is small and large transactions, aborted savepoints, prepared transactions, values that are TOASTed and do not change,
truncates, DDL, and a walsender that is terminated every half minute. Resident memory, descriptors, tasks, threads and the
files of journal and sink are sampled; each must be flat: its median in the last third of the time is at most a fifth, and a
little, above that in the first third after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import asyncpg

from aiorepl import BatchPolicy, Pipeline, RetryPolicy, Sink, Source
from aiorepl.testing.server import EmbeddedServer

SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "max_prepared_transactions": "20",
    "max_wal_size": "256MB",
    "wal_sender_timeout": "10s",
}
# What each resource may gain beyond a fifth: MiB of memory, descriptors and so on. Retention deletes segments once a minute or so,
# and at full load a minute makes a hundred of them.
SLACK = {"rss_mib": 24, "descriptors": 8, "tasks": 8, "threads": 6, "files": 200}


class Counting(Sink):
    """Counts changes and forgets them."""

    def __init__(self) -> None:
        self.changes = 0

    async def write(self, batch: Any) -> None:
        """Count."""
        self.changes += len(batch.changes)


class Load:
    """The writer: one statement after the other, as fast as the server takes them."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._chance = random.Random(seed)
        self.transactions = 0

    async def run(self) -> None:
        """Write until cancelled."""
        connection = await asyncpg.connect(self._dsn)
        try:
            while True:
                await self._one(connection)
                self.transactions += 1
        finally:
            connection.terminate()

    async def _one(self, connection: asyncpg.Connection) -> None:
        chance, key = self._chance, self._chance.randrange(500)
        roll = chance.random()
        if roll < 0.6:
            await connection.execute(f"UPDATE t SET n = n + 1 WHERE id = {key}")
        elif roll < 0.8:
            await connection.execute(f"DELETE FROM t WHERE id = {key}")
            await connection.execute(f"INSERT INTO t VALUES ({key}, 0, repeat(md5(random()::text), 200))")
        elif roll < 0.9:
            async with connection.transaction():
                for _ in range(20):
                    await connection.execute(
                        f"SAVEPOINT s; UPDATE t SET n = n + 1 WHERE id < {chance.randrange(50)}"
                    )
                    await connection.execute(chance.choice(["ROLLBACK TO s", "RELEASE s"]))
        elif roll < 0.95:
            outcome = chance.choice(["COMMIT", "ROLLBACK"])
            await connection.execute("BEGIN; UPDATE t SET n = n + 1 WHERE id < 20; PREPARE TRANSACTION 'gid'")
            await connection.execute(f"{outcome} PREPARED 'gid'")
        elif roll < 0.985:
            rows = chance.choice([1_000, 20_000])
            await connection.execute(
                f"INSERT INTO large SELECT i, md5(i::text), repeat('x', 200) FROM generate_series(1, {rows}) i; TRUNCATE large"
            )
        elif roll < 0.995:
            await connection.execute(
                "ALTER TABLE large ADD COLUMN more int; ALTER TABLE large DROP COLUMN more"
            )
        else:
            await connection.execute("SELECT pg_logical_emit_message(true, 'soak', repeat('m', 10000))")


def sample(folder: Path) -> dict[str, float]:
    """The resources of this process, and the files of the pipeline."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": sum(len(names) for _, _, names in os.walk(folder)),
    }


def grown(samples: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """The resources that are not flat: their medians in the first and in the last third."""
    third = len(samples) // 3
    found = {}
    for name, slack in SLACK.items():
        first, last = (
            statistics.median(s[name] for s in part) for part in (samples[:third], samples[-third:])
        )
        if last > first * 1.2 + slack:
            found[name] = (first, last)
    return found


async def soak(minutes: float, seed: int) -> int:
    """Run the load and the pipeline; print a line a minute; return how many resources have grown."""
    end = time.monotonic() + 60 * minutes
    with EmbeddedServer(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        admin = await asyncpg.connect(server.dsn)
        await admin.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int, note text); CREATE TABLE large (id int, a text, b text);"
            "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(0, 499) i;"
            "CREATE PUBLICATION p FOR ALL TABLES"
        )
        source = Source(
            server.dsn,
            slot="soak",
            publication="p",
            create_slot=True,
            streaming="on",
            two_phase=True,
            messages=True,
            transaction_buffer_bytes=4 << 20,
            spill_dir=folder,
        )
        quick, slow = Counting(), Counting()
        load, samples = Load(server.dsn, seed), []
        pipeline = Pipeline(
            source,
            {"quick": quick, "slow": slow},
            journal=str(folder / "journal"),
            retention="64MiB",
            batches=BatchPolicy(flush_seconds=0.5),
            reconnect=RetryPolicy(wait_initial=0.1),
        )
        started = time.monotonic()
        async with pipeline:
            writing, reading = asyncio.create_task(load.run()), asyncio.create_task(pipeline.wait())
            warm, told, cut = started + min(120.0, 15 * minutes), started, started
            while (now := time.monotonic()) < end:
                await asyncio.sleep(2)
                for task in (writing, reading):
                    if task.done():
                        task.result()
                if now > cut + 30:
                    cut = now
                    await admin.execute(
                        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
                    )
                if now > warm:
                    samples.append(sample(folder))
                if now > told + 60:
                    told = now
                    state = {name: round(value) for name, value in sample(folder).items()}
                    print(
                        f"{(now - started) / 60:.0f} min: {load.transactions} writes, {quick.changes} changes, {state}",
                        flush=True,
                    )
            writing.cancel()
            reading.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)
        await admin.close()
    found = grown(samples)
    for name in SLACK:
        values = [each[name] for each in samples]
        print(f"{name}: {min(values):.0f} to {max(values):.0f}, median {statistics.median(values):.0f}")
    print(
        f"{load.transactions} writes, {quick.changes} and {slow.changes} changes; grown: {found or 'nothing'}",
        flush=True,
    )
    return len(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    sys.exit(1 if asyncio.run(soak(chosen.minutes, chosen.seed)) else 0)


if __name__ == "__main__":
    main()
