"""The format of a segment file: framed pgoutput messages of protocol version 1. Pure.

    segment   magic, then blocks, then the index, then the footer
    block     frames; can be decoded alone, with its entry in the index
    frame     length (4 bytes, big-endian), then one pgoutput message
    footer    where the index begins (8 bytes, big-endian), its CRC-32 (4 bytes), then another magic

Messages of version 1 have no xid, because a journal holds whole committed transactions, one after the other, each from Begin
to Commit. The journal makes its own Begin, Commit and Origin messages; all others are the server's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from aiorepl.errors import JournalError
from aiorepl.pgoutput.framing import unframed
from aiorepl.storage.checked_json import checksum

MAGIC: Final = b"AIOREPL\x03"
"""The first bytes of a segment; the last is the version of the layout."""
_END: Final = b"AIOREPL."
FOOTER_BYTES: Final = 20
"""The size of the footer."""

_BEGIN: Final = struct.Struct(">cQqI")
_COMMIT: Final = struct.Struct(">cBQQq")
_ORIGIN: Final = struct.Struct(">cQ")


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


def footer(index_offset: int) -> bytes:
    """Make the footer of a segment."""
    offset = index_offset.to_bytes(8, "big")
    return offset + checksum(offset).to_bytes(4, "big") + _END


def index_offset(data: bytes) -> int:
    """Parse a footer.

    :raises JournalError: the bytes are not the end of a segment.
    """
    offset = int.from_bytes(data[:8], "big")
    if data != footer(offset):
        raise JournalError("it does not end like a segment")
    return offset


def frames(block: bytes) -> Iterator[bytes]:
    """Iterate over the messages of a block.

    :raises JournalError: the last message is incomplete.
    """
    try:
        yield from unframed(block)
    except ValueError:
        raise JournalError("its last message is incomplete") from None
