"""Recognises the changes of a transaction that were received before a connection was lost, when the server sends them again.
Pure.

The server may decode a transaction differently the second time: it caches publications and descriptions of tables, the cache ends
with the connection, and plain and streamed transactions meet different states of the cache. So the number of a change says nothing;
a change is recognised by the LSN of its WAL record. The rows that COPY writes to one page share an LSN, and are recognised by their
content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from aiorepl.wire.frames import XLogData

_CHANGES: Final = frozenset({b"I", b"U", b"D", b"T", b"M"})
_UINT64: Final = Struct(">Q").unpack_from
_UINT32: Final = Struct(">I").unpack_from
_XID_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ReceivedPart:
    """The part of one transaction that was received.

    :param lsn: the LSN of its last change.
    :param contents: hashes of the changes with that LSN.
    """

    xid: int
    commit_lsn: int
    lsn: int
    contents: Counter[int] = field(repr=False)


def received_part(
    xid: int, commit_lsn: int, frames: Sequence[XLogData], before: ReceivedPart | None
) -> ReceivedPart | None:
    """Return the received part of a plain transaction; ``None`` if no change was received.

    :param frames: the frames of the last read, without changes that were received before; the read ends within the transaction.
    :param before: the part that was received before that read, of this transaction or of another one.
    """
    lsn: int | None = None
    contents: Counter[int] = Counter()
    for frame in reversed(frames):
        kind = frame.payload[:1]
        if kind == b"B":
            break
        if kind in _CHANGES:
            if lsn is not None and frame.start != lsn:
                break
            lsn = frame.start
            contents[_content(frame, 1)] += 1
    same = before is not None and before.commit_lsn == commit_lsn
    if lsn is None:
        return before if same else None
    if before is not None and same and before.lsn == lsn:
        contents += before.contents
    return ReceivedPart(xid, commit_lsn, lsn, contents)


class Resumption:
    """Finds the changes of one connection that an earlier connection has received already.

    :ivar done: whether all further changes are new.
    """

    def __init__(self, part: ReceivedPart) -> None:
        self.done = False
        self._part = part
        self._contents = part.contents.copy()
        # Whether the current frames belong to the transaction, and at which offset of a frame the content of a change begins.
        self._within = False
        self._content_at = 1

    def runs(self, frames: Sequence[XLogData]) -> Iterator[tuple[bool, Sequence[XLogData]]]:
        """Yield runs of frames in order; each run says whether its changes were received before."""
        first, received = 0, False
        for index, frame in enumerate(frames):
            kind = frame.payload[:1]
            if kind not in _CHANGES:
                self._follow(kind, frame.payload)
                continue
            now = self._within and self._is_received(frame)
            if now is not received:
                if index > first:
                    yield received, frames[first:index]
                first, received = index, now
        if first < len(frames):
            yield received, frames[first:]

    def _follow(self, kind: bytes, payload: bytes) -> None:
        part = self._part
        if kind == b"B":
            self._within, self._content_at = _UINT64(payload, 1)[0] == part.commit_lsn, 1
        elif kind == b"S":
            self._within, self._content_at = _UINT32(payload, 1)[0] == part.xid, 1 + _XID_BYTES
        elif kind == b"C" or kind == b"E":
            self.done |= self._within and kind == b"C"
            self._within = False

    def _is_received(self, frame: XLogData) -> bool:
        if frame.start != self._part.lsn:
            self.done |= frame.start > self._part.lsn
            return frame.start < self._part.lsn
        content = _content(frame, self._content_at)
        if not self._contents[content]:
            return False
        self._contents[content] -= 1
        return True


def _content(frame: XLogData, at: int) -> int:
    """Return a hash of a change without the xid that it has within a stream block."""
    return hash((frame.payload[:1], memoryview(frame.payload)[at:]))
