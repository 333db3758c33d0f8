"""The process under test: a pipeline as a program says. Killed, frozen and cut off by ``rounds``.

What its ``jsonl`` sinks wrote and did not sync is lost with it, as it would be with the machine.

The plan has the program and this life's faults. The process ends in an orderly way at the end of a pipe.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hooks import Arms, install, task_factory

from aiorepl import BatchPolicy, Delivery, Pipeline, RetryPolicy, Selection, Source, TransientError
from aiorepl.pipeline import journaled
from aiorepl.source.feedback import schedule
from aiorepl.testing.faults import FailAfterWrite, FaultySink, Reject, Slow
from aiorepl.testing.verify.tables import SCHEMA
from aiorepl.transactions import in_progress
from aiorepl_sinks.jsonl import JsonLinesSink

_SECRET = "k" * 32


class UnsyncedLines(JsonLinesSink):
    """Keeps lines in memory until they are synced."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unsynced = bytearray()

    def _put(self, file: Any, lines: bytes | bytearray) -> None:
        self._unsynced += lines
        self._written += len(lines)

    def _make_durable(self, file: Any) -> None:
        lines, written = self._unsynced, self._written
        self._written = written - len(lines)
        try:
            super()._put(file, lines)
        finally:
            self._written = written
        super()._make_durable(file)
        self._unsynced = bytearray()


def sink(name: str, options: dict[str, Any], folder: Path) -> Delivery:
    """Make a sink as the program says."""
    inner: Any = UnsyncedLines(folder / name, rotate_bytes=options["rotate_bytes"])
    if "faulty" in options:
        chance = random.Random(options["faulty"] + os.getpid())
        inner = FaultySink(
            inner, write=[_fault(chance) for _ in range(200)], flush=[_fault(chance) for _ in range(200)]
        )
    tables = [f"{SCHEMA}.{table}" for table in options.get("tables", ())]
    mask = [f"{SCHEMA}.{column}" for column in options.get("mask", ())]
    selection = Selection(tables=tables, mask=mask, secret=_SECRET) if tables or mask else None
    return Delivery(
        inner,
        selection=selection,
        transform=every_other if options.get("transform") else None,
        schema_changes=options.get("schema_changes", False),
    )


def every_other(change: Any) -> Any:
    """Drop half of the rows of ``accounts``, and change the others."""
    if change.kind not in ("insert", "read", "update") or change.table != "accounts":
        return change
    if change.new["id"] % 2:
        return None
    return change.with_columns({"note": "changed"})


def _fault(chance: random.Random) -> Any:
    error = TransientError("not now")
    return chance.choices([None, Reject(error), FailAfterWrite(error), Slow(0.1)], [80, 8, 4, 8])[0]


def run(plan: Path, stderr: Path, stop: Connection) -> None:
    """Be the process under test."""
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    schedule._MIN_INTERVAL = 0.02
    told = json.loads(plan.read_text())
    arms = Arms(told["arms"], told["fired"])
    install(arms)
    loop = asyncio.new_event_loop()
    if (factory := task_factory(arms)) is not None:
        loop.set_task_factory(factory)
    code = loop.run_until_complete(main(told, arms, stop))
    sys.stderr.flush()
    os._exit(code)


async def main(plan: dict[str, Any], arms: Arms, stop: Connection) -> int:
    """Run until the pipe or the pipeline ends, and return the exit code."""
    pipeline = make_pipeline(plan)
    asyncio.get_running_loop().add_reader(stop.fileno(), pipeline.stop)
    task = asyncio.create_task(pipeline.run())
    arms.cancel = task.cancel
    await asyncio.wait({task})
    asyncio.get_running_loop().remove_reader(stop.fileno())
    if task.cancelled():
        return 0
    if (error := task.exception()) is not None:
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def make_pipeline(plan: dict[str, Any]) -> Pipeline:
    """Make the pipeline as the program says."""
    program, folder = plan["program"], Path(plan["folder"])
    source = dict(program["source"])
    if source.pop("transaction_buffer_bytes", None):
        # Everything spills, from the first byte.
        source["transaction_buffer_bytes"] = in_progress._MINIMUM = 100_000
        source["spill_dir"] = folder / "spill"
        source["spill_dir"].mkdir(exist_ok=True)
    options = dict(program["pipeline"])
    if "segment_bytes" in options:
        journaled.JournalSink = functools.partial(
            journaled.JournalSink, segment_bytes=options.pop("segment_bytes")
        )
    batches = BatchPolicy(
        **{
            name: options.pop(name)
            for name in ("max_bytes", "flush_bytes", "flush_seconds")
            if name in options
        }
    )
    journal = folder / "journal" if options.pop("journal", False) else None
    again = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
    return Pipeline(
        Source(plan["dsn"], slot=plan["slot"], publication="verify", **source),
        {name: sink(name, its, folder) for name, its in program["sinks"].items()},
        journal=journal,
        batches=batches,
        reconnect=again,
        retry=again,
        **options,
    )
