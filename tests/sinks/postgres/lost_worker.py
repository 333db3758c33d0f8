"""The process that is killed while it reads tables again: a pipeline that creates and alters the target's tables.

Arguments: source, slot, target, folder, with a journal in it (``journal``) or only the plan (``direct``), and the number of chunks that
the sink makes durable before the process dies; -1: it lives on. It prints ``complete`` once all tables are read.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from aiorepl import (
    BatchPolicy,
    Delivery,
    Pipeline,
    RetryPolicy,
    SlotError,
    SlotLost,
    SnapshotOptions,
    Source,
)
from aiorepl.cancellation import cancel_and_wait
from aiorepl_sinks.postgres import PostgresSink

source, slot, target, folder, way, count = sys.argv[1:]
left = int(count)


class Mortal(PostgresSink):
    """Dies before or after it makes a chunk durable."""

    async def write(self, batch: Any) -> None:
        global left  # noqa: PLW0603
        headers = [part.transaction for part in batch.slices if part.end_lsn is not None]
        chunks = sum(header is not None and header.snapshot is not None for header in headers)
        dies = left >= 0 and chunks > left
        left -= chunks if left >= 0 else 0
        if dies and int(count) % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        await super().write(batch)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


async def _completed(pipeline: Pipeline) -> None:
    """Say when all tables are complete, and wait for the end of standard input."""
    phase, snapshots = pipeline._fan_out._snapshot, pipeline.snapshots
    while not (snapshots._begun.is_set() and phase.store.ledger.complete(pipeline.statistics().flushed)):
        await asyncio.sleep(0.01)
    print("complete", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def run(*, resnapshot: bool = False) -> None:
    """Run until killed, or until the end of standard input."""
    options = SnapshotOptions(chunk_bytes=8192, lock_timeout=60.0)
    how: dict[str, Any] = {"journal": folder, "snapshot": options}
    if way == "direct":
        how = {"snapshot": SnapshotOptions(chunk_bytes=8192, lock_timeout=60.0, state=folder)}
    pipeline = Pipeline(
        Source(source, slot=slot, publication="p", create_slot=True),
        {"mirror": Delivery(Mortal(target, ddl="apply"), retry=RetryPolicy(wait_initial=0.02, wait_max=0.2))},
        batches=BatchPolicy(max_bytes=4000, flush_bytes=1, flush_seconds=0.02),
        on_slot_lost="resnapshot",
        max_resnapshots_per_day=100,
        resnapshot=resnapshot,
        **how,
    )
    try:
        async with pipeline:
            # The sink may stop at any time, also after the tables are complete.
            tasks = [asyncio.create_task(work) for work in (_completed(pipeline), pipeline.wait())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(*tasks)
    except SlotLost:
        if not pipeline.recovers:
            raise
        await run()
    except SlotError as error:
        # Waits for locks can end, and rows were read under another description. The message says to start again.
        if "start again, with resnapshot" not in str(error):
            raise
        await run(resnapshot=True)


asyncio.run(run())
