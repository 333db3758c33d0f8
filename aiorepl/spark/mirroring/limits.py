"""The limits of a batch's changes in memory, in bytes."""

from __future__ import annotations

from typing import Final

_MIB: Final = 1024 * 1024

DRIVER_BYTES: Final = 64 * _MIB
"""If a batch has more bytes of changes of a table, executors reduce these changes."""
PART_BYTES: Final = 32 * _MIB
"""The size of a part, and of a shuffled partition. A part with many changes of one key may be larger."""
