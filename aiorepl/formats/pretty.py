"""A format for reading on a terminal: one line per change, with columns as PostgreSQL prints them.

08:00:00.123456 0/171B2A8-0 INSERT public.orders id=1 note='first'
"""

from __future__ import annotations

from typing import Final

from aiorepl.checked import checked
from aiorepl.errors import printable
from aiorepl.formats.columns import Columns, Frame, TableColumns
from aiorepl.formats.format import Format, event_id, iso_time
from aiorepl.formats.native import NativeFormat
from aiorepl.formats.type_names import type_name
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Column
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate, Update
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.codec import Encoder
from aiorepl.values.types import BUILTIN

_COLOURS: Final = {
    "insert": "green",
    "read": "blue",
    "update": "yellow",
    "delete": "red",
    "truncate": "red",
    "message": "cyan",
    "schema": "magenta",
    "publication": "magenta",
    "resync": "red",
}
_BARE: Final = ("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bool")
_ENDS: Final = {
    m.Prepare: "PREPARE",
    m.StreamPrepare: "PREPARE",
    m.CommitPrepared: "COMMIT PREPARED",
    m.RollbackPrepared: "ROLLBACK PREPARED",
}


@checked("format pretty", zero=("width",))
class PrettyFormat(Format):
    """Writes lines for people.

    :param colour: write colours as terminal escape sequences. Unprintable characters in the data are always escaped.
    :param width: the number of characters shown of a value; a longer one is cut, and its length shown.
    :param boundaries: write lines for the begin and the end of a transaction too.
    """

    content_type = "text/plain"
    text_only = True
    supports_prepared = True
    has_resync = True

    def __init__(self, *, colour: bool = False, width: int = 80, boundaries: bool = False) -> None:
        super().__init__(boundaries=boundaries)
        self._colour = colour
        self._width = width
        self._tables = TableColumns(self._columns)
        self._native = NativeFormat()

    def event(self, change: Change) -> bytes:
        """Return a change as a line."""
        if isinstance(change, RowChange):
            name, rest = str(change.relation), self._row(change)
        elif isinstance(change, Truncate):
            name, rest = ", ".join(map(str, change.relations)), ""
            rest += " CASCADE" if change.cascade else ""
            rest += " RESTART IDENTITY" if change.restart_identity else ""
        elif isinstance(change, Message):
            name = printable(change.prefix)
            rest = f" {self._quoted(change.content.decode('utf-8', 'backslashreplace'))}"
        elif isinstance(change, SchemaChange):
            name, rest = str(change.relation), _altered(change)
        elif isinstance(change, PublicationChange):
            name, rest = str(change.difference), f" {change.what}{'' if change.certain else '?'}"
        elif isinstance(change, Resync):
            name, rest = change.reason, ""
        else:
            raise TypeError(f"no line for {type(change).__name__}")
        verb = self._style(change.kind.upper(), fg=_COLOURS[change.kind], bold=True)
        where = self._style(f"{_clock(change.transaction)} {event_id(change)}", dim=True)
        return f"{where} {verb} {self._style(printable(name), bold=True)}{rest}".encode()

    def key(self, change: Change) -> bytes | None:
        """Return the native format's key."""
        return self._native.key(change)

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``BEGIN`` line."""
        return self._boundary("BEGIN", transaction, "")

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the line for ``COMMIT``, ``PREPARE`` or the decision."""
        message = part.two_phase
        if message is None or not transaction.prepared:
            return self._boundary("COMMIT", transaction, f" at {part.end_lsn}")
        return self._boundary(
            _ENDS[type(message)], transaction, f" {self._quoted(message.gid)} at {part.end_lsn}"
        )

    def _row(self, change: RowChange) -> str:
        table = self._tables(change.layout)
        old = table.old(change)
        parts = [] if change.raw_new is None else table.new(change)
        if old is not None and isinstance(change, Update):
            was = [part for part in old if part not in parts]
            parts = [*parts, b"<-", *was] if was else parts
        elif old is not None:
            parts = old
        return "".join(f" {part.decode()}" for part in parts)

    def _boundary(self, verb: str, transaction: Transaction, rest: str) -> bytes:
        text = f"{_clock(transaction)} {transaction.commit_lsn} {verb} {transaction.xid}{rest}"
        return self._style(text, dim=True).encode()

    def _columns(self, layout: Layout) -> Columns:
        def frame(column: Column) -> Frame:
            name = self._style(printable(column.name), fg="blue")
            return Frame(f"{name}=".encode(), unchanged=self._style("(unchanged)", dim=True).encode())

        def encoder(column: Column, kind: int) -> Encoder:
            text = layout.types.text(column.type_oid, kind)
            info = BUILTIN.get(column.type_oid)
            if info is not None and info.name in _BARE:
                return lambda raw: self._cut(text(raw)).encode()
            return lambda raw: self._quoted(text(raw)).encode()

        return Columns(layout, frame, encoder)

    def _cut(self, text: str, quote: str = "") -> str:
        more = f"… ({len(text)} characters)" if len(text) > self._width else ""
        return f"{quote}{printable(text[: self._width])}{quote}{more}"

    def _quoted(self, text: str) -> str:
        return self._cut(text, "'")

    def _style(self, text: str, **style: object) -> str:
        if not self._colour:
            return text
        # Imported here, because only the command line requires click.
        import click

        return click.style(text, **style)  # type: ignore[arg-type]


def _altered(change: SchemaChange) -> str:
    parts = [f"+{column.name}" for column in change.added]
    parts += [f"-{column.name}" for column in change.dropped]
    parts += [f"{was.name}->{now.name}" for was, now in change.renamed]
    parts += [
        f"{now.name}:{type_name(change.layout.types, now.type_oid, now.type_modifier)}"
        for _, now in change.retyped
    ]
    return "".join(f" {printable(part)}" for part in parts)


def _clock(transaction: Transaction | None) -> str:
    return "-" if transaction is None else iso_time(transaction.commit_timestamp).partition("T")[2][:-1]
