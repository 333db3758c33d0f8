"""The process that is killed: a pipeline into a target. Arguments: source, slot, target, transactions, and perhaps ddl."""

from __future__ import annotations

import asyncio
import sys

from aiorepl import BatchPolicy, Pipeline, Source
from aiorepl_sinks.postgres import PostgresSink

source, slot, target, transactions, *ddl = sys.argv[1:]
options = {"ddl": ddl[0]} if ddl else {}


async def main() -> None:
    """Run until killed."""
    pipeline = Pipeline(
        Source(source, slot=slot, publication="p"),
        {"mirror": PostgresSink(target, transactions=transactions, **options)},
        batches=BatchPolicy(max_bytes=20_000),
    )
    async with pipeline:
        print("started", flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
