"""wal2json's output with ``format-version`` 2: one JSON object per row, and one at the begin and end of a transaction.

    {"action":"I","schema":"public","table":"t","columns":[{"name":"a","type":"integer","value":1}]}

Parameters have wal2json's names and defaults. ``docs/reference/formats.md`` lists what pgoutput does not send.
"""

from __future__ import annotations

import struct
from typing import Any

import orjson

from aiorepl.checked import checked
from aiorepl.formats.columns import Columns, Frame, TableColumns
from aiorepl.formats.format import Format, by_table, commit_lsn, event_id, only_table
from aiorepl.formats.native import NativeFormat
from aiorepl.formats.type_names import type_name
from aiorepl.pgoutput.relations import Column
from aiorepl.transactions.changes import Change, Delete, Message, RowChange, Truncate, Update
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.codec import Encoder
from aiorepl.values.codec import Format as Wire
from aiorepl.values.registry import Types
from aiorepl.values.types import BUILTIN

# wal2json knows no snapshots, so a snapshot's rows are inserts.
_ACTIONS = {"insert": "I", "read": "I", "update": "U", "delete": "D"}
_NUMBERS = ("int2", "int4", "int8", "oid", "float4", "float8", "numeric")
_TIMESTAMP = Types().text(1184, Wire.BINARY)


@checked("format wal2json")
class Wal2JsonFormat(Format):
    """Writes what wal2json writes.

    :param boundaries: wal2json's ``include-transaction``. wal2json has it on by default.
    :param include_lsn: add ``lsn``, the commit LSN, to every event, and ``nextlsn`` to the end of a transaction.
    :param include_pk: add ``pk``, the columns of the replica identity if that is the primary key, otherwise empty.
    :param include_event_id: add ``id``, the ``event_id``, which wal2json does not have.
    """

    def __init__(
        self,
        *,
        boundaries: bool = False,
        include_xids: bool = False,
        include_timestamp: bool = False,
        include_lsn: bool = False,
        include_schemas: bool = True,
        include_types: bool = True,
        include_typmod: bool = True,
        include_type_oids: bool = False,
        include_domain_data_type: bool = False,
        include_pk: bool = False,
        include_event_id: bool = False,
        numeric_data_types_as_string: bool = False,
    ) -> None:
        super().__init__(boundaries=boundaries)
        self._xids = include_xids
        self._timestamp = include_timestamp
        self._lsn = include_lsn
        self._schemas = include_schemas
        self._types = include_types
        self._typmod = include_typmod
        self._type_oids = include_type_oids
        self._domain_data_type = include_domain_data_type
        self._pk = include_pk
        self._event_id = include_event_id
        self._as_string = numeric_data_types_as_string
        self._tables = TableColumns(self._columns)
        self._native = NativeFormat()

    def split(self, change: Change) -> tuple[Change, ...]:
        """Split a truncate by table, and drop changes of schemas and publications, which wal2json does not report."""
        if isinstance(change, (SchemaChange, PublicationChange, Resync)):
            return ()
        return by_table(change) if isinstance(change, Truncate) else (change,)

    def event(self, change: Change) -> bytes:
        """Return a change as a JSON object."""
        if isinstance(change, RowChange):
            return self._row(change)
        if isinstance(change, Truncate):
            relation = only_table(change)
            return orjson.dumps(self._head("T", change) | self._named(relation.schema, relation.name))
        if isinstance(change, Message):
            return self._message(change)
        raise TypeError(f"wal2json has no event for {type(change).__name__}")

    def key(self, change: Change) -> bytes | None:
        """Return the native format's key; wal2json has none."""
        return self._native.key(change)

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``B`` event."""
        return orjson.dumps({"action": "B"} | self._when(transaction))

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``C`` event."""
        nextlsn = {"nextlsn": str(part.end_lsn)} if self._lsn else {}
        return orjson.dumps({"action": "C"} | self._when(transaction) | nextlsn)

    def _row(self, change: RowChange) -> bytes:
        table = self._tables(change.layout)
        named = self._named(change.schema, change.table)
        parts = [orjson.dumps(self._head(_ACTIONS[change.kind], change) | named)[:-1]]
        if not isinstance(change, Delete):
            parts.append(b',"columns":[' + b",".join(table.new(change)) + b"]")
        identity = table.old(change)
        if identity is None and isinstance(change, Update):
            identity = table.key(change)
        if identity is not None:
            parts.append(b',"identity":[' + b",".join(identity) + b"]")
        if self._pk:
            parts.append(b',"pk":' + self._primary_key(change.layout))
        return b"".join((*parts, b"}"))

    def _message(self, change: Message) -> bytes:
        # wal2json writes a C string, which ends at a zero byte.
        content = change.content.partition(b"\0")[0].decode("utf-8", "replace")
        body = {"transactional": change.transactional, "prefix": change.prefix, "content": content}
        return orjson.dumps(self._head("M", change) | body)

    def _head(self, action: str, change: Change) -> dict[str, Any]:
        head = {"action": action, **self._when(change.transaction)}
        if self._lsn:
            head["lsn"] = str(commit_lsn(change))
        if self._event_id:
            head["id"] = event_id(change)
        return head

    def _when(self, transaction: Transaction | None) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._xids:
            fields["xid"] = None if transaction is None else transaction.xid
        if self._timestamp:
            fields["timestamp"] = None if transaction is None else _moment(transaction.commit_timestamp)
        if self._lsn and transaction is not None:
            fields["lsn"] = str(transaction.commit_lsn)
        return fields

    def _named(self, schema: str, table: str) -> dict[str, str]:
        return {"schema": schema, "table": table} if self._schemas else {"table": table}

    def _columns(self, layout: Layout) -> Columns:
        types = layout.types

        def frame(column: Column) -> Frame:
            return Frame(orjson.dumps(self._described(types, column))[:-1] + b',"value":', b"}")

        return Columns(layout, frame, lambda column, kind: _encoder(types, column, kind, self._as_string))

    def _described(self, types: Types, column: Column) -> dict[str, Any]:
        described: dict[str, Any] = {"name": column.name}
        if self._types:
            oid, modifier = column.type_oid, column.type_modifier if self._typmod else -1
            base = types.base(oid) if self._domain_data_type else None
            if base is not None and base.oid != oid:
                oid, modifier = base.oid, -1
            described["type"] = type_name(types, oid, modifier)
        if self._type_oids:
            described["typeoid"] = column.type_oid
        return described

    def _primary_key(self, layout: Layout) -> bytes:
        relation = layout.relation
        indexes = relation.key if relation.replica_identity == "d" else ()
        return orjson.dumps([self._described(layout.types, relation.columns[index]) for index in indexes])


def _encoder(types: Types, column: Column, kind: int, as_string: bool) -> Encoder:
    """Return an encoder: JSON numbers and booleans for columns of such a type, text for domains and arrays over one."""
    oid = column.type_oid
    info = BUILTIN.get(oid)
    name = "" if info is None else info.name
    if name == "bool":
        return types.json_encoder(oid, kind)
    text = types.text(oid, kind)
    if name in _NUMBERS and not as_string:
        # Neither infinity nor NaN is a number in JSON.
        return lambda raw: b"null" if (value := text(raw))[-1] in "Nnfy" else value.encode()
    if name == "bytea":
        return lambda raw: orjson.dumps(text(raw)[2:])
    return types.json_encoder(oid, kind, typed=False)


def _moment(timestamp: int) -> str:
    return _TIMESTAMP(struct.pack("!q", timestamp))
