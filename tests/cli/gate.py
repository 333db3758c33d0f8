"""A sink that accepts no more batches until its gate is open."""

from __future__ import annotations

import asyncio

from aiorepl import BatchPolicy, Delivery
from aiorepl.testing import MemorySink


class Gate(MemorySink):
    """A sink that accepts ``allowed`` batches, and further ones once the gate is open."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.allowed = allowed

    async def write(self, batch):
        self.allowed -= 1
        if self.allowed < 0:
            await self.gate.wait()
        await super().write(batch)

    @property
    def delivery(self) -> Delivery:
        """A delivery that writes and flushes each row by itself."""
        return Delivery(self, batches=BatchPolicy(max_rows=1, linger=0.0, flush_seconds=0.0))
