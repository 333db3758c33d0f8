"""The process that is killed: a pipeline into files, through a journal if one is given.

What its sink wrote and did not sync is lost with it, as it would be with the machine.

Arguments: DSN, slot, folder, journal (or ``-``), the moment of death (or ``-``), how often it passes by before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial

from aiorepl import BatchPolicy, Pipeline, Source
from aiorepl.source.feedback.status_updates import StatusUpdates
from aiorepl_sinks.jsonl import JsonLinesSink

dsn, slot, folder, journal, moment, count = sys.argv[1:]
passes = iter(range(int(count) + 1, 0, -1))
unsynced: dict[int, bytes] = {}


def die(moment_here: str) -> None:
    """Kill this process if this is the moment."""
    if moment == moment_here and next(passes, 1) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def put(self, file, lines):
    unsynced[file.fileno()] = unsynced.get(file.fileno(), b"") + lines
    self._written += len(lines)
    die("written")


def synced(fsync, handle):
    lines = unsynced.pop(handle, b"")
    if lines:
        half = len(lines) // 2
        os.write(handle, lines[:half])
        die("torn")
        os.write(handle, lines[half:])
    fsync(handle)
    die("synced")


def reported(report, self, **options):
    die("before status")
    report(self, **options)
    die("after status")


JsonLinesSink._put = put
os.fsync = partial(synced, os.fsync)
StatusUpdates.report = lambda self, report=StatusUpdates.report, **options: reported(report, self, **options)


async def main() -> None:
    """Run until killed, or until the end of standard input."""
    pipeline = Pipeline(
        Source(dsn, slot=slot, publication="p"),
        {"files": JsonLinesSink(folder, rotate_bytes=20_000)},
        journal=None if journal == "-" else journal,
        batches=BatchPolicy(max_bytes=20_000, flush_seconds=0.15),
    )
    async with pipeline:
        print("started", flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
