"""Memory that a source uses for transactions that it cannot hand on yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionBufferStatistics:
    """Bytes of transactions that stream in or are prepared, and so cannot be delivered yet."""

    memory: int = 0
    spooled: int = 0
