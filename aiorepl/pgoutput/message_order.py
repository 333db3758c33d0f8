"""Gives logical messages the same place among the rows of their transaction, however the server orders them. Pure.

PostgreSQL sorts the changes of a transaction and its subtransactions by LSN: a row has the LSN where its WAL record begins, a
transactional message the one where its record ends (``logicalmsg_decode`` in decode.c). So a message and the row that follows it
in WAL have the same LSN, and if the row belongs to another subtransaction, the server sends either first, depending on how much
of the transaction it has in memory. Here the message always comes first, as in WAL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiorepl.wire.frames import XLogData

# The size up to which rows with one LSN are held back. Only rows that COPY writes to one page share an LSN, but each of these rows
# may have large TOAST values.
HELD_BYTES: Final = 16 << 20

# The messages of rows, truncates, and the descriptions before rows.
_ROWS: Final = frozenset({b"I", b"U", b"D", b"T", b"R", b"Y"})


class MessageOrder:
    """Orders the frames of one connection.

    Rows at the end of a read are held back, because a logical message with the same LSN may follow. Held rows never wait long: at
    least the end of the transaction follows. Rows of more than ``HELD_BYTES`` are not held back; a logical message with their LSN
    then comes after them.
    """

    def __init__(self) -> None:
        self._held: list[XLogData] = []

    def feed(self, frames: Sequence[XLogData]) -> list[XLogData]:
        """Take the next frames, and return the frames whose order is known.

        :param frames: in the order of the server, each with the LSN of its change.
        """
        ordered = [*self._held, *frames]
        messages = [at for at, frame in enumerate(ordered) if frame.payload[:1] == b"M"]
        for at in messages:
            first = _first_row(ordered, at, ordered[at].start)
            if first < at:
                ordered.insert(first, ordered.pop(at))
        first = _first_row(ordered, len(ordered), ordered[-1].start) if ordered else 0
        self._held = ordered[first:]
        if sum(len(frame.payload) for frame in self._held) > HELD_BYTES:
            self._held = []
        else:
            del ordered[first:]
        return ordered


def _first_row(frames: Sequence[XLogData], end: int, lsn: int) -> int:
    """Return where the run of rows with this LSN begins that ends directly before ``end``."""
    while end and frames[end - 1].start == lsn and frames[end - 1].payload[:1] in _ROWS:
        end -= 1
    return end
