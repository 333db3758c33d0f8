"""A process that changes its sinks while its pipeline runs, and kills itself by SIGKILL after a step of the change.

python reload_process.py DSN SLOT TARGET FOLDER STEP

:param TARGET: the DSN of the database of the postgres sink.
:param STEP: a method of ``JournaledFanOut``; ``never``: it only delivers to the new sinks, until the end of WAL.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from typing import Any

from aiorepl import BatchPolicy, Delivery, Pipeline, Source
from aiorepl.pipeline.journaled import JournaledFanOut
from aiorepl_sinks.jsonl import JsonLinesSink
from aiorepl_sinks.postgres import PostgresSink

BATCHES = BatchPolicy(flush_seconds=0.01)


def sinks(target: str, folder: str, *names: str, **options: Any) -> dict[str, Any]:
    """The sinks with these names."""
    sink = PostgresSink(target, mode="strict")
    made = {"target": lambda: Delivery(sink, schema_changes=False, **options)}
    return {name: made.get(name, lambda name=name: JsonLinesSink(f"{folder}/{name}"))() for name in names}


async def deliver(dsn: str, slot: str, target: str, folder: str, step: str) -> None:
    """Deliver to the new sinks, or change the sinks while the pipeline runs."""
    source = Source(dsn, slot=slot, publication="p", create_slot=True)
    options = {"journal": f"{folder}/journal", "snapshot": True, "batches": BATCHES}
    if step == "never":
        new = sinks(target, folder, "stays", "target", "added")
        await Pipeline(source, new, until="now", **options).run()
        return
    former = sinks(target, folder, "stays", "target", "removed")
    pipeline = Pipeline(source, former, **options)
    async with pipeline:
        while not all(pipeline.statistics().sinks[name].changes for name in former):
            await asyncio.sleep(0.01)
        _kill_after(step)
        new = sinks(target, folder, "target", "added", batches=BATCHES)
        await pipeline.reload({"stays": former["stays"], **new})
        await asyncio.sleep(60)


def _kill_after(step: str) -> None:
    method = getattr(JournaledFanOut, step)

    @functools.wraps(method)
    def killing(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        if not asyncio.iscoroutine(result):
            os.kill(os.getpid(), signal.SIGKILL)

        async def work() -> Any:
            await result
            os.kill(os.getpid(), signal.SIGKILL)

        return work()

    setattr(JournaledFanOut, step, killing)


if __name__ == "__main__":
    asyncio.run(deliver(*sys.argv[1:]))
