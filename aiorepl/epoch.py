"""PostgreSQL's epoch, 2000-01-01 00:00 UTC, as Unix time."""

from __future__ import annotations

from typing import Final

EPOCH_SECONDS: Final = 946_684_800
EPOCH_MICROSECONDS: Final = EPOCH_SECONDS * 1_000_000
_LAST: Final = 2**63 - 1


def since_1970(timestamp: int) -> int:
    """Convert microseconds since 2000 to microseconds since 1970, clamped to 64 bits."""
    return min(timestamp + EPOCH_MICROSECONDS, _LAST)
