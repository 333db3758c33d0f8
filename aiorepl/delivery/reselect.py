"""Completes the rows of one sink: adds the large values that the server did not send, because they did not change.

A slice with such rows waits until the values were read from the source (``source.present_rows``), for many rows at once. Later
slices wait behind it, so the order stays. The memory beside the buffer is bounded by the size of a batch, or by one row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast

from aiorepl.delivery.buffer import Cursor
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.pgoutput.rows import Insert as InsertMessage
from aiorepl.pgoutput.rows import Update as UpdateMessage
from aiorepl.pgoutput.tuples import any_unchanged
from aiorepl.source.present_rows import PresentRows, Values
from aiorepl.source.visibility import commits
from aiorepl.transactions.changes import Change, RowChange
from aiorepl.transactions.rewriting import encoded_text, with_encoded
from aiorepl.transactions.slices import Slice

# The largest number of changes whose rows are read at once.
_MOST_ROWS: Final = 1000


@dataclass(slots=True)
class _Waiting:
    """A slice that lacks values, or follows such a slice.

    :param changes: the changes of the slice that are left.
    :param lacking: the indexes of the changes to be completed.
    :param bytes: the size of the changes that are left.
    """

    part: Slice
    changes: list[Change]
    lacking: list[int]
    bytes: int

    def cut(self, count: int, grown: int) -> Slice:
        """Remove the first ``count`` changes, and return them as a piece of the slice. The piece ends the slice if no changes are left.

        :param grown: the bytes that were added to these changes.
        """
        part = self.part
        size = self.bytes * count // max(len(self.changes), 1)
        changes, self.changes = self.changes[:count], self.changes[count:]
        self.lacking = [index - count for index in self.lacking if index >= count]
        self.bytes -= size
        size += grown
        if not self.changes:
            return replace(part, changes=changes, size=size)
        self.part = replace(part, first=False)
        return replace(part, changes=changes, size=size, end_lsn=None, two_phase=None)


class Reselect:
    """Takes slices from a cursor, and completes their rows.

    :param rows: reads rows of the source.
    :param wants: whether the sink gets an incomplete row of the change.
    :param most_bytes: about how many bytes of slices may wait, and about how many bytes may be read at once.
    """

    def __init__(
        self,
        rows: PresentRows,
        wants: Callable[[RowChange], bool],
        statistics: SinkStatistics,
        most_bytes: int,
    ) -> None:
        self._rows = rows
        self._wants = wants
        self._statistics = statistics
        self._most_bytes = most_bytes
        self._most_rows = _MOST_ROWS
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        # Complete slices, and complete pieces of slices, each with whether it ends its slice.
        self._complete: deque[tuple[Slice, bool]] = deque()

    @property
    def lacks(self) -> bool:
        """Whether slices wait for ``read``."""
        return bool(self._waiting)

    def take(self, cursor: Cursor) -> tuple[Slice, bool] | None:
        """Return the next complete slice or piece of a slice, and whether it ends its slice; ``None`` if there is none now."""
        if self._complete:
            return self._complete.popleft()
        while self._waiting_bytes < self._most_bytes:
            part = cursor.take()
            if part is None:
                break
            changes = list(part.changes)
            lacking = [index for index, change in enumerate(changes) if self._lacks(change)]
            if not lacking and not self._waiting:
                return part, True
            self._waiting.append(_Waiting(part, changes, lacking, part.size))
            self._waiting_bytes += part.size
        return None

    async def read(self) -> None:
        """Read the values that the first waiting slices lack. Can be called again after an error.

        :raises AioreplError: as ``PresentRows.read``.
        """
        changes: list[RowChange] = []
        headers = []
        for waiting in self._waiting:
            indexes = waiting.lacking[: self._most_rows - len(changes)]
            header = waiting.part.transaction
            if indexes and header is not None and commits(waiting.part, header):
                headers.append(header)
            changes += [cast("RowChange", waiting.changes[index]) for index in indexes]
        found = await self._rows.read(changes, headers, self._most_bytes)
        if found is None:
            self._most_rows = max(len(changes) // 2, 1)
            return
        size = sum(len(text or b"") for values in found for text in values.values())
        # The next rows, if they have the same size, fill three quarters of the limit.
        self._most_rows = (
            min(len(found) * self._most_bytes * 3 // (4 * size) + 1, _MOST_ROWS) if size else _MOST_ROWS
        )
        self._fill(deque(found))

    def _lacks(self, change: Change) -> bool:
        if not isinstance(change, RowChange):
            return False
        new = change.raw_new
        if new is None or not any_unchanged(new) or not self._wants(change):
            return False
        if change.transaction is not None and change.transaction.prepared:
            # No snapshot sees the transaction before its COMMIT PREPARED, so the table may still have the values from before it.
            self._statistics.not_reselected += 1
            return False
        return True

    def _fill(self, found: deque[Values]) -> None:
        """Complete the first changes. Changes beyond ``most_bytes`` keep waiting, and their rows are read again."""
        size = 0
        while self._waiting:
            waiting = self._waiting[0]
            done = grown = 0
            for index in waiting.lacking:
                if not found or size >= self._most_bytes:
                    break
                change = cast("RowChange", waiting.changes[index])
                waiting.changes[index] = complete = self._completed(change, found.popleft())
                grown += len(complete.message.payload) - len(change.message.payload)
                size += len(complete.message.payload)
                done = index + 1
            else:
                done = len(waiting.changes)
            if done or not waiting.changes:
                self._waiting_bytes -= waiting.bytes
                self._complete.append((waiting.cut(done, grown), not waiting.changes))
                self._waiting_bytes += waiting.bytes
            if waiting.changes:
                return
            self._waiting.popleft()

    def _completed(self, change: RowChange, values: Values) -> RowChange:
        message, relation = change.message, change.layout.relation
        assert isinstance(message, (InsertMessage, UpdateMessage))
        columns = {relation.names.index(name): encoded_text(text) for name, text in values.items()}
        message = with_encoded(message, relation, columns)
        complete = type(change)(change.transaction, change.ordinal, change.layout, message)
        if any_unchanged(complete.raw_new or []):
            self._statistics.not_reselected += 1
        else:
            self._statistics.reselected += 1
        return complete
