"""The steps of a walsender's script, and their bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiorepl.lsn import LSN

READY = b"Z\0\0\0\5I"
COPY_DONE = b"c\0\0\0\4"
COPY_BOTH = b"W\0\0\0\7\0\0\0"


@dataclass(frozen=True, slots=True)
class Data:
    """XLogData. ``aiorepl.testing.messages`` builds payloads.

    :param start: WAL position of the message.
    """

    payload: bytes
    start: int = 0
    end: int = 0
    sent_at: int = 0


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Primary keepalive; ``reply`` requests a status at once."""

    wal_end: int
    reply: bool = False
    sent_at: int = 0


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that are sent as they are. They may also answer a query or the login, and nothing follows."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Endless:
    """The same bytes again and again, until the client disconnects. They may also answer a query or the login.

    :param first: bytes that are sent once, before the repeated bytes.
    """

    data: bytes
    first: bytes = b""


@dataclass(frozen=True, slots=True, init=False)
class Error:
    """ErrorResponse with these fields, by the protocol's letters (``M="…"``).

    ReadyForQuery follows, or the end of the connection if the severity (``S``) is FATAL. An ``Error`` may also answer a query or
    the login.
    """

    fields: Mapping[str, str]

    def __init__(self, **fields: str) -> None:
        object.__setattr__(self, "fields", fields)


@dataclass(frozen=True, slots=True, init=False)
class Notice:
    """NoticeResponse with these fields."""

    fields: Mapping[str, str]

    def __init__(self, **fields: str) -> None:
        object.__setattr__(self, "fields", fields)


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The server sends CopyDone, and waits for the client's."""


@dataclass(frozen=True, slots=True)
class Split:
    """The bytes of other steps, in pieces of ``size`` bytes."""

    steps: Sequence[Data | Keepalive | Raw | Notice]
    size: int = 1


@dataclass(frozen=True, slots=True)
class AwaitStatus:
    """Wait for the next status on this connection that reports at least these LSNs."""

    flushed: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection."""


Step = Data | Keepalive | Raw | Endless | Error | Notice | CopyDone | Split | AwaitStatus | Cut
Rows = Sequence[Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """A Standby Status Update."""

    received: LSN
    flushed: LSN
    applied: LSN
    sent_at: int
    reply_requested: bool


def frame(kind: bytes, body: bytes) -> bytes:
    """Return a backend message."""
    return kind + struct.pack(">I", 4 + len(body)) + body


def bytes_of(step: Data | Keepalive | Raw | Error | Notice | CopyDone) -> bytes:
    """Return the bytes of a step."""
    match step:
        case Raw(data):
            return data
        case CopyDone():
            return COPY_DONE
        case Data(payload, start, end, sent_at):
            return frame(b"d", b"w" + struct.pack(">QQq", start, end, sent_at) + payload)
        case Keepalive(wal_end, reply, sent_at):
            return frame(b"d", b"k" + struct.pack(">Qq?", wal_end, sent_at, reply))
        case Error(fields=fields) | Notice(fields=fields):
            body = "".join(f"{letter}{text}\0" for letter, text in fields.items())
            return frame(b"E" if isinstance(step, Error) else b"N", body.encode() + b"\0")


def rows_of(rows: Rows) -> bytes:
    """Return the messages that answer a query with these rows."""
    names = list(rows[0]) if rows else []
    described = b"".join(
        name.encode() + b"\0" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0) for name in names
    )
    parts = [frame(b"T", struct.pack(">H", len(names)) + described)]
    for row in rows:
        values = [row[name] for name in names]
        raw = [b"\xff" * 4 if v is None else struct.pack(">I", len(v.encode())) + v.encode() for v in values]
        parts.append(frame(b"D", struct.pack(">H", len(names)) + b"".join(raw)))
    return b"".join([*parts, frame(b"C", b"SELECT\0"), READY])
