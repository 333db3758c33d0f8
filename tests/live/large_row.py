"""Delivers a row of 100 MB to several sinks at once, and prints the peak of its memory as a multiple of the row's size.

python large_row.py DSN SLOT FOLDER COLUMN SINK,SINK… [JOURNAL]

COLUMN is SQL for a value of $1 bytes. A SINK is ``file``, which writes a file, or ``whole``, which has each event in memory while it
writes the event, like sinks with client libraries.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asyncpg

from aiorepl import Batch, Pipeline, Sink, Source
from aiorepl.formats.events import Events
from aiorepl_sinks.jsonl import JsonLinesSink

SIZE = 100_000_000


def memory(field: str) -> int:
    """``VmRSS``, or since the last reset its peak, ``VmHWM``, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


class Files(JsonLinesSink):
    """Releases ``written`` for each row that it has written."""

    def __init__(self, path: str, _: asyncio.Barrier) -> None:
        super().__init__(path)
        self.written = asyncio.Semaphore(0)

    async def write(self, batch: Batch) -> None:
        """Write, and release ``written`` for each row."""
        await super().write(batch)
        for _ in batch.changes:
            self.written.release()


class Whole(Sink):
    """Keeps each event until all sinks of this class have theirs."""

    def __init__(self, _: str, together: asyncio.Barrier) -> None:
        self.written = asyncio.Semaphore(0)
        self._events = Events()
        self._together = together

    async def write(self, batch: Batch) -> None:
        """Encode the events, and release ``written`` for each row."""
        events = [
            payload
            for change in batch.changes
            for _, copies in self._events.of(change)
            for _, payload, _ in copies
        ]
        for _ in events:
            await self._together.wait()
            self.written.release()


KINDS: dict[str, type[Files | Whole]] = {"file": Files, "whole": Whole}


def reset() -> None:
    """Begin with a new peak."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def main(dsn: str, slot: str, folder: str, column: str, kinds: str, journal: str | None = None) -> None:
    """Deliver a small row, and then the large one."""
    connection = await asyncpg.connect(dsn)
    together = asyncio.Barrier(max(1, kinds.split(",").count("whole")))
    sinks = {
        f"s{number}": KINDS[kind](f"{folder}/{number}", together)
        for number, kind in enumerate(kinds.split(","))
    }
    source = Source(dsn, slot=slot, publication="p", create_slot=True)
    async with Pipeline(source, sinks, journal=journal):

        async def insert(size: int) -> None:
            await connection.execute(f"INSERT INTO items SELECT count(*), {column} FROM items", size)
            for sink in sinks.values():
                await sink.written.acquire()

        await insert(64)
        reset()
        before = memory("VmRSS")
        await insert(SIZE)
        print((memory("VmHWM") - before) / SIZE)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
