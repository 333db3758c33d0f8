"""What stands in a segment: framed pgoutput messages of version 1, and the few that the journal writes itself.

    segment   magic, then blocks
    block     frames; decodes by itself, given what the index says of it
    frame     length (4 bytes, big-endian), then one pgoutput message

Version 1 has no xid prefixes: there is nothing in a journal but committed transactions, one after the other, each
from Begin to Commit. Pure: bytes in, bytes out.
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
    """A Begin message; times are microseconds since 2000-01-01 00:00 UTC."""
    return _BEGIN.pack(b"B", commit_lsn, commit_timestamp, xid)


def commit(commit_lsn: int, end_lsn: int, commit_timestamp: int) -> bytes:
    """A Commit message."""
    return _COMMIT.pack(b"C", 0, commit_lsn, end_lsn, commit_timestamp)


def origin(name: str) -> bytes:
    """An Origin message. The commit LSN over there is not kept, so it is 0."""
    return _ORIGIN.pack(b"O", 0) + name.encode() + b"\0"


def frames(block: bytes) -> Iterator[bytes]:
    """The messages of a block.

    :raises JournalError: when the lengths do not add up.
    """
    try:
        yield from unframed(block)
    except ValueError:
        raise JournalError("a block does not end where its last message does") from None
