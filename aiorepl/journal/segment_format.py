"""The format of a segment file: framed pgoutput messages of protocol version 1. Pure.

    segment   magic, then blocks
    block     frames; can be decoded alone, with its entry in the index
    frame     length (4 bytes, big-endian), then one pgoutput message

Messages of version 1 have no xid, because a journal holds whole committed transactions, one after the other, each from Begin
to Commit. The journal makes its own Begin, Commit and Origin messages; all others are the server's.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from aiorepl.errors import JournalError
from aiorepl.pgoutput.framing import unframed

MAGIC: Final = b"AIOREPL\x01"
"""The first bytes of a segment; the last is the version of the layout."""

_BEGIN: Final = struct.Struct(">cQqI")
_COMMIT: Final = struct.Struct(">cBQQq")
_ORIGIN: Final = struct.Struct(">cQ")

checksum: Final = zlib.crc32


def begin(commit_lsn: int, commit_timestamp: int, xid: int) -> bytes:
    """Make a Begin message.

    :param commit_timestamp: microseconds since 2000-01-01 00:00 UTC.
    """
    return _BEGIN.pack(b"B", commit_lsn, commit_timestamp, xid)


def commit(commit_lsn: int, end_lsn: int, commit_timestamp: int) -> bytes:
    """Make a Commit message; parameters as ``begin``."""
    return _COMMIT.pack(b"C", 0, commit_lsn, end_lsn, commit_timestamp)


def origin(name: str) -> bytes:
    """Make an Origin message. A journal does not keep the commit LSN on the origin server, so it is 0."""
    return _ORIGIN.pack(b"O", 0) + name.encode() + b"\0"


def frames(block: bytes) -> Iterator[bytes]:
    """Iterate over the messages of a block.

    :raises JournalError: the last message is incomplete.
    """
    try:
        yield from unframed(block)
    except ValueError:
        raise JournalError("its last message is incomplete") from None
