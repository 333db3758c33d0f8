"""Hold one slot and write a journal. The workers of ``fastapi_cache.py`` follow the journal.

    export DATABASE_URL=postgresql://localhost/shop JOURNAL=/var/lib/aiorepl/products
    python cache_journal.py

The slot is permanent, so a restart leaves no gap in the journal. When you remove the service, drop the slot: ``aiorepl slots drop cache``.
"""

from __future__ import annotations

import asyncio
import os
import signal

import aiorepl


async def main() -> None:
    """Run until SIGTERM or Ctrl-C."""
    source = aiorepl.Source(
        os.environ["DATABASE_URL"], slot="cache", publication="products", create_slot=True, visible=True
    )
    pipeline = aiorepl.Pipeline(
        source,
        # Retention deletes segments that all sinks have read; without a sink it deletes none. This sink only reads.
        {"passed": aiorepl.Invalidations()},
        journal=os.environ["JOURNAL"],
        retention="1h",
        # Workers see a change once the journal is flushed.
        batches=aiorepl.BatchPolicy(flush_seconds=0.1),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, pipeline.stop)
    await pipeline.run()


if __name__ == "__main__":
    asyncio.run(main())
