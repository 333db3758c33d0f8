"""A process that snapshots a table in several chunks, and in which some writes of the chunk ledger fail.

python ledger_process.py DSN SLOT FOLDER JOURNAL WRITE TIMES STEPS

:param JOURNAL: ``direct``; or ``journal``, or ``beside``, with a slot that exists.
:param WRITE: the number of the first write of the ledger's file that fails. With 0, no write fails, and the process ends once all
    tables are complete and the sink has all transactions that were committed until then.
:param TIMES: the number of writes that fail.
:param STEPS: the number of steps between the first failure and the SIGKILL. A step is a write of a file, or a flush.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

from aiorepl import BatchPolicy, Pipeline, RetryPolicy, SnapshotOptions, Source
from aiorepl.storage.local import LocalStore
from aiorepl_sinks.jsonl import JsonLinesSink


def break_ledger(write: int, times: int, steps: int) -> None:
    """Make writes of the ledger fail, and kill the process after some steps."""
    replace, reached, flush = LocalStore.replace, LocalStore.reached, JsonLinesSink.flush
    writes, left = count(1), iter(range(steps, -1, -1))
    failed: list[int] = []

    def step() -> None:
        if failed and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def replaced(store: LocalStore, name: str, data: bytes, version: str | None) -> str:
        if not name.endswith(".snapshot"):
            return replace(store, name, data, version)
        step()
        if next(writes) >= write and len(failed) < times:
            failed.append(1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(store, name, data, version)

    def passed(store: LocalStore, at: str, name: str) -> None:
        step()
        reached(store, at, name)

    async def flushed(sink: JsonLinesSink) -> None:
        step()
        await flush(sink)
        step()

    LocalStore.replace = replaced  # type: ignore[method-assign]
    LocalStore.reached = passed  # type: ignore[method-assign]
    JsonLinesSink.flush = flushed  # type: ignore[method-assign]


async def run(dsn: str, slot: str, folder: Path, journal: bool) -> None:
    """Read the tables."""
    options: dict[str, Any] = {"journal": folder / "journal"} if journal else {"state_dir": folder / "state"}

    def pipeline(**more: Any) -> Pipeline:
        return Pipeline(
            Source(dsn, slot=slot, publication="p", create_slot=True),
            {"sink": JsonLinesSink(folder / "sink")},
            snapshot=SnapshotOptions(chunk_bytes=8192),
            batches=BatchPolicy(max_rows=20, flush_seconds=0.01),
            retry=RetryPolicy(wait_initial=0.01, wait_max=0.05),
            **options,
            **more,
        )

    async with pipeline() as running:
        await running.snapshots.completed()
    await pipeline(until="now").run()


def main(dsn: str, slot: str, folder: str, journal: str, write: str, times: str, steps: str) -> None:
    """Read the tables, or be killed."""
    if int(write):
        break_ledger(int(write), int(times), int(steps))
    asyncio.run(run(dsn, slot, Path(folder), journal != "direct"))


if __name__ == "__main__":
    main(*sys.argv[1:])
