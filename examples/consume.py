"""The smallest consumer: print every committed change, and acknowledge each transaction once it is printed.

export DATABASE_URL=postgresql://user@host/database
aiorepl check --dsn "$DATABASE_URL" --slot consume --publication shop        # prints the statement that creates the publication
python consume.py
"""

from __future__ import annotations

import asyncio
import os
import signal

import aiorepl


async def consume() -> None:
    """Print changes until cancelled. Transactions that were not acknowledged are delivered again at the next start."""
    dsn = os.environ["DATABASE_URL"]
    async with aiorepl.connect(dsn, slot="consume", publication="shop", create_slot=True) as stream:
        async for transaction in stream:
            async for change in transaction:
                match change:
                    case aiorepl.Insert() | aiorepl.Update():
                        # A large value that did not change is not sent: it is aiorepl.UNCHANGED, never None.
                        print(change.kind, change.table, dict(change.new), flush=True)
                    case aiorepl.Delete():
                        print(change.kind, change.table, dict(change.key or {}), flush=True)
                    case _:
                        print(change.kind, flush=True)
            await stream.ack(transaction)


async def main() -> None:
    """Stop on Ctrl-C and SIGTERM: send the last acknowledgement, and release the slot."""
    task = asyncio.create_task(consume())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass


if __name__ == "__main__":
    asyncio.run(main())
