"""A process that reads a slot with ``on_slot_lost = "resnapshot"``, until the end of WAL or until it is killed.

python gap_process.py DSN SLOT FOLDER JOURNAL STEPS

:param JOURNAL: ``direct`` or ``journal``.
:param STEPS: the number of steps before the SIGKILL. A step is a point of a file's write, or the begin or end of a flush. If the number is
    negative, the process is not killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from aiorepl import Pipeline, SlotLost, SnapshotOptions, Source
from aiorepl.storage.local import LocalStore
from aiorepl_sinks.jsonl import JsonLinesSink


def kill_after(steps: int) -> None:
    """Let this process kill itself after a number of steps."""
    left = iter(range(steps, -1, -1))
    reached, flush = LocalStore.reached, JsonLinesSink.flush

    def step() -> None:
        if next(left, None) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def passed(store: LocalStore, at: str, name: str) -> None:
        step()
        reached(store, at, name)

    async def flushed(sink: JsonLinesSink) -> None:
        step()
        await flush(sink)
        step()

    LocalStore.reached = passed  # type: ignore[method-assign]
    JsonLinesSink.flush = flushed  # type: ignore[method-assign]


async def run(dsn: str, slot: str, folder: Path, journal: bool) -> None:
    """Run pipelines until one ends without the loss of its slot, as a service manager does."""
    options: dict[str, Any] = {"journal": folder / "journal"} if journal else {"state_dir": folder / "state"}
    for _ in range(3):
        pipeline = Pipeline(
            Source(dsn, slot=slot, publication="p", create_slot=True),
            {"sink": JsonLinesSink(folder / "sink")},
            snapshot=SnapshotOptions(chunk_bytes=8192),
            on_slot_lost="resnapshot",
            max_resnapshots_per_day=1000,
            until="now",
            **options,
        )
        try:
            await pipeline.run()
        except SlotLost:
            if not pipeline.recovers:
                raise
        else:
            return
    raise AssertionError("the slot is lost at each start")


def main(dsn: str, slot: str, folder: str, journal: str, steps: str) -> None:
    """Run to the end of WAL, or to the kill."""
    if int(steps) >= 0:
        kill_after(int(steps))
    asyncio.run(run(dsn, slot, Path(folder), journal == "journal"))


if __name__ == "__main__":
    main(*sys.argv[1:])
