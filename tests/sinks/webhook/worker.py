"""The process that is killed: a pipeline to a receiver, one row a request or a few.

Arguments: DSN, slot, URL, body.
"""

from __future__ import annotations

import asyncio
import sys

from aiorepl import Pipeline, Source
from aiorepl_sinks.webhook import WebhookSink

dsn, slot, url, body = sys.argv[1:]


async def main() -> None:
    """Run until killed, or until standard input ends."""
    hook = WebhookSink(url, body=body, request_events=4)
    async with Pipeline(Source(dsn, slot=slot, publication="p", create_slot=True), {"hook": hook}):
        print("started", flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
