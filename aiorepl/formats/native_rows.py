"""Row events of the native format, written straight from the columns' bytes into one buffer.

Labels, and the style or encoder of each column's type, are prepared once per relation. Compiled, a row of eight columns
takes half a microsecond; joining the results of one encoder call per column took six. Large columns are not copied into the buffer
(``formats/pieces.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson

from aiorepl import byteops
from aiorepl.formats.format import iso_time
from aiorepl.formats.pieces import Pieces, is_utf8
from aiorepl.pgoutput.tuples import BINARY, TEXT, UNCHANGED, LargeColumn
from aiorepl.transactions.changes import Change, RowChange, is_large, uncut
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.forms import Text
from aiorepl.values.styles import Style, put_styled

# The compiled form declares these names as C integers.
_TEXT: Final = TEXT
_STRING, _QUOTE = int(Style.STRING), int(Style.QUOTE)


class NativeRows:
    """Writes row events. Keeps the prepared labels and encoders of each relation.

    :param typed: write JSON types where they fit; otherwise PostgreSQL's text of every column.
    """

    def __init__(self, typed: bool) -> None:
        self._typed = typed
        self._tables: dict[int, _Table] = {}
        self._transaction: Transaction | None = None
        self.header = b""
        """The fields before the ordinal, in events of the current transaction."""
        self.stamp = b""
        """The fields after the ordinal, in events of the current transaction."""

    def lines(self, pieces: Pieces, changes: Iterable[Change], other: Callable[[Change], bytes]) -> None:
        """Append the events of the changes, each with a line end.

        :param other: returns the event of a change that is not a row change.
        :raises DataError: the bytes of a column do not match its type.
        """
        out = pieces.out
        for change in changes:
            if isinstance(change, RowChange):
                self.row(out, change, pieces)
            else:
                out += other(change)
            byteops.put(out, b"\n")

    def row(self, out: bytearray, change: RowChange, pieces: Pieces | None) -> None:
        """Append the event of a row change.

        :param pieces: the owner of ``out``, which takes the large columns; ``None`` copies large columns into ``out``.
        """
        table = self._table(change.layout)
        if change.transaction is not self._transaction:
            self.enter(change.transaction)
        if pieces is not None and is_large(change):
            new, old = uncut(change)
        else:
            pieces = None
            new, old = change.raw_new, change.raw_old
        new_kinds, old_kinds = change.new_kinds, change.old_kinds
        whole = change.message.old_kind == "O"
        byteops.put(out, table.heads[change.kind])
        byteops.put(out, self.header)
        byteops.put_number(out, change.ordinal)
        byteops.put(out, self.stamp)
        byteops.put(out, b',"key":')
        if not table.key:
            byteops.put(out, b"null")
        elif old is not None:
            table.write(out, old, old_kinds, table.key, pieces)
        else:
            table.write(out, new or [], new_kinds, table.key, pieces)
        omitted = False
        byteops.put(out, b',"new":')
        if new is None:
            byteops.put(out, b"null")
        else:
            omitted = table.write(out, new, new_kinds, table.all, pieces)
        byteops.put(out, b',"old":')
        if old is None:
            byteops.put(out, b"null")
        else:
            table.write(out, old, old_kinds, table.all if whole else table.key, pieces)
        byteops.put(out, b',"unchanged":')
        if new is not None and (omitted or whole):
            byteops.put(out, orjson.dumps(change.unchanged))
        else:
            byteops.put(out, b"[]")
        byteops.put(out, b"}")

    def key(self, change: RowChange) -> bytes | None:
        """Return the ``key`` of a row's event; ``None`` if no column identifies the row."""
        table = self._table(change.layout)
        if not table.key:
            return None
        out = bytearray()
        if change.raw_old is not None:
            table.write(out, change.raw_old, change.old_kinds, table.key, None)
        else:
            table.write(out, change.raw_new or [], change.new_kinds, table.key, None)
        return bytes(out)

    def enter(self, transaction: Transaction | None) -> None:
        """Set the transaction of the following events."""
        if transaction is None:
            raise TypeError("a row change outside a transaction")
        self._transaction = transaction
        lsn = time = b"null"
        if not transaction.prepared:
            lsn = b'"%b"' % str(transaction.commit_lsn).encode()
            time = b'"%b"' % iso_time(transaction.commit_timestamp).encode()
        origin = b"null" if transaction.origin is None else orjson.dumps(transaction.origin)
        self.header = b',"xid":%d,"commit_lsn":%b,"ordinal":' % (transaction.xid, lsn)
        self.stamp = b',"commit_time":%b,"origin":%b' % (time, origin)

    def _table(self, layout: Layout) -> _Table:
        table = self._tables.get(layout.relation.oid)
        if table is None or table.layout is not layout:
            table = self._tables[layout.relation.oid] = _Table(layout, self._typed)
        return table


class _Table:
    """The parts of row events that are the same for every row of a relation."""

    def __init__(self, layout: Layout, typed: bool) -> None:
        self.layout = layout
        self._typed = typed
        relation = layout.relation
        schema, name = orjson.dumps(relation.schema), orjson.dumps(relation.name)
        self.heads = {
            kind: b'{"kind":"%b","schema":%b,"table":%b' % (kind.encode(), schema, name)
            for kind in ("insert", "read", "update", "delete")
        }
        labels = [orjson.dumps(column) + b":" for column in relation.names]
        self._first = [b"{" + label for label in labels]
        self._further = [b"," + label for label in labels]
        self._styles = bytes(
            [layout.types.json_style(column.type_oid, typed=typed) for column in relation.columns]
        )
        oids = [column.type_oid for column in relation.columns]
        self._texts = [layout.types.writer(oid, TEXT) for oid in oids]
        self._binaries = [layout.types.writer(oid, BINARY) for oid in oids]
        self.all = layout.all
        self.key = relation.key
        self._encoders: dict[tuple[int, int], Callable[[bytes], bytes]] = {}

    def write(
        self,
        out: bytearray,
        columns: list[Any],
        kinds: bytes | None,
        indexes: tuple[int, ...],
        pieces: Pieces | None,
    ) -> bool:
        """Append columns as a JSON object. Omit columns that were not sent, and return whether there was one.

        :param pieces: takes the large columns; ``None``: there are none.
        """
        labels = self._first
        omitted = False
        for index in indexes:
            value = columns[index]
            if value is UNCHANGED:
                omitted = True
                continue
            byteops.put(out, labels[index])
            labels = self._further
            if value is None:
                byteops.put(out, b"null")
                continue
            kind = _TEXT if kinds is None else kinds[index]
            if pieces is not None and isinstance(value, LargeColumn):
                self._put_large(pieces, index, kind, value)
                continue
            raw = value
            if kind != _TEXT or not put_styled(out, raw, 0, len(raw), self._styles[index]):
                self._put(out, index, kind, raw)
        byteops.put(out, b"{}" if labels is self._first else b"}")
        return omitted

    def _put_large(self, pieces: Pieces, index: int, kind: int, column: LargeColumn) -> None:
        out, style = pieces.out, self._styles[index]
        form = self._texts[index] if kind == _TEXT else self._binaries[index]
        quoted = kind == _TEXT and style == _QUOTE
        data: Any = column.payload  # a pointer in the compiled form
        if not quoted and ((kind == _TEXT and style == _STRING) or isinstance(form, Text)):
            quoted = byteops.is_plain_in(data, column.start, column.end)
            if not quoted and is_utf8(column):
                byteops.put(out, b'"')
                pieces.insert(column, escape=True)
                byteops.put(out, b'"')
                return
        if quoted:
            byteops.put(out, b'"')
            pieces.insert(column, escape=False)
            byteops.put(out, b'"')
            return
        raw = bytes(column.view())
        if kind != _TEXT or not put_styled(out, raw, 0, len(raw), style):
            self._put(out, index, kind, raw)

    def _put(self, out: bytearray, index: int, kind: int, raw: bytes) -> None:
        form = self._texts[index] if kind == _TEXT else self._binaries[index]
        if form is not None:
            size = len(out)
            try:
                if self._typed:
                    form.put_json(out, raw)
                else:
                    form.put_string(out, raw)
                return
            except Exception:  # noqa: BLE001 - the encoder raises it again, with its reason
                del out[size:]
        byteops.put(out, self._encoded(index, kind, raw))

    def _encoded(self, index: int, kind: int, raw: bytes) -> bytes:
        encoder = self._encoders.get((index, kind))
        column = self.layout.relation.columns[index]
        if encoder is None:
            encoder = self.layout.types.json_encoder(column.type_oid, kind, typed=self._typed)
            self._encoders[index, kind] = encoder
        try:
            return encoder(raw)
        except ValueError as error:
            raise self.layout.relation.column_error(index, error) from None


def transaction_fields(transaction: Transaction) -> dict[str, Any]:
    """Return the fields that every event of a transaction has."""
    if transaction.prepared:
        return {"xid": transaction.xid, "commit_lsn": None, "commit_time": None}
    return {
        "xid": transaction.xid,
        "commit_lsn": str(transaction.commit_lsn),
        "commit_time": iso_time(transaction.commit_timestamp),
    }
