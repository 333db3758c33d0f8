"""Slices into batches: whole transactions, unless one is larger than a batch may be. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aiorepl.sink import Batch
from aiorepl.transactions.transaction import Slice


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How much a sink gets at once, and how long accepted data may stay unflushed.

    :param bytes: a batch is full at this size; a larger transaction comes in slices.
    :param flush_bytes: flush when this much was accepted since the last flush.
    :param flush_seconds: flush at the latest this long after the first unflushed batch was accepted.
    """

    bytes: int = 1024 * 1024
    flush_bytes: int = 64 * 1024 * 1024
    flush_seconds: float = 1.0


class Batcher:
    """Gathers slices until a batch is ready."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._whole: list[Slice] = []
        self._part: list[Slice] = []
        self._whole_size = 0
        self._part_size = 0

    def add(self, part: Slice) -> None:
        """The next slice of the stream."""
        self._part.append(part)
        self._part_size += part.size
        if part.last:
            self._whole += self._part
            self._whole_size += self._part_size
            self._part, self._part_size = [], 0

    @property
    def full(self) -> bool:
        """Whether to take a batch before adding more."""
        return self._whole_size + self._part_size >= self._limit

    @property
    def under_way(self) -> bool:
        """Whether there is a part of a transaction whose end has not come."""
        return bool(self._part)

    def take(self) -> Batch | None:
        """What makes a batch now, or ``None``: a transaction that may yet fit is waited for."""
        if self._whole:
            ready, self._whole, self._whole_size = self._whole, [], 0
            return Batch(tuple(ready))
        if self._part and self._part_size >= self._limit:
            return self.take_part()
        return None

    def take_part(self) -> Batch:
        """The transaction under way, as far as it has come."""
        ready, self._part, self._part_size = self._part, [], 0
        return Batch(tuple(ready))
