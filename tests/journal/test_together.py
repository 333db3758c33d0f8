"""A reader reads small blocks together, and large ones by themselves."""

from __future__ import annotations

import pytest

from aiorepl.errors import JournalError
from aiorepl.journal.together import _TOGETHER_BYTES, Together
from aiorepl.lsn import LSN
from aiorepl.transactions.slices import Slice


def block(end: int, size: int) -> list[Slice]:
    """Return the slices of a block."""
    return [Slice(None, (), True, LSN(end), size)]


def ends(slices: list[Slice]) -> list[int]:
    """Return the end of each slice."""
    return [int(part.end_lsn or 0) for part in slices]


def test_small_blocks():
    """Blocks are joined until they reach the limit. At the end, the list is empty."""
    half = _TOGETHER_BYTES // 2
    together = Together(iter([block(1, 10), block(2, half), block(3, half), block(4, 2 * half), block(5, 1)]))

    assert [[1, 2, 3], [4], [5], [], []] == [ends(together.next()) for _ in range(5)]


def test_blocks_before_damage():
    """The blocks before a damaged one are returned before the error is raised."""

    def blocks():
        yield block(1, 10)
        yield block(2, 10)
        raise JournalError("damaged")

    together = Together(blocks())

    assert [1, 2] == ends(together.next())
    for _ in range(2):
        with pytest.raises(JournalError, match="damaged"):
            together.next()
