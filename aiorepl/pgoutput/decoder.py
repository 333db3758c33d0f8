"""Decodes the bytes of pgoutput to messages, by the first byte.

The decoder keeps three things between messages: the negotiated options, whether it is in a stream block, and the relations
described so far. The options decide about the layout, not the version number: Stream Abort has an LSN and a time only under
``streaming=parallel``. Messages begin with an xid only within a stream block. The assembler checks the order of messages.

Every length is verified before it is used, and nothing may be left over, so that any bytes give a message or a
ProtocolError.

Source: "Logical Replication Message Formats"; proto.c, ``logicalrep_read_*``; worker.c, ``apply_dispatch``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from aiorepl import byteops
from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Column, Relation, RelationViews, Type
from aiorepl.pgoutput.rows import Delete, Insert, Update
from aiorepl.pgoutput.tuples import skip
from aiorepl.wire.frames import XLogData

_UINT32: Final = struct.Struct(">I").unpack_from
_BEGIN: Final = struct.Struct(">QqI")
_COMMIT: Final = struct.Struct(">BQQq")
_MESSAGE: Final = struct.Struct(">BQ")
_PREPARE: Final = struct.Struct(">QQqI")
_ROLLBACK: Final = struct.Struct(">QQqqI")
_COLUMN: Final = struct.Struct(">Ii")
_ABORT_INFO: Final = struct.Struct(">Qq")

_INSERT, _UPDATE, _DELETE = ord("I"), ord("U"), ord("D")
_NEW, _KEY, _OLD = ord("N"), ord("K"), ord("O")
_CASCADE, _RESTART_IDENTITY = 1, 2
_RELATION_BYTES: Final = 4


class Decoder:
    """Reads the messages of one START_REPLICATION, or of one slot's SQL functions, in order.

    :param streaming: the ``streaming`` option in force.
    """

    def __init__(self, streaming: Streaming = Streaming.OFF) -> None:
        self.streaming = streaming
        self.views = RelationViews()
        self.position = 0
        """The WAL position of the last message that ``messages`` decoded."""
        self._xid: int | None = None
        self._readers: dict[int, Callable[[bytes], m.AnyMessage]] = {
            ord("B"): self._begin,
            ord("C"): self._commit,
            ord("R"): self._relation,
            ord("Y"): self._type,
            ord("O"): self._origin,
            ord("T"): self._truncate,
            ord("M"): self._message,
            ord("S"): self._stream_start,
            ord("E"): self._stream_stop,
            ord("c"): self._stream_commit,
            ord("A"): self._stream_abort,
            ord("b"): self._begin_prepare,
            ord("P"): self._prepare,
            ord("K"): self._commit_prepared,
            ord("r"): self._rollback_prepared,
            ord("p"): self._stream_prepare,
        }

    def messages(self, frames: Iterable[XLogData]) -> Iterator[m.AnyMessage]:
        """Decode the messages of these frames, lazily.

        :raises ProtocolError: as ``decode``.
        """
        for frame in frames:
            self.position = frame.start
            yield self.decode(frame.payload)

    def decode(self, payload: bytes) -> m.AnyMessage:
        """Decode one message, which keeps a reference to ``payload``.

        :raises ProtocolError: names the message and field; the decoder cannot be used afterwards.
        """
        if not payload:
            raise ProtocolError("an empty message")
        # Rows first, because they are by far the most frequent.
        kind = payload[0]
        if kind == _INSERT:
            return self._insert(payload)
        if kind == _UPDATE:
            return self._update(payload)
        if kind == _DELETE:
            return self._delete(payload)
        reader = self._readers.get(kind)
        if reader is None:
            raise ProtocolError(f"unknown message type {payload[:1]!r}")
        return reader(payload)

    def _insert(self, payload: bytes) -> Insert:
        at = self._content(payload, "Insert")
        relation = self._relation_at(payload, at, "Insert")
        if payload[at + 4] != _NEW:
            raise ProtocolError("is not N", message="Insert", field="tuple kind")
        _end(payload, skip(payload, at + 5, "Insert", len(relation.columns)), "Insert")
        message = Insert.__new__(Insert)
        message.fill(relation, "", 0, at + 5, payload, self._xid_of(payload))
        return message

    def _update(self, payload: bytes) -> Update:
        at = self._content(payload, "Update")
        relation = self._relation_at(payload, at, "Update")
        columns = len(relation.columns)
        kind, at = payload[at + 4], at + 5
        old_kind, old_at = "", 0
        if kind == _KEY or kind == _OLD:
            old_kind, old_at = "K" if kind == _KEY else "O", at
            at = skip(payload, at, "Update", columns)
            kind, at = _byte(payload, at, "Update", "tuple kind"), at + 1
        if kind != _NEW:
            raise ProtocolError("is not K, O or N", message="Update", field="tuple kind")
        _end(payload, skip(payload, at, "Update", columns), "Update")
        message = Update.__new__(Update)
        message.fill(relation, old_kind, old_at, at, payload, self._xid_of(payload))
        return message

    def _delete(self, payload: bytes) -> Delete:
        at = self._content(payload, "Delete")
        relation = self._relation_at(payload, at, "Delete")
        kind, at = payload[at + 4], at + 5
        if kind != _KEY and kind != _OLD:
            raise ProtocolError("is not K or O", message="Delete", field="tuple kind")
        _end(payload, skip(payload, at, "Delete", len(relation.columns)), "Delete")
        message = Delete.__new__(Delete)
        message.fill(relation, "K" if kind == _KEY else "O", at, 0, payload, self._xid_of(payload))
        return message

    def _content(self, payload: bytes, message: str) -> int:
        """Return the offset of a row message's relation oid, after checking that a byte follows the oid."""
        at = 1 if self._xid is None else 5
        if len(payload) <= at + _RELATION_BYTES:
            raise ProtocolError("cut short", message=message)
        return at

    def _relation_at(self, payload: bytes, at: int, message: str) -> Relation:
        data: Any = payload  # a pointer in the compiled form
        oid = byteops.uint32(data, at)
        relation: Relation | None = self.views.current.get(oid)
        return self.views.find(oid, message) if relation is None else relation

    def _xid_of(self, payload: bytes) -> int | None:
        """The xid of a content message within a stream block; else ``None``."""
        if self._xid is None:
            return None
        data: Any = payload  # a pointer in the compiled form
        return byteops.uint32(data, 1)

    def _truncate(self, payload: bytes) -> m.Truncate:
        xid, at = self._prefix(payload, "Truncate", 5)
        count, options = _UINT32(payload, at)[0], payload[at + 4]
        if options & ~(_CASCADE | _RESTART_IDENTITY):
            raise ProtocolError(f"unknown bits in {options:#04x}", message="Truncate", field="options")
        at += 5
        if len(payload) - at != count * _RELATION_BYTES:
            raise ProtocolError(
                f"{count} relations do not fit the message", message="Truncate", field="relations"
            )
        relations = tuple(
            self.views.find(_UINT32(payload, offset)[0], "Truncate") for offset in range(at, len(payload), 4)
        )
        return m.Truncate(
            relations, bool(options & _CASCADE), bool(options & _RESTART_IDENTITY), payload, xid
        )

    def _message(self, payload: bytes) -> m.Message:
        xid, at = self._prefix(payload, "Message", _MESSAGE.size)
        flags, lsn = _MESSAGE.unpack_from(payload, at)
        if flags not in (0, 1):
            raise ProtocolError(f"unknown bits in {flags:#04x}", message="Message", field="flags")
        prefix, at = _string(payload, at + _MESSAGE.size, "Message", "prefix")
        if len(payload) < at + 4:
            raise ProtocolError("cut short", message="Message", field="content")
        length, at = _UINT32(payload, at)[0], at + 4
        if len(payload) - at != length:
            raise ProtocolError(
                f"claims {length} bytes, the message has {len(payload) - at}",
                message="Message",
                field="content",
            )
        return m.Message(bool(flags), lsn, prefix, payload[at:], payload, xid)

    # Descriptions of tables and types.

    def _relation(self, payload: bytes) -> Relation:
        xid, at = self._prefix(payload, "Relation", _RELATION_BYTES)
        oid = _UINT32(payload, at)[0]
        namespace, at = _string(payload, at + 4, "Relation", "namespace")
        name, at = _string(payload, at, "Relation", "relation name")
        if len(payload) < at + 3:
            raise ProtocolError("cut short", message="Relation", field="replica identity")
        identity, count, at = chr(payload[at]), payload[at + 1] << 8 | payload[at + 2], at + 3
        if identity not in "dnfi":
            raise ProtocolError("is not d, n, f or i", message="Relation", field="replica identity")
        columns = []
        for _ in range(count):
            flags = _byte(payload, at, "Relation", "column flags")
            if flags not in (0, 1):
                raise ProtocolError(f"unknown bits in {flags:#04x}", message="Relation", field="column flags")
            column, at = _string(payload, at + 1, "Relation", "column name")
            if len(payload) < at + _COLUMN.size:
                raise ProtocolError("cut short", message="Relation", field="column type")
            columns.append(Column(flags == 1, column, *_COLUMN.unpack_from(payload, at)))
            at += _COLUMN.size
        _end(payload, at, "Relation")
        named = self.views.current_types
        types = {column.type_oid: named[column.type_oid] for column in columns if column.type_oid in named}
        relation = Relation(
            oid, namespace, name, identity, tuple(columns), tuple(types.values()), payload, xid
        )
        self.views.describe(relation)
        return relation

    def _type(self, payload: bytes) -> Type:
        xid, at = self._prefix(payload, "Type", 4)
        oid = _UINT32(payload, at)[0]
        namespace, at = _string(payload, at + 4, "Type", "namespace")
        name, at = _string(payload, at, "Type", "name")
        _end(payload, at, "Type")
        described = Type(oid, namespace, name, payload, xid)
        self.views.describe(described)
        return described

    def _origin(self, payload: bytes) -> m.Origin:
        # Origin is the only content message without an xid in a stream block: logicalrep_write_origin has no such parameter.
        if len(payload) < 9:
            raise ProtocolError("cut short", message="Origin", field="commit LSN")
        name, at = _string(payload, 9, "Origin", "name")
        _end(payload, at, "Origin")
        return m.Origin(int.from_bytes(payload[1:9], "big"), name, self._xid)

    # The beginning and the end of transactions and stream blocks.

    def _begin(self, payload: bytes) -> m.Begin:
        fields = m.Begin(*_exactly(payload, _BEGIN, "Begin"))
        _lsn(fields.final_lsn, "Begin", "final LSN")
        return fields

    def _commit(self, payload: bytes) -> m.Commit:
        flags, *fields = _exactly(payload, _COMMIT, "Commit")
        _no_flags(flags, "Commit")
        return m.Commit(*fields)

    def _stream_start(self, payload: bytes) -> m.StreamStart:
        if self.streaming is Streaming.OFF:
            raise ProtocolError("arrived though streaming is off", message="Stream Start")
        if self._xid is not None:
            raise ProtocolError(f"arrived inside the block of {self._xid}", message="Stream Start")
        if len(payload) != 6:
            raise ProtocolError(f"has {len(payload)} bytes, not 6", message="Stream Start")
        xid, first = _UINT32(payload, 1)[0], payload[5]
        if first not in (0, 1):
            raise ProtocolError("is not 0 or 1", message="Stream Start", field="first segment")
        if xid == 0:
            raise ProtocolError("is not set", message="Stream Start", field="xid")
        self._xid = xid
        self.views.enter(xid)
        return m.StreamStart(xid, first == 1)

    def _stream_stop(self, payload: bytes) -> m.StreamStop:
        _end(payload, 1, "Stream Stop")
        if self._xid is None:
            raise ProtocolError("arrived outside of a block", message="Stream Stop")
        self._xid = None
        self.views.leave()
        return m.StreamStop()

    def _stream_commit(self, payload: bytes) -> m.StreamCommit:
        self._outside("Stream Commit")
        if len(payload) != 5 + _COMMIT.size:
            raise ProtocolError(f"has {len(payload)} bytes, not {5 + _COMMIT.size}", message="Stream Commit")
        flags, commit_lsn, end_lsn, commit_time = _COMMIT.unpack_from(payload, 5)
        _no_flags(flags, "Stream Commit")
        xid = _UINT32(payload, 1)[0]
        self.views.make_common(xid)
        return m.StreamCommit(xid, commit_lsn, end_lsn, commit_time)

    def _stream_abort(self, payload: bytes) -> m.StreamAbort:
        self._outside("Stream Abort")
        info = _ABORT_INFO.size if self.streaming is Streaming.PARALLEL else 0
        if len(payload) != 9 + info:
            raise ProtocolError(f"has {len(payload)} bytes, not {9 + info}", message="Stream Abort")
        xid, subxid = _UINT32(payload, 1)[0], _UINT32(payload, 5)[0]
        lsn, time = _ABORT_INFO.unpack_from(payload, 9) if info else (None, None)
        self.views.abort(xid, subxid)
        return m.StreamAbort(xid, subxid, lsn, time)

    # Two-phase commit.

    def _begin_prepare(self, payload: bytes) -> m.BeginPrepare:
        return m.BeginPrepare(*_prepare(payload, 1, "Begin Prepare"))

    def _prepare(self, payload: bytes) -> m.Prepare:
        _no_flags(_byte(payload, 1, "Prepare", "flags"), "Prepare")
        return m.Prepare(*_prepare(payload, 2, "Prepare"))

    def _commit_prepared(self, payload: bytes) -> m.CommitPrepared:
        _no_flags(_byte(payload, 1, "Commit Prepared", "flags"), "Commit Prepared")
        return m.CommitPrepared(*_prepare(payload, 2, "Commit Prepared"))

    def _rollback_prepared(self, payload: bytes) -> m.RollbackPrepared:
        name = "Rollback Prepared"
        _no_flags(_byte(payload, 1, name, "flags"), name)
        if len(payload) < 2 + _ROLLBACK.size:
            raise ProtocolError("cut short", message=name)
        prepare_end, rollback_end, prepare_time, rollback_time, xid = _ROLLBACK.unpack_from(payload, 2)
        _lsn(prepare_end, name, "prepare end LSN")
        _lsn(rollback_end, name, "rollback end LSN")
        gid, at = _string(payload, 2 + _ROLLBACK.size, name, "gid")
        _end(payload, at, name)
        return m.RollbackPrepared(prepare_end, rollback_end, prepare_time, rollback_time, xid, gid)

    def _stream_prepare(self, payload: bytes) -> m.StreamPrepare:
        self._outside("Stream Prepare")
        _no_flags(_byte(payload, 1, "Stream Prepare", "flags"), "Stream Prepare")
        fields = m.StreamPrepare(*_prepare(payload, 2, "Stream Prepare"))
        self.views.make_common(fields.xid)
        return fields

    def _prefix(self, payload: bytes, message: str, minimum: int) -> tuple[int | None, int]:
        """The xid of a content message within a stream block, and the offset of its own fields."""
        if self._xid is None:
            if len(payload) <= minimum:
                raise ProtocolError("cut short", message=message)
            return None, 1
        if len(payload) <= minimum + 4:
            raise ProtocolError("cut short", message=message)
        return _UINT32(payload, 1)[0], 5

    def _outside(self, message: str) -> None:
        if self._xid is not None:
            raise ProtocolError(f"arrived inside the block of {self._xid}", message=message)


def _prepare(payload: bytes, at: int, message: str) -> tuple[int, int, int, int, str]:
    if len(payload) < at + _PREPARE.size:
        raise ProtocolError("cut short", message=message)
    lsn, end_lsn, time, xid = _PREPARE.unpack_from(payload, at)
    _lsn(lsn, message, "LSN")
    _lsn(end_lsn, message, "end LSN")
    gid, at = _string(payload, at + _PREPARE.size, message, "gid")
    _end(payload, at, message)
    return lsn, end_lsn, time, xid, gid


def _exactly(payload: bytes, layout: struct.Struct, message: str) -> tuple[int, ...]:
    if len(payload) != 1 + layout.size:
        raise ProtocolError(f"has {len(payload)} bytes, not {1 + layout.size}", message=message)
    return layout.unpack_from(payload, 1)


def _byte(payload: bytes, at: int, message: str, field: str) -> int:
    if at >= len(payload):
        raise ProtocolError("cut short", message=message, field=field)
    return payload[at]


def _string(payload: bytes, at: int, message: str, field: str) -> tuple[str, int]:
    end = payload.find(0, at)
    if end < 0:
        raise ProtocolError("has no end", message=message, field=field)
    # A database in SQL_ASCII can send text that is not UTF-8: keep it readable and distinct.
    return payload[at:end].decode("utf-8", "backslashreplace"), end + 1


def _end(payload: bytes, at: int, message: str) -> None:
    if at != len(payload):
        raise ProtocolError(f"has {len(payload) - at} bytes after its end", message=message)


def _no_flags(flags: int, message: str) -> None:
    if flags:
        raise ProtocolError(f"unknown bits in {flags:#04x}", message=message, field="flags")


def _lsn(lsn: int, message: str, field: str) -> None:
    if lsn == 0:
        raise ProtocolError("is not set", message=message, field=field)
