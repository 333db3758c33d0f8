"""Builders for the bytes of every pgoutput message.

Keywords are named like the fields of ``aiorepl.pgoutput.messages``. ``xid`` is the prefix of messages inside a stream block;
omit it elsewhere. Nothing is checked, because tests also need messages that no server sends.

A column of a tuple is ``str`` or ``bytes`` (sent as text), ``Binary`` (sent as binary), ``None`` or ``UNCHANGED``::

    insert(relation=16385, new=["1", "Alice", None])

Source: "Logical Replication Message Formats"; proto.c, ``logicalrep_write_*``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiorepl.pgoutput.relations import Column
from aiorepl.pgoutput.tuples import Unchanged


class Binary(bytes):
    """A column's value in binary format (kind ``b``)."""

    __slots__ = ()


Value = str | bytes | None | Unchanged


def tuple_data(columns: Sequence[Value]) -> bytes:
    """TupleData: the number of columns, then kind and bytes of each."""
    parts = [struct.pack(">H", len(columns))]
    for value in columns:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        else:
            raw = value.encode() if isinstance(value, str) else bytes(value)
            parts.append((b"b" if isinstance(value, Binary) else b"t") + struct.pack(">I", len(raw)) + raw)
    return b"".join(parts)


def column(name: str, type_oid: int = 25, *, key: bool = False, type_modifier: int = -1) -> Column:
    """A column of a Relation message; of type text by default."""
    return Column(key, name, type_oid, type_modifier)


# Transactions.


def begin(*, final_lsn: int, commit_time: int = 0, xid: int) -> bytes:
    """``B``, Begin; here ``xid`` is a field, not a prefix."""
    return b"B" + struct.pack(">QqI", final_lsn, commit_time, xid)


def commit(*, commit_lsn: int, end_lsn: int, commit_time: int = 0, flags: int = 0) -> bytes:
    """``C``, Commit."""
    return b"C" + struct.pack(">BQQq", flags, commit_lsn, end_lsn, commit_time)


def origin(*, commit_lsn: int, name: str) -> bytes:
    """``O``, Origin; has no xid prefix, even inside a stream block."""
    return b"O" + struct.pack(">Q", commit_lsn) + _string(name)


# Descriptions.


def relation(
    *,
    oid: int,
    namespace: str = "public",
    name: str,
    replica_identity: str = "d",
    columns: Sequence[Column],
    xid: int | None = None,
) -> bytes:
    """``R``, Relation."""
    parts = [b"R", _prefix(xid), struct.pack(">I", oid), _string(namespace), _string(name)]
    parts += [replica_identity.encode(), struct.pack(">H", len(columns))]
    for described in columns:
        parts += [bytes([described.key]), _string(described.name)]
        parts.append(struct.pack(">Ii", described.type_oid, described.type_modifier))
    return b"".join(parts)


def type_(*, oid: int, namespace: str = "public", name: str, xid: int | None = None) -> bytes:
    """``Y``, Type."""
    return b"Y" + _prefix(xid) + struct.pack(">I", oid) + _string(namespace) + _string(name)


# Content.


def insert(*, relation: int, new: Sequence[Value], xid: int | None = None) -> bytes:
    """``I``, Insert."""
    return b"I" + _prefix(xid) + struct.pack(">I", relation) + b"N" + tuple_data(new)


def update(
    *,
    relation: int,
    new: Sequence[Value],
    old: Sequence[Value] | None = None,
    old_kind: str = "",
    xid: int | None = None,
) -> bytes:
    """``U``, Update; with ``old``, ``old_kind`` is ``"K"`` (the old key) or ``"O"`` (the whole old row)."""
    parts = [b"U", _prefix(xid), struct.pack(">I", relation)]
    if old is not None:
        parts += [(old_kind or "K").encode(), tuple_data(old)]
    return b"".join([*parts, b"N", tuple_data(new)])


def delete(*, relation: int, old: Sequence[Value], old_kind: str = "K", xid: int | None = None) -> bytes:
    """``D``, Delete; ``old_kind`` as in ``update``."""
    return b"D" + _prefix(xid) + struct.pack(">I", relation) + old_kind.encode() + tuple_data(old)


def truncate(
    *,
    relations: Sequence[int],
    cascade: bool = False,
    restart_identity: bool = False,
    xid: int | None = None,
) -> bytes:
    """``T``, Truncate."""
    options = cascade | restart_identity << 1
    head = struct.pack(">IB", len(relations), options)
    return b"T" + _prefix(xid) + head + b"".join(struct.pack(">I", oid) for oid in relations)


def message(
    *, transactional: bool = True, lsn: int, prefix: str = "", content: bytes = b"", xid: int | None = None
) -> bytes:
    """``M``, a logical decoding message."""
    head = b"M" + _prefix(xid) + struct.pack(">BQ", transactional, lsn) + _string(prefix)
    return head + struct.pack(">I", len(content)) + content


# Streamed transactions.


def stream_start(*, xid: int, first_segment: bool) -> bytes:
    """``S``, Stream Start."""
    return b"S" + struct.pack(">IB", xid, first_segment)


def stream_stop() -> bytes:
    """``E``, Stream Stop."""
    return b"E"


def stream_commit(*, xid: int, commit_lsn: int, end_lsn: int, commit_time: int = 0, flags: int = 0) -> bytes:
    """``c``, Stream Commit."""
    return b"c" + struct.pack(">IBQQq", xid, flags, commit_lsn, end_lsn, commit_time)


def stream_abort(
    *, xid: int, subxid: int, abort_lsn: int | None = None, abort_time: int | None = None
) -> bytes:
    """``A``, Stream Abort; LSN and time come together, and only with ``streaming=parallel``."""
    info = b"" if abort_lsn is None else struct.pack(">Qq", abort_lsn, abort_time or 0)
    return b"A" + struct.pack(">II", xid, subxid) + info


# Two-phase commit.


def begin_prepare(*, prepare_lsn: int, end_lsn: int, prepare_time: int = 0, xid: int, gid: str) -> bytes:
    """``b``, Begin Prepare."""
    return b"b" + _prepared(prepare_lsn, end_lsn, prepare_time, xid, gid)


def prepare(
    *, prepare_lsn: int, end_lsn: int, prepare_time: int = 0, xid: int, gid: str, flags: int = 0
) -> bytes:
    """``P``, Prepare."""
    return b"P" + bytes([flags]) + _prepared(prepare_lsn, end_lsn, prepare_time, xid, gid)


def commit_prepared(
    *, commit_lsn: int, end_lsn: int, commit_time: int = 0, xid: int, gid: str, flags: int = 0
) -> bytes:
    """``K``, Commit Prepared."""
    return b"K" + bytes([flags]) + _prepared(commit_lsn, end_lsn, commit_time, xid, gid)


def rollback_prepared(
    *,
    prepare_end_lsn: int,
    rollback_end_lsn: int,
    prepare_time: int = 0,
    rollback_time: int = 0,
    xid: int,
    gid: str,
    flags: int = 0,
) -> bytes:
    """``r``, Rollback Prepared."""
    fields = struct.pack(">QQqqI", prepare_end_lsn, rollback_end_lsn, prepare_time, rollback_time, xid)
    return b"r" + bytes([flags]) + fields + _string(gid)


def stream_prepare(
    *, prepare_lsn: int, end_lsn: int, prepare_time: int = 0, xid: int, gid: str, flags: int = 0
) -> bytes:
    """``p``, Stream Prepare."""
    return b"p" + bytes([flags]) + _prepared(prepare_lsn, end_lsn, prepare_time, xid, gid)


def _prepared(lsn: int, end_lsn: int, time: int, xid: int, gid: str) -> bytes:
    return struct.pack(">QQqI", lsn, end_lsn, time, xid) + _string(gid)


def _prefix(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"
