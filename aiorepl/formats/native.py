"""The native event: one JSON object a change, the form that ``aiorepl tail`` prints and the file sinks write.

Assembled from fragments, straight from the columns' bytes: what a relation contributes (names, quoting, an encoder a
column) is prepared once a relation, so that a row costs its columns and one join.

A row event::

    {"kind":"insert","schema":"public","table":"orders","xid":741,"commit_lsn":"0/171B2A8","ordinal":0,
     "commit_time":"2026-11-21T08:00:00.123456Z","origin":null,"key":{"id":1},"new":{…},"old":null,"unchanged":[]}
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import orjson

from aiorepl.errors import ConfigurationError, DataError
from aiorepl.formats.format import Format, iso_time
from aiorepl.formats.schema import schema_event
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.tuples import TEXT, UNCHANGED
from aiorepl.transactions.changes import (
    Change,
    Delete,
    Insert,
    Layout,
    Message,
    Raw,
    RowChange,
    Truncate,
    Update,
)
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.transaction import Slice, Transaction

_TRUE_FALSE = {True: b"true", False: b"false"}


class NativeFormat(Format):
    """Writes native events. Keeps a little for each relation it has seen.

    :param values: ``"typed"`` for JSON's numbers, booleans, lists and JSON where the type has them, ``"text"`` for
        PostgreSQL's own text of every column.
    :param boundaries: also write an event where a transaction begins and where it has committed.
    :raises ConfigurationError: for other ``values``.
    """

    takes_prepared = True

    def __init__(self, *, values: str = "typed", boundaries: bool = False) -> None:
        super().__init__(boundaries=boundaries)
        if values not in ("typed", "text"):
            raise ConfigurationError(f"values {values!r} does not exist: it is typed or text")
        self._typed = values == "typed"
        self._tables: dict[int, _Table] = {}
        self._transaction: Transaction | None = None
        self._header = b""

    def event(self, change: Change) -> bytes:
        """One change as a JSON object."""
        if isinstance(change, RowChange):
            return self._row(change)
        if isinstance(change, Truncate):
            return self._truncate(change)
        if isinstance(change, Message):
            return self._message(change)
        if isinstance(change, SchemaChange):
            return schema_event(change)
        raise TypeError(f"no native form for {type(change).__name__}")

    def key(self, change: Change) -> bytes | None:
        """The ``key`` of a row's event by itself; ``None`` where no column identifies the row."""
        if not isinstance(change, RowChange):
            return None
        table = self._table(change.layout)
        if not table.key_names:
            return None
        if change.raw_old is not None:
            return table.object(change.raw_old, change.old_kinds, table.key_names)
        return table.object(change.raw_new or [], change.new_kinds, table.key_names)

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """``begin``."""
        return orjson.dumps({"kind": "begin", **_fields(transaction)})

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """``commit``, ``prepare``, ``commit_prepared`` or ``rollback_prepared``."""
        return orjson.dumps(_end(part, transaction))

    def _row(self, change: RowChange) -> bytes:
        table = self._table(change.layout)
        if change.transaction is not self._transaction:
            self._enter(change.transaction)
        old = key = b"null"
        new, unchanged = b"null", b"[]"
        if isinstance(change, Insert):
            raw = change.raw_new
            new = table.object(raw, change.new_kinds)
            if table.key_names:
                key = table.object(raw, change.new_kinds, table.key_names)
            if UNCHANGED in raw:
                unchanged = orjson.dumps(change.unchanged)
        else:
            assert isinstance(change, (Update, Delete))
            raw_old = change.raw_old
            if raw_old is not None:
                places = None if change.message.old_kind == "O" else table.key_names
                old = table.object(raw_old, change.old_kinds, places)
            if isinstance(change, Update):
                raw = change.raw_new
                new = table.object(raw, change.new_kinds)
                if names := change.unchanged:
                    unchanged = orjson.dumps(names)
            if table.key_names:
                if raw_old is not None:
                    key = table.object(raw_old, change.old_kinds, table.key_names)
                else:
                    key = table.object(change.raw_new or [], change.new_kinds, table.key_names)
        return b"".join(
            (
                table.heads[change.kind],
                self._header,
                b"%d" % change.ordinal,
                self._stamp,
                key,
                b',"new":',
                new,
                b',"old":',
                old,
                b',"unchanged":',
                unchanged,
                b"}",
            )
        )

    def _truncate(self, change: Truncate) -> bytes:
        self._enter(change.transaction)
        tables = orjson.dumps([{"schema": table.schema, "table": table.name} for table in change.relations])
        return b"".join(
            (
                b'{"kind":"truncate","tables":',
                tables,
                self._header,
                b"%d" % change.ordinal,
                self._stamp[: -len(b',"key":')],
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
            body |= _fields(change.transaction)
            body["ordinal"] = change.ordinal
            body["origin"] = change.transaction.origin
        return orjson.dumps(body)

    def _enter(self, transaction: Transaction | None) -> None:
        if transaction is None:
            raise TypeError("a row outside of a transaction")
        self._transaction = transaction
        fields = _fields(transaction)
        lsn, time, origin = map(
            orjson.dumps, (fields["commit_lsn"], fields["commit_time"], transaction.origin)
        )
        self._header = b',"xid":%d,"commit_lsn":%b,"ordinal":' % (transaction.xid, lsn)
        self._stamp = b',"commit_time":%b,"origin":%b,"key":' % (time, origin)

    def _table(self, layout: Layout) -> _Table:
        table = self._tables.get(layout.relation.oid)
        if table is None or table.layout is not layout:
            table = self._tables[layout.relation.oid] = _Table(layout, self._typed)
        return table


class _Table:
    """What a relation contributes to its events."""

    def __init__(self, layout: Layout, typed: bool) -> None:
        self.layout = layout
        self._typed = typed
        relation = layout.relation
        schema, name = orjson.dumps(relation.schema), orjson.dumps(relation.name)
        self.heads = {
            kind: b'{"kind":"%b","schema":%b,"table":%b' % (kind.encode(), schema, name)
            for kind in ("insert", "update", "delete")
        }
        labels = [orjson.dumps(column) + b":" for column in relation.names]
        encoders = [self._encoder(place, TEXT) for place in range(len(labels))]
        self.names = list(zip(layout.all, labels, encoders, strict=True))
        self.key_names = [self.names[place] for place in relation.key]
        self._binary: dict[tuple[int, int], Callable[[bytes], bytes]] = {}

    def object(
        self,
        columns: list[Raw],
        kinds: bytes | None,
        names: list[tuple[int, bytes, Callable[[bytes], bytes]]] | None = None,
    ) -> bytes:
        """Columns as a JSON object; those that were not sent are left out."""
        fragments: list[bytes] = []
        append = fragments.append
        for place, label, encode in self.names if names is None else names:
            raw = columns[place]
            if raw is None:
                append(label + b"null")
            elif raw is not UNCHANGED:
                if kinds is not None and kinds[place] != TEXT:
                    encode = self._other(place, kinds[place])  # noqa: PLW2901
                try:
                    append(label + encode(raw))
                except ValueError as error:
                    column = self.layout.relation.columns[place]
                    raise DataError(f"{self.layout.relation}.{column.name}: {error}") from None
        return b"{" + b",".join(fragments) + b"}"

    def _encoder(self, place: int, kind: int) -> Callable[[bytes], bytes]:
        oid = self.layout.relation.columns[place].type_oid
        return self.layout.types.json_encoder(oid, kind, typed=self._typed)

    def _other(self, place: int, kind: int) -> Callable[[bytes], bytes]:
        encoder = self._binary.get((place, kind))
        if encoder is None:
            encoder = self._binary[place, kind] = self._encoder(place, kind)
        return encoder


def _fields(transaction: Transaction) -> dict[str, Any]:
    if transaction.prepared:
        return {"xid": transaction.xid, "commit_lsn": None, "commit_time": None}
    return {
        "xid": transaction.xid,
        "commit_lsn": str(transaction.commit_lsn),
        "commit_time": iso_time(transaction.commit_timestamp),
    }


def _end(part: Slice, transaction: Transaction) -> dict[str, Any]:
    """The event of a transaction's last slice."""
    end_lsn = str(part.end_lsn)
    message = part.two_phase
    if not transaction.prepared or message is None:
        return {"kind": "commit", **_fields(transaction), "end_lsn": end_lsn}
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
