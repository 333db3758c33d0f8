"""The native format: one JSON object per change, as ``aiorepl tail`` prints it and file sinks write it.

``native_rows`` writes row events; this module writes all other events.

A row event::

    {"kind":"insert","schema":"public","table":"orders","xid":741,"commit_lsn":"0/171B2A8","ordinal":0,
     "commit_time":"2026-11-21T08:00:00.123456Z","origin":null,"key":{"id":1},"new":{…},"old":null,"unchanged":[]}
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import orjson

from aiorepl.checked import checked
from aiorepl.formats import Values
from aiorepl.formats.format import Format, iso_time
from aiorepl.formats.native_rows import NativeRows, transaction_fields
from aiorepl.formats.pieces import Piece, Pieces, joined
from aiorepl.formats.publication import publication_event
from aiorepl.formats.schema import schema_event
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate, is_large
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import SnapshotChunk, Transaction

_TRUE_FALSE = {True: b"true", False: b"false"}


@checked("format native")
class NativeFormat(Format):
    """Writes native events. Keeps the prepared labels and encoders of each relation.

    :param values: ``"typed"`` for JSON's types (numbers, booleans, lists, objects) where they fit, ``"text"`` for PostgreSQL's
        text of every column.
    :param boundaries: write events for the begin and the end of a transaction too.
    :raises ConfigurationError: an option has a value that it cannot have.
    """

    supports_prepared = True
    has_resync = True

    def __init__(self, *, values: Values = "typed", boundaries: bool = False) -> None:
        super().__init__(boundaries=boundaries)
        self._rows = NativeRows(values == "typed")

    def lines(self, parts: Iterable[Slice]) -> bytes | bytearray:
        pieces = self._pieces(parts)
        return pieces.out if pieces.contiguous else joined(pieces, pieces.least)

    def pieces(self, parts: Iterable[Slice]) -> Iterable[Piece]:
        """Return the text of ``lines`` in pieces; a large string without escapes is a view of its message."""
        return self._pieces(parts)

    def _pieces(self, parts: Iterable[Slice]) -> Pieces:
        pieces = Pieces()
        out = pieces.out
        for part in parts:
            if (begin := self._begin_event(part)) is not None:
                out += begin + b"\n"
            self._rows.lines(pieces, part.changes, self.event)
            if (end := self._end_event(part)) is not None:
                out += end + b"\n"
        return pieces

    def event(self, change: Change) -> bytes:
        """Return a change as a JSON object."""
        if isinstance(change, RowChange):
            if is_large(change):
                pieces = self.event_pieces(change)
                return joined(pieces, pieces.least)
            return self._row(change)
        if isinstance(change, Truncate):
            return self._truncate(change)
        if isinstance(change, Message):
            return self._message(change)
        if isinstance(change, SchemaChange):
            return schema_event(change)
        if isinstance(change, PublicationChange):
            return publication_event(change)
        if isinstance(change, Resync):
            after = None if change.after is None else str(change.after)
            event = {"kind": "resync", "lsn": str(change.lsn), "after": after, "reason": change.reason}
            return orjson.dumps(event)
        raise TypeError(f"no native event for {type(change).__name__}")

    def event_pieces(self, change: RowChange) -> Pieces:
        """Return the event of a row in pieces; a large string without escapes is a view of its message."""
        pieces = Pieces()
        self._rows.row(pieces.out, change, pieces)
        return pieces

    def _row(self, change: RowChange) -> bytes:
        out = bytearray()
        self._rows.row(out, change, None)
        return bytes(out)

    def key(self, change: Change) -> bytes | None:
        """Return the ``key`` of a row's event; ``None`` if no column identifies the row."""
        return self._rows.key(change) if isinstance(change, RowChange) else None

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``begin`` event."""
        return orjson.dumps({"kind": "begin", **transaction_fields(transaction)})

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``commit``, ``prepare``, ``commit_prepared`` or ``rollback_prepared`` event."""
        return orjson.dumps(_end(part, transaction))

    def _truncate(self, change: Truncate) -> bytes:
        self._rows.enter(change.transaction)
        tables = orjson.dumps([{"schema": table.schema, "table": table.name} for table in change.relations])
        return b"".join(
            (
                b'{"kind":"truncate","tables":',
                tables,
                self._rows.header,
                b"%d" % change.ordinal,
                self._rows.stamp,
                b',"cascade":',
                _TRUE_FALSE[change.cascade],
                b',"restart_identity":',
                _TRUE_FALSE[change.restart_identity],
                b"}",
            )
        )

    def _message(self, change: Message) -> bytes:
        body: dict[str, Any] = {"kind": "message", "prefix": change.prefix}
        body["content"] = base64.b64encode(change.content).decode()
        body["transactional"] = change.transactional
        if change.transaction is None:
            body["lsn"] = str(change.lsn)
        else:
            body |= transaction_fields(change.transaction)
            body["ordinal"] = change.ordinal
            body["origin"] = change.transaction.origin
        return orjson.dumps(body)


def _chunk(chunk: SnapshotChunk) -> dict[str, Any]:
    return {
        "lsn": str(chunk.snapshot_lsn),
        "schema": chunk.schema,
        "table": chunk.table,
        "chunk": chunk.number,
        "last_of_table": chunk.last_of_table,
        "last": chunk.last,
    }


def _end(part: Slice, transaction: Transaction) -> dict[str, Any]:
    """Return the event for the end of a transaction."""
    end_lsn = str(part.end_lsn)
    message = part.two_phase
    if not transaction.prepared or message is None:
        event = {"kind": "commit", **transaction_fields(transaction), "end_lsn": end_lsn}
        return event if transaction.snapshot is None else event | {"snapshot": _chunk(transaction.snapshot)}
    named = {"gid": message.gid, "xid": message.xid}
    if isinstance(message, m.CommitPrepared):
        time = iso_time(message.commit_time)
        lsn = str(LSN(message.commit_lsn))
        return {
            "kind": "commit_prepared",
            **named,
            "commit_lsn": lsn,
            "end_lsn": end_lsn,
            "commit_time": time,
        }
    if isinstance(message, m.RollbackPrepared):
        prepared, rolled_back = iso_time(message.prepare_time), iso_time(message.rollback_time)
        times = {"prepare_time": prepared, "rollback_time": rolled_back}
        return {"kind": "rollback_prepared", **named, "end_lsn": end_lsn, **times}
    time = iso_time(message.prepare_time)
    lsn = str(LSN(message.prepare_lsn))
    return {"kind": "prepare", **named, "prepare_lsn": lsn, "end_lsn": end_lsn, "prepare_time": time}
