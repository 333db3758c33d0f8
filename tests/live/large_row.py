"""A process that delivers a row of 32 MiB to three sinks, and says how many times its peak memory holds the row.

python large_row.py DSN SLOT FOLDER [JOURNAL]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asyncpg

from aiorepl import Batch, Pipeline, Source
from aiorepl_sinks.jsonl import JsonLinesSink

SIZE = 32 << 20
SINKS = 3


def memory(field: str) -> int:
    """``VmRSS``, or since the last reset its peak, ``VmHWM``, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


class Told(JsonLinesSink):
    """Tells when a row is written."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.written = asyncio.Semaphore(0)

    async def write(self, batch: Batch) -> None:
        """Write, and release ``written`` for each row."""
        await super().write(batch)
        for _ in batch.changes:
            self.written.release()


def reset() -> None:
    """Begin with a new peak."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def main(dsn: str, slot: str, folder: str, journal: str | None = None) -> None:
    """Deliver a small row, and then the large one."""
    connection = await asyncpg.connect(dsn)
    sinks = {f"s{number}": Told(f"{folder}/{number}") for number in range(SINKS)}
    source = Source(dsn, slot=slot, publication="p", create_slot=True)
    async with Pipeline(source, sinks, journal=journal):

        async def insert(size: int) -> None:
            await connection.execute(
                "INSERT INTO items SELECT count(*), repeat(md5('x'), $1 / 32) FROM items", size
            )
            for sink in sinks.values():
                await sink.written.acquire()

        await insert(32)
        reset()
        before = memory("VmRSS")
        await insert(SIZE)
        print((memory("VmHWM") - before) / SIZE)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
