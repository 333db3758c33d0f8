"""Combines slices into batches of whole transactions; a transaction larger than a batch is split. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aiorepl.checked import checked
from aiorepl.option_fields import Bytes, Seconds
from aiorepl.sink import Batch
from aiorepl.transactions.slices import Slice


@checked("batches", zero=("linger", "flush_seconds"))
@dataclass(frozen=True)
class BatchPolicy:
    """How much a sink gets at once, and how long accepted data may stay unflushed.

    :param max_bytes: size of a full batch, such as ``"1MiB"``; a larger transaction is delivered in slices.
    :param max_rows: largest number of changes in a batch; a larger transaction is delivered in slices. ``None``: no limit.
    :param linger: how long a batch that is not full waits for more changes, in seconds; 0 writes what is available.
    :param flush_bytes: flush when this many bytes were accepted since the last flush.
    :param flush_seconds: flush at the latest this many seconds after the first unflushed batch was accepted.
    :raises ConfigurationError: a value is out of range.
    """

    max_bytes: Bytes[int] = Bytes(1024 * 1024)
    max_rows: int | None = None
    linger: Seconds[float] = Seconds(0.0)
    flush_bytes: Bytes[int] = Bytes(64 * 1024 * 1024)
    flush_seconds: Seconds[float] = Seconds(1.0)


class Batcher:
    """Collects slices until a batch is complete.

    :param max_bytes: size of a full batch, in bytes.
    :param max_rows: largest number of changes in a batch; ``None``: no limit.
    """

    def __init__(self, max_bytes: int, max_rows: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        # The slices of complete transactions, and the slices of the transaction whose end was not added yet.
        self._whole: list[Slice] = []
        self._partial: list[Slice] = []
        self._whole_bytes = 0
        self._partial_bytes = 0
        # Rows are counted only if they are limited.
        self._whole_rows = 0
        self._partial_rows = 0
        # For each piece that ``added`` has not counted yet, in order: whether it ends its slice in the buffer.
        self._last_pieces: deque[bool] = deque()

    def add(self, part: Slice, *, ends: bool = True) -> None:
        """Add the next slice of the stream, or a piece of it.

        :param ends: whether this is the last piece of the slice.
        """
        if self._max_rows is None:
            self._partial.append(part)
        else:
            pieces = list(_split(part, self._max_rows))
            self._partial += pieces
            self._last_pieces.extend([False] * (len(pieces) - 1))
            self._partial_rows += len(part.changes)
        self._last_pieces.append(ends)
        self._partial_bytes += part.size
        if part.last:
            self._whole += self._partial
            self._whole_bytes += self._partial_bytes
            self._whole_rows += self._partial_rows
            self._partial, self._partial_bytes, self._partial_rows = [], 0, 0

    @property
    def full(self) -> bool:
        """Whether a batch has to be taken before more is added."""
        if self._whole_bytes + self._partial_bytes >= self._max_bytes:
            return True
        return self._max_rows is not None and (
            self._whole_rows >= self._max_rows or self._whole_rows + self._partial_rows > self._max_rows
        )

    @property
    def ready(self) -> bool:
        """Whether a complete transaction waits for ``take``."""
        return bool(self._whole)

    @property
    def has_partial(self) -> bool:
        """Whether slices of an unfinished transaction wait."""
        return bool(self._partial)

    def take(self) -> Batch | None:
        """Return a batch of complete transactions, or of slices if one transaction exceeds a batch; else ``None``."""
        if self._whole:
            batch, self._whole = self._cut(self._whole)
            self._whole_bytes -= batch.size
            self._whole_rows -= 0 if self._max_rows is None else len(batch)
            return batch
        if not self._partial:
            return None
        too_many = self._max_rows is not None and self._partial_rows > self._max_rows
        return self.take_partial() if too_many or self._partial_bytes >= self._max_bytes else None

    def take_partial(self) -> Batch:
        """Return a batch of the slices of the unfinished transaction."""
        batch, self._partial = self._cut(self._partial)
        self._partial_bytes -= batch.size
        self._partial_rows -= 0 if self._max_rows is None else len(batch)
        return batch

    def drop_partial(self) -> int:
        """Drop the unfinished transaction. Return how many added slices are complete with that."""
        pieces = len(self._partial)
        self._partial, self._partial_bytes, self._partial_rows = [], 0, 0
        return sum(self._last_pieces.pop() for _ in range(pieces))

    def added(self, batch: Batch) -> int:
        """Return how many added slices are complete with ``batch``. Call once for each batch, in the order of ``take``."""
        return sum(self._last_pieces.popleft() for _ in batch.slices)

    def _cut(self, parts: list[Slice]) -> tuple[Batch, list[Slice]]:
        count = len(parts) if self._max_rows is None else _fitting(parts, self._max_rows)
        return Batch(tuple(parts[:count])), parts[count:]


def _fitting(parts: Sequence[Slice], max_rows: int) -> int:
    """Return how many slices fit in a batch: all slices of whole transactions, or else the first slices of a large one."""
    rows = whole = 0
    for index, part in enumerate(parts):
        rows += len(part.changes)
        if rows > max_rows:
            return whole or index
        if part.last:
            whole = index + 1
    return len(parts)


def _split(part: Slice, max_rows: int) -> Iterator[Slice]:
    """Split a slice into pieces of at most ``max_rows`` changes; the last piece has the slice's end."""
    count = len(part.changes)
    if count <= max_rows:
        yield part
        return
    changes = list(part.changes)  # spooled changes are read once
    share = part.size // count
    for start in range(0, count - max_rows, max_rows):
        yield Slice(
            part.transaction,
            changes[start : start + max_rows],
            part.first and not start,
            None,
            share * max_rows,
        )
    start = (count - 1) // max_rows * max_rows
    yield Slice(
        part.transaction, changes[start:], False, part.end_lsn, part.size - share * start, part.two_phase
    )
