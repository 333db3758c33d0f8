"""The process that is killed in the middle of a snapshot.

Arguments: source, slot, target, folder, with a journal in it (``journal``) or only the plan (``direct``), before or after which
chunk becomes durable it dies: ``before``, ``after`` or ``-``, and how many of them pass before that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from aiorepl import BatchPolicy, Pipeline, SnapshotOptions, Source
from aiorepl.journal import writer as writer_module
from aiorepl.journal.writer import JournalWriter
from aiorepl_sinks.postgres import PostgresSink

source, slot, target, folder, way, moment, count = sys.argv[1:]
passes = int(count)


def die(here: str) -> None:
    """Kill this process if this is the moment."""
    global passes  # noqa: PLW0603
    if here == moment:
        passes -= 1
        if passes < 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Mortal(PostgresSink):
    """Dies before or after it makes a chunk durable."""

    chunks = 0

    async def write(self, batch: Any) -> None:
        headers = [part.transaction for part in batch.slices if part.end_lsn is not None]
        self.chunks += sum(header is not None and header.snapshot is not None for header in headers)
        await super().write(batch)

    async def flush(self) -> None:
        chunks, self.chunks = self.chunks, 0
        if chunks:
            die("before")
        await super().flush()
        if chunks:
            die("after")


def seal(writer: Any, original: Any = JournalWriter._seal) -> None:
    """Die before or after a chunk is in the journal."""
    is_chunk = writer._builder is not None and bool(writer._builder.chunks)
    if is_chunk:
        die("before")
    original(writer)
    if is_chunk:
        die("after")


async def main() -> None:
    """Run until killed, or until the end of standard input; say when the snapshot is complete."""
    options = {"chunk_bytes": 8192, "lock_timeout": 60.0}
    if way == "journal":
        JournalWriter._seal = seal
        # A segment for each chunk.
        writer_module._SMALL_CHUNKS = 1
        how: dict[str, Any] = {"journal": folder, "snapshot": SnapshotOptions(**options)}
    else:
        how = {"snapshot": SnapshotOptions(state=folder, **options)}
    pipeline = Pipeline(
        Source(source, slot=slot, publication="p", create_slot=True),
        {"mirror": PostgresSink(target) if way == "journal" else Mortal(target)},
        batches=BatchPolicy(flush_seconds=0.02)
        if way == "journal"
        else BatchPolicy(max_bytes=4000, flush_bytes=1),
        **how,
    )
    async with pipeline:
        phase, snapshots = pipeline._fan_out._snapshot, pipeline.snapshots
        while not (snapshots._begun.is_set() and phase.store.ledger.complete(pipeline.statistics().flushed)):
            await asyncio.sleep(0.01)
        print("complete", flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
