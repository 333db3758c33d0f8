"""A pipeline as a task in an anyio task group: if one task fails or the group is cancelled, all tasks end.

DATABASE_URL=postgresql://… python task_group.py
"""

from __future__ import annotations

import os
import signal

import anyio

import aiorepl


class Count(aiorepl.Sink):
    """Counts changes by table."""

    def __init__(self) -> None:
        self.tables: dict[str, int] = {}

    async def write(self, batch: aiorepl.Batch) -> None:
        for change in batch.changes:
            if isinstance(change, aiorepl.RowChange):
                self.tables[change.table] = self.tables.get(change.table, 0) + 1


async def report(count: Count) -> None:
    """Print the counts periodically."""
    while True:
        await anyio.sleep(0.2)
        print(count.tables, flush=True)


async def until_signalled(scope: anyio.CancelScope) -> None:
    """Cancel the group on Ctrl-C and SIGTERM."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def main() -> None:
    """Run the pipeline, the reports and the signal handler."""
    count = Count()
    source = aiorepl.Source(os.environ["DATABASE_URL"], slot="counted", publication="shop", create_slot=True)
    pipeline = aiorepl.Pipeline(source, [count])
    async with anyio.create_task_group() as group:
        group.start_soon(pipeline.run)
        group.start_soon(report, count)
        group.start_soon(until_signalled, group.cancel_scope)
    print("ended", flush=True)


if __name__ == "__main__":
    anyio.run(main)
