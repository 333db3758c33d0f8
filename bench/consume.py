"""aiorepl as a consumer process: reads a slot to an LSN, and prints what it has read as JSON.

    python bench/consume.py null|typed|journal|SINK --dsn D --slot S --until LSN [--option name=value]
                            [--to FOLDER] [--sink OPTIONS]

``null`` looks at no change, ``typed`` reads every value of every row, ``journal`` captures into a journal in FOLDER, and
any other is a sink by its name in ``[[sinks]]``, with its options as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import aiorepl


class Null(aiorepl.Sink):
    """Counts changes, and reads no values."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def write(self, batch: aiorepl.Batch) -> None:
        for part in batch.slices:
            self.seen.update([change.kind for change in part.changes])


class Typed(Null):
    """Reads all values, and sums the first column of new and of deleted rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()

    async def write(self, batch: aiorepl.Batch) -> None:
        seen, ids = self.seen, dict.fromkeys(("insert", "update", "delete"), 0)
        for change in batch.changes:
            new, old = change.new, change.old
            first = 0
            if old is not None:
                first, *_ = old.values()
            if new is not None:
                first, *_ = new.values()
            seen[change.kind] += 1
            ids[change.kind] += first
        self.ids.update(ids)


OURS = {"null": Null, "typed": Typed}


def main() -> None:
    """Read to the end LSN."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind")
    for name in ("dsn", "slot", "until"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--to")
    parser.add_argument("--sink", type=json.loads, default={})
    parser.add_argument("--option", action="append", default=[])
    arguments = parser.parse_args()
    options = dict(option.split("=") for option in arguments.option)
    source = aiorepl.Source(
        arguments.dsn,
        slot=arguments.slot,
        publication="bench",
        binary=options.get("binary") == "true",
        streaming=options.get("streaming", "off"),
    )
    sink: Any = None
    if arguments.kind in OURS:
        sink = OURS[arguments.kind]()
    elif arguments.kind != "journal":
        from aiorepl.pipeline.registry import load

        sink = load(arguments.kind)(**arguments.sink)
    pipeline = aiorepl.Pipeline(
        source,
        [] if sink is None else [sink],
        journal=arguments.to if arguments.kind == "journal" else None,
        until=aiorepl.LSN.parse(arguments.until),
    )
    run_async(pipeline.run())
    if isinstance(sink, Null):
        print(json.dumps({**sink.seen, "ids": +sink.ids if isinstance(sink, Typed) else None}))


def run_async(main: Coroutine[Any, Any, None]) -> None:
    """Run with uvloop if it is installed, as the command line does."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main)


if __name__ == "__main__":
    main()
