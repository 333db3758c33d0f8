"""Frames: splits the byte stream of the server, and parses the few messages around CopyBoth. Pure.

A frame is a type byte, an Int32 length that counts itself, and the body. The transport reads into a ``FrameBuffer``, which
returns all complete frames of a read at once, because a call for each would cost more than the frame. XLogData and
keepalives have classes of their own, and go to the inbox of the consumer; all others are a ``Frame``.

Source: "Message Formats" and "Streaming Replication Protocol" in the PostgreSQL documents.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from aiorepl import byteops
from aiorepl.errors import ProtocolError

# The largest frame a server can send: a message buffer of PostgreSQL ends at 1 GiB (MaxAllocSize).
LARGEST_FRAME: Final = 0x3FFF_FFFF
LARGEST_MESSAGE: Final = 64 * 1024
"""The limit of ErrorResponse and NoticeResponse, which may quote a value of any size; the rest is dropped."""
LARGEST_ANSWER: Final = 16 * 1024 * 1024
"""The limit of any other frame outside the stream, and of the whole result of a query."""
_SMALLEST_BUFFER: Final = 64 * 1024
# A grown buffer keeps its memory up to this size, while frames are large.
_LARGEST_KEPT: Final = 4 * 1024 * 1024

_COPY_DATA: Final = ord("d")
_MESSAGES: Final = (ord("E"), ord("N"))
_XLOG: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_KEEPALIVE_LAYOUT: Final = struct.Struct(">QqB")
_STATUS: Final = struct.Struct(">cIcQQQqB")


class XLogData:
    """``w``: one pgoutput message. ``start`` and ``end`` are WAL positions, ``sent_at`` the server's clock in
    microseconds since 2000-01-01 00:00 UTC. Immutable.
    """

    __slots__ = ("end", "payload", "sent_at", "start")

    def __init__(self, start: int, end: int, sent_at: int, payload: bytes) -> None:
        self.start: Final = start
        self.end: Final = end
        self.sent_at: Final = sent_at
        self.payload: Final = payload

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, XLogData):
            return NotImplemented
        return (self.start, self.end, self.sent_at, self.payload) == (
            other.start,
            other.end,
            other.sent_at,
            other.payload,
        )

    def __hash__(self) -> int:
        return hash((self.start, self.payload))

    def __repr__(self) -> str:
        return f"<XLogData of {len(self.payload)} bytes>"


class Keepalive(NamedTuple):
    """``k``: the server's WAL position and clock, and whether it requests a status update."""

    wal_end: int
    sent_at: int
    reply_requested: bool


class Frame(NamedTuple):
    """Any other frame: its type letter and its body."""

    kind: str
    body: bytes

    def __repr__(self) -> str:
        return f"<Frame {self.kind!r} of {len(self.body)} bytes>"


Received = list[XLogData] | Keepalive
"""An item of an inbox: consecutive XLogData, which a consumer handles together, or a keepalive."""


class FrameBuffer:
    """A reusable read buffer. It grows with the bytes that arrived, never with a claimed length."""

    def __init__(self, size: int = 256 * 1024) -> None:
        self._least = max(size, _SMALLEST_BUFFER)
        self._memory = bytearray(self._least)
        self._start = 0
        self._end = 0
        # Whether the frames of the last read were large, so that the next read probably needs as much space.
        self._large = False
        # How many bytes are missing of a message that was cut at its limit.
        self._surplus = 0
        self.received = 0
        """The number of XLogData and keepalives so far."""
        self.damage: ProtocolError | None = None
        """The invalid length or message after the frames that were returned; ``None`` while the stream is valid."""

    def space(self) -> memoryview:
        """Return the memory to read into: a memoryview, because the TLS layer writes into slices of it."""
        if len(self._memory) - self._end < self._least // 4:
            self._make_room()
        return memoryview(self._memory)[self._end :]

    def advance(self, count: int, inbox: list[Received]) -> list[tuple[int, Keepalive | Frame]]:
        """Process the frames that are complete after ``count`` more bytes, up to an invalid one (``damage``).

        :param inbox: XLogData and keepalives are appended. XLogData that follow XLogData extend its last list.
        :returns: all frames except XLogData, each with the inbox's length at the frame's arrival.
        """
        self._end += count
        others: list[tuple[int, Keepalive | Frame]] = []
        if self.damage is not None:
            return others
        run: list[XLogData] | None = None
        if inbox and isinstance(inbox[-1], list):
            run = inbox[-1]
        received = 0
        if self._surplus:
            self._skip_surplus(count)
        memory, at, end = self._memory, self._start, self._end
        data: Any = memory  # a pointer in the compiled form
        try:
            while at + 5 <= end:
                length = byteops.uint32(data, at + 1)
                if length < 4 or length > LARGEST_FRAME:
                    raise ProtocolError(
                        f"claims {length} bytes", message=f"frame {_letter(data[at])}", field="length"
                    )
                after = at + 1 + length
                if after > end:
                    # This branch runs at most once per read.
                    if (begun := self._check_partial(memory[at : at + 6], length, end - at)) is not None:
                        frame = Frame(begun, byteops.cut(data, at + 5, at + 5 + LARGEST_MESSAGE))
                        others.append((len(inbox), frame))
                        self._surplus = after - end
                        at = end
                    break
                if data[at] == _COPY_DATA:
                    if length >= 29 and data[at + 5] == _XLOG:
                        if run is None:
                            run = []
                            inbox.append(run)
                        run.append(
                            XLogData(
                                byteops.uint64(data, at + 6),
                                byteops.uint64(data, at + 14),
                                byteops.int64(data, at + 22),
                                byteops.cut(data, at + 30, after),
                            )
                        )
                    else:
                        keepalive = _replication(byteops.cut(data, at + 5, after))
                        others.append((len(inbox), keepalive))
                        inbox.append(keepalive)
                        run = None
                    received += 1
                else:
                    stop = min(after, at + 5 + LARGEST_MESSAGE) if data[at] in _MESSAGES else after
                    frame = Frame(_letter(data[at]), byteops.cut(data, at + 5, stop))
                    others.append((len(inbox), frame))
                    # Later XLogData must not extend a list before this frame.
                    run = None
                at = after
        except ProtocolError as error:
            self.damage = error
        if received or others:
            self.received += received
            self._large = at - self._start > (received + len(others)) * (self._least // 4)
        self._start = at
        if at == end:
            self._start = self._end = 0
        if len(memory) > self._least and end - at <= self._least // 2 and not self._keeps_capacity():
            # The memory of a large frame is freed, although the next frame has begun in it.
            self._memory = bytearray(self._least)
            self._memory[: end - at] = memory[at:end]
            self._start, self._end = 0, end - at
        return others

    def _skip_surplus(self, count: int) -> None:
        passed = min(count, self._surplus)
        self._surplus -= passed
        self._start += passed
        if self._start == self._end:
            self._start = self._end = 0

    def _check_partial(self, head: bytearray, length: int, arrived: int) -> str | None:
        """Check an incomplete frame. Return its kind if it is an error or notice that is long enough to read.

        :raises ProtocolError: its length or kind is invalid.
        """
        kind = head[0]
        if kind == _COPY_DATA:
            if arrived > 5 and head[5] != _XLOG:
                _require_keepalive(head[5], length - 4)
        elif kind in _MESSAGES:
            return _letter(kind) if arrived >= 5 + LARGEST_MESSAGE else None
        elif length > LARGEST_ANSWER:
            raise ProtocolError(f"claims {length} bytes", message=f"frame {_letter(kind)}", field="length")
        return None

    @property
    def pending(self) -> int:
        """The bytes of an incomplete frame."""
        return self._end - self._start

    def _make_room(self) -> None:
        before = self._memory
        kept = self._end - self._start
        # A large buffer grows in place, by a quarter: a large frame takes at most a quarter more memory than the bytes that have
        # arrived.
        size = max(self._least, kept + kept // 4 if kept > _LARGEST_KEPT else 2 * kept)
        if size <= len(before) and self._keeps_capacity():
            size = len(before)
        if size > len(before) and kept > _LARGEST_KEPT:
            self._extend(size)
        elif size != len(before):
            self._memory = bytearray(size)
        # Memoryviews avoid a copy.
        memoryview(self._memory)[:kept] = memoryview(before)[self._start : self._end]
        self._start, self._end = 0, kept

    def _extend(self, size: int) -> None:
        try:
            byteops.extend(self._memory, size - len(self._memory))
        except BufferError:  # the transport still holds a view
            self._memory = bytearray(size)

    def _keeps_capacity(self) -> bool:
        """Return whether a grown buffer keeps its size. Growing it again would copy each large frame several times."""
        return self._large and len(self._memory) <= _LARGEST_KEPT


def _letter(kind: int) -> str:
    return chr(kind) if 32 < kind < 127 else f"{kind:#04x}"


def _replication(body: bytes) -> Keepalive:
    if not body:
        raise ProtocolError("an empty replication message", message="CopyData")
    if body[0] == _XLOG:
        raise ProtocolError(f"has {len(body)} bytes, fewer than its header", message="XLogData")
    _require_keepalive(body[0], len(body))
    wal_end, sent_at, reply = _KEEPALIVE_LAYOUT.unpack_from(body, 1)
    return Keepalive(wal_end, sent_at, reply != 0)


def _require_keepalive(kind: int, length: int) -> None:
    if kind != _KEEPALIVE:
        raise ProtocolError(f"unknown replication message {_letter(kind)!r}", message="CopyData")
    if length != 1 + _KEEPALIVE_LAYOUT.size:
        raise ProtocolError(f"has {length} bytes, not {1 + _KEEPALIVE_LAYOUT.size}", message="Keepalive")


def status_update(received: int, flushed: int, applied: int, now: int, *, reply: bool = False) -> bytes:
    """Return a Standby Status Update in its CopyData frame.

    :param received: the LSN up to which WAL was received (``write_lsn`` on the server).
    :param flushed: the LSN up to which it is durable; moves the slot's ``confirmed_flush_lsn``.
    :param applied: the LSN up to which it is applied.
    :param now: the client's clock, in microseconds since 2000-01-01 00:00 UTC.
    :param reply: request a keepalive in return.
    """
    return _STATUS.pack(b"d", _STATUS.size - 1, b"r", received, flushed, applied, now, reply)


def query(sql: str) -> bytes:
    """Return a simple query."""
    body = sql.encode() + b"\0"
    return b"Q" + (4 + len(body)).to_bytes(4, "big") + body


COPY_DONE: Final = b"c\x00\x00\x00\x04"
TERMINATE: Final = b"X\x00\x00\x00\x04"


def error_fields(body: bytes) -> dict[str, str]:
    """Return the fields of an ErrorResponse or NoticeResponse by letter. Any of them may be missing."""
    fields: dict[str, str] = {}
    for part in body.split(b"\0"):
        if part:
            fields[chr(part[0])] = part[1:].decode("utf-8", "backslashreplace")
    return fields


def row_description(body: bytes) -> list[str]:
    """Return the column names of a RowDescription.

    :raises ProtocolError: it is too short or too long.
    """
    names, at = [], 2
    for _ in range(int.from_bytes(body[:2], "big")):
        end = body.find(0, at)
        if end < 0:
            raise ProtocolError("cut short", message="RowDescription")
        names.append(body[at:end].decode("utf-8", "backslashreplace"))
        at = end + 19
    _require_end(body, at, "RowDescription")
    return names


def data_row(body: bytes) -> list[str | None]:
    """Return the text values of a DataRow.

    :raises ProtocolError: it is too short or too long.
    """
    values: list[str | None] = []
    at = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        length = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        if length < 0:
            values.append(None)
            continue
        # Text of an SQL_ASCII database may be any bytes; bytes that are not UTF-8 become escapes.
        values.append(body[at : at + length].decode("utf-8", "backslashreplace"))
        at += length
    _require_end(body, at, "DataRow")
    return values


def _require_end(body: bytes, end: int, message: str) -> None:
    if end > len(body):
        raise ProtocolError("cut short", message=message)
    if end < len(body):
        raise ProtocolError(f"has {len(body) - end} bytes after its end", message=message)
