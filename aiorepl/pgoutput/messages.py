"""The nineteen messages of pgoutput, with the field names of PostgreSQL's documentation.

Most are named tuples: immutable and cheap. Each message keeps the bytes that it was decoded from, and a row message also
its relation, so a slow consumer may keep messages. LSNs are plain integers here, ``LSN`` prints them. Times are
microseconds since 2000-01-01 00:00 UTC as sent. Within a stream block, ``xid`` is the subxid that the message belongs to.
Outside of a block, the bytes contain no xid, and ``xid`` is ``None``.

Source: "Logical Replication Message Formats" (PostgreSQL 10 to 19); proto.c, ``logicalrep_read_*``.
"""

from __future__ import annotations

from typing import NamedTuple

from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.rows import Delete as Delete  # noqa: PLC0414 - one of the nineteen
from aiorepl.pgoutput.rows import Insert as Insert  # noqa: PLC0414 - one of the nineteen
from aiorepl.pgoutput.rows import RowMessage as RowMessage  # noqa: PLC0414 - one of the nineteen
from aiorepl.pgoutput.rows import Update as Update  # noqa: PLC0414 - one of the nineteen


class Begin(NamedTuple):
    """``B``: a transaction begins. It has committed already, and its rows follow."""

    final_lsn: int
    commit_time: int
    xid: int


class Commit(NamedTuple):
    """``C``: the end of the transaction that ``Begin`` began. Acknowledgements name ``end_lsn``."""

    commit_lsn: int
    end_lsn: int
    commit_time: int


class Origin(NamedTuple):
    """``O``: the transaction came to this server from another one."""

    commit_lsn: int
    name: str
    xid: int | None


class Message(NamedTuple):
    """``M``: a logical decoding message, from ``pg_logical_emit_message``."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    payload: bytes
    xid: int | None

    def __repr__(self) -> str:
        return f"<Message {self.prefix!r} of {len(self.content)} bytes>"


class Truncate(NamedTuple):
    """``T``: relations truncated together."""

    relations: tuple[Relation, ...]
    cascade: bool
    restart_identity: bool
    payload: bytes
    xid: int | None


class StreamStart(NamedTuple):
    """``S``: a block of a transaction in progress begins."""

    xid: int
    first_segment: bool


class StreamStop(NamedTuple):
    """``E``: the block ends."""


class StreamCommit(NamedTuple):
    """``c``: a streamed transaction committed."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


class StreamAbort(NamedTuple):
    """``A``: a streamed transaction (``subxid == xid``) or one of its subtransactions rolled back.

    ``abort_lsn`` and ``abort_time`` are sent only under ``streaming=parallel``, else ``None``.
    """

    xid: int
    subxid: int
    abort_lsn: int | None
    abort_time: int | None


class BeginPrepare(NamedTuple):
    """``b``: a prepared transaction begins; its rows and ``Prepare`` follow."""

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


class Prepare(NamedTuple):
    """``P``: the prepared transaction's rows are complete."""

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


class CommitPrepared(NamedTuple):
    """``K``: a prepared transaction was committed by COMMIT PREPARED."""

    commit_lsn: int
    end_lsn: int
    commit_time: int
    xid: int
    gid: str


class RollbackPrepared(NamedTuple):
    """``r``: a prepared transaction was rolled back by ROLLBACK PREPARED."""

    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


class StreamPrepare(NamedTuple):
    """``p``: a streamed transaction was prepared."""

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


def without_xid(payload: bytes, xid: int | None) -> bytes:
    """Return a content message's bytes without the xid, which follows the type byte within a stream block."""
    return payload if xid is None else payload[:1] + payload[5:]


StreamedContent = Relation | Type | Origin | Message | Insert | Update | Delete | Truncate
AnyMessage = (
    StreamedContent
    | Begin
    | Commit
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)
