"""Debezium's change events, as its PostgreSQL connector writes them with Kafka Connect's JSON converter, without schemas.

    {"before":null,"after":{"id":1},"source":{…},"transaction":null,"op":"c","ts_ms":…,"ts_us":…,"ts_ns":…}

A changed key is a delete and a create; a truncate is one event per table. ``docs/reference/formats.md`` lists the differences from
Debezium.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

import orjson

from aiorepl.checked import checked
from aiorepl.epoch import EPOCH_MICROSECONDS
from aiorepl.formats.columns import Columns, Frame, TableColumns
from aiorepl.formats.format import Format, by_table, commit_lsn, only_table
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.transactions.changes import Change, Delete, Message, RowChange, Truncate
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl_sinks.formats import debezium_values as values
from aiorepl_sinks.formats.changed_keys import by_key
from aiorepl_sinks.formats.debezium_counts import Counts

_OPERATIONS = {"insert": b"c", "read": b"r", "update": b"u", "delete": b"d"}
_MESSAGES = "LOGICAL_DECODING_MESSAGE"


@cache
def _version() -> str:
    # Cached, because parsing the package's metadata takes a millisecond.
    return version("aiorepl")


@checked("format debezium", empty=("name", "database"))
class DebeziumFormat(Format):
    """Writes Debezium's events.

    :param name: the logical name, Debezium's ``topic.prefix``; ``source.name``.
    :param database: ``source.db``.
    :param decimals: write numeric and money as ``"string"``, ``"double"`` or ``"precise"`` (base64 of the unscaled number,
        Debezium's default).
    :param boundaries: write transaction metadata: ``BEGIN`` and ``END`` events, and ``transaction`` in all others. Events
        must then be written in order.
    :raises ConfigurationError: an option has a value that it cannot have.
    """

    def __init__(
        self,
        *,
        name: str = "aiorepl",
        database: str = "",
        decimals: Literal["string", "double", "precise"] = "string",
        boundaries: bool = False,
    ) -> None:
        super().__init__(boundaries=boundaries)
        self._decimals = decimals
        self._tables = TableColumns(self._columns)
        self._counts = Counts()
        self._database = orjson.dumps(database)
        self._head = b'"source":{"version":%b,"connector":"postgresql","name":%b,"ts_ms":' % (
            orjson.dumps(_version()),
            orjson.dumps(name),
        )

    @classmethod
    def defaults(cls, position: Position) -> dict[str, Any]:
        return {"name": position.slot, "database": position.database or ""}

    def events(self, parts: Iterable[Slice]) -> Iterator[bytes]:
        """Yield the events of consecutive slices; a retried batch gets the same transaction metadata."""
        parts = list(parts)
        if self.boundaries and parts:
            self._counts.resume(parts[0])
        return super().events(parts)

    def split(self, change: Change) -> tuple[Change, ...]:
        """Split a truncate by table, and an update of the key into a delete and an insert.

        Changes of schemas and publications are dropped, because Debezium's PostgreSQL connector does not report them.
        """
        if isinstance(change, (SchemaChange, PublicationChange, Resync)):
            return ()
        if isinstance(change, Truncate):
            return by_table(change)
        return by_key(change)

    def event(self, change: Change) -> bytes:
        """Return a change as an envelope."""
        if isinstance(change, RowChange):
            return self._row(change)
        if isinstance(change, Truncate):
            relation = only_table(change)
            return self._envelope(change, b"null", b"null", relation.schema, relation.name, b"t")
        if isinstance(change, Message):
            return self._message(change)
        raise TypeError(f"Debezium has no event for {type(change).__name__}")

    def key(self, change: Change) -> bytes | None:
        """Return the key of a change's event: an object with the replica identity's columns, or a message's prefix.

        ``None`` for a truncate, and if no column identifies the row (replica identity FULL or NOTHING).
        """
        if isinstance(change, Message):
            return orjson.dumps({"prefix": change.prefix})
        if not isinstance(change, RowChange) or not change.relation.key:
            return None
        return _object(self._tables(change.layout).key(change))

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``BEGIN`` event."""
        self._counts.reset(transaction)
        return self._metadata(transaction, "BEGIN", None, None)

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``END`` event, with the number of events."""
        total, tables = self._counts.of(transaction)
        counted = [{"data_collection": name, "event_count": count} for name, count in tables.items()]
        return self._metadata(transaction, "END", total, counted)

    def _row(self, change: RowChange) -> bytes:
        table = self._tables(change.layout)
        before = table.old(change)
        return self._envelope(
            change,
            b"null" if before is None else _object(before),
            b"null" if isinstance(change, Delete) else _object(table.new(change)),
            change.schema,
            change.table,
            _OPERATIONS[change.kind],
        )

    def _message(self, change: Message) -> bytes:
        body = {"prefix": change.prefix, "content": base64.b64encode(change.content).decode()}
        rest = self._rest(change, "", "", _MESSAGES, b"m")
        return b'{%b,"message":%b}' % (rest, orjson.dumps(body))

    def _envelope(
        self, change: Change, before: bytes, after: bytes, schema: str, table: str, operation: bytes
    ) -> bytes:
        rest = self._rest(change, schema, table, f"{schema}.{table}", operation)
        return b'{"before":%b,"after":%b,%b}' % (before, after, rest)

    def _rest(self, change: Change, schema: str, table: str, counted: str, operation: bytes) -> bytes:
        """Return the fields from ``source`` to the timestamps."""
        transaction = change.transaction
        identity = commit_lsn(change)
        lsn, snapshot = _position(change)
        ms, us, ns = _times(transaction)
        return b"".join(
            (
                self._head,
                b'%b,"snapshot":"%b","db":' % (ms, snapshot),
                self._database,
                b',"sequence":"[\\"%d\\",\\"%d\\"]","ts_us":%b,"ts_ns":%b,'
                % (identity, change.ordinal, us, ns),
                b'"schema":%b,"table":%b,' % (orjson.dumps(schema), orjson.dumps(table)),
                b'"txId":%b,"lsn":%d,"xmin":null,' % (_xid(transaction), lsn),
                b'"origin":%b,"origin_lsn":null},' % orjson.dumps(transaction and transaction.origin),
                b'"transaction":%b,' % self._block(change, counted),
                b'"op":"%b","ts_ms":%b,"ts_us":%b,"ts_ns":%b' % (operation, ms, us, ns),
            )
        )

    def _block(self, change: Change, counted: str) -> bytes:
        transaction = change.transaction
        if not self.boundaries or transaction is None:
            return b"null"
        total, of_table = self._counts.count(transaction, change.ordinal, counted)
        return orjson.dumps({"id": _id(transaction), "total_order": total, "data_collection_order": of_table})

    def _metadata(self, transaction: Transaction, status: str, count: int | None, tables: Any) -> bytes:
        body = {"status": status, "id": _id(transaction), "event_count": count, "data_collections": tables}
        return orjson.dumps(body)[:-1] + b',"ts_ms":%b}' % _times(transaction)[0]

    def _columns(self, layout: Layout) -> Columns:
        types = layout.types
        return Columns(
            layout,
            lambda column: Frame(orjson.dumps(column.name) + b":", unchanged=values.unchanged(types, column)),
            lambda column, kind: values.encoder(types, column, kind, self._decimals),
        )


def _object(fragments: list[bytes]) -> bytes:
    return b"{" + b",".join(fragments) + b"}"


def _id(transaction: Transaction) -> str:
    return f"{transaction.xid}:{int(transaction.commit_lsn)}"


def _xid(transaction: Transaction | None) -> bytes:
    return b"%d" % transaction.xid if transaction is not None and transaction.xid else b"null"


def _position(change: Change) -> tuple[LSN, bytes]:
    """Return ``source.lsn`` and ``source.snapshot``.

    A row of a snapshot has the snapshot's LSN. In the order of identities, the chunks of an initial snapshot come before this
    LSN. The chunks of a table that is read while the stream runs come after it: Debezium's incremental snapshot.
    """
    lsn, transaction = commit_lsn(change), change.transaction
    if transaction is None or transaction.xid:
        return lsn, b"false"
    chunk = transaction.snapshot
    if chunk is None:  # None in journals of versions whose snapshots had no chunks
        return lsn, b"true"
    return chunk.snapshot_lsn, b"true" if lsn < chunk.snapshot_lsn else b"incremental"


def _times(transaction: Transaction | None) -> tuple[bytes, bytes, bytes]:
    """Return the commit time in ms, µs and ns since 1970; a message between transactions has none."""
    if transaction is None:
        return b"null", b"null", b"null"
    us = transaction.commit_timestamp + EPOCH_MICROSECONDS
    return b"%d" % (us // 1000), b"%d" % us, b"%d" % (us * 1000)
