"""Reads small blocks together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiorepl.transactions.slices import Slice

# Blocks are read together until their slices have this size.
_TOGETHER_BYTES: Final = 1024 * 1024


class Together:
    """Reads small blocks together, because a call in a thread costs more than reading a block of one row.

    :param blocks: yields the slices of one block at a time.
    """

    def __init__(self, blocks: Iterator[list[Slice]]) -> None:
        self._blocks = blocks
        self._error: Exception | None = None

    def next(self) -> list[Slice]:
        """Return the slices of the next blocks; an empty list at the end.

        :raises JournalError: the next block is damaged or cannot be read; the slices of the blocks before it were returned.
        """
        found: list[Slice] = []
        size = 0
        if self._error is not None:
            raise self._error
        try:
            while size < _TOGETHER_BYTES and (slices := next(self._blocks, None)) is not None:
                found += slices
                size += sum(part.size for part in slices)
                slices.clear()  # the generator keeps the list until its next step
        except Exception as error:
            if not found:
                raise
            self._error = error
        return found
