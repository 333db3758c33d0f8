"""Changes as users see them: a message, the transaction it belongs to, and its place in it.

A change holds bytes. Its rows read values from them when a column is asked for (``rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.rows import Insert as InsertMessage
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.pgoutput.rows import Update as UpdateMessage
from aiorepl.pgoutput.tuples import TOAST, UNCHANGED, any_unchanged, columns_of, kinds_of
from aiorepl.transactions.rewriting import with_columns
from aiorepl.transactions.rows import Layout, Raw, Row
from aiorepl.transactions.transaction import Transaction


class Change:
    """What all changes share. ``(transaction.commit_lsn, ordinal)`` identifies one for good."""

    __slots__ = ("ordinal", "transaction")
    kind = ""

    def __init__(self, transaction: Transaction | None, ordinal: int) -> None:
        self.transaction = transaction
        self.ordinal = ordinal

    def __repr__(self) -> str:
        at = "" if self.transaction is None else f" at {self.transaction.commit_lsn}"
        return f"<{type(self).__name__} {self.ordinal}{at}>"


class RowChange(Change):
    """An insert, update or delete of one row."""

    __slots__ = ("_new", "_old", "layout", "message")

    def __init__(
        self, transaction: Transaction | None, ordinal: int, layout: Layout, message: RowMessage
    ) -> None:
        self.fill(transaction, ordinal, layout, message)

    def fill(
        self, transaction: Transaction | None, ordinal: int, layout: Layout, message: RowMessage
    ) -> None:
        """What ``__init__`` does, for ``row_change``."""
        self.transaction = transaction
        self.ordinal = ordinal
        self.layout = layout
        self.message = message
        self._new: list[Raw] | None = None
        self._old: list[Raw] | None = None

    @property
    def relation(self) -> Relation:
        """The table as it was when the change was made."""
        return self.layout.relation

    @property
    def schema(self) -> str:
        """The table's schema."""
        return self.layout.relation.schema

    @property
    def table(self) -> str:
        """The table's name."""
        return self.layout.relation.name

    @property
    def key(self) -> Row | None:
        """The replica identity's columns before the change (of an insert: of the new row).

        ``None`` where the table has none that identifies the row: replica identity FULL or NOTHING.
        """
        places = self.layout.relation.key
        if not places:
            return None
        if self.raw_old is not None:
            return Row(self.layout, self.raw_old, self.old_kinds, places)
        return Row(self.layout, self.raw_new or [], self.new_kinds, places)

    @property
    def old(self) -> Row | None:
        """What the server sent of the row before: its key if that changed, all of it under FULL, else ``None``."""
        columns = self.raw_old
        if columns is None:
            return None
        return Row(self.layout, columns, self.old_kinds, self.old_places)

    @property
    def new(self) -> Row | None:
        """The row after the change; ``None`` for a delete."""
        columns = self.raw_new
        return None if columns is None else Row(self.layout, columns, self.new_kinds)

    @property
    def unchanged(self) -> tuple[str, ...]:
        """The columns whose TOASTed value was not sent, be it known from the old row or not."""
        return ()

    def with_columns(self, values: Mapping[str, Any]) -> RowChange:
        """The same change, transaction and ordinal included, whose new row has these columns, set or added.

        A ``str`` is taken as PostgreSQL's own text for the column's type, ``None`` as NULL. Of other values the text is
        made: bool, int, float, Decimal, bytes, date, time, datetime, UUID, lists for arrays, dicts and lists for JSON.
        A column that the table does not have is added behind the others, with a type after the value's.

        :raises TypeError: for a delete, which has no new row, and for values of other types.
        """
        if not isinstance(self.message, (InsertMessage, UpdateMessage)):
            raise TypeError(f"a {self.kind} has no new row whose columns could be set")
        message, layout = with_columns(self.message, self.layout, values)
        return type(self)(self.transaction, self.ordinal, layout, message)

    # For formats: the bytes of the columns, in the relation's order.

    @property
    def raw_new(self) -> list[Raw] | None:
        """The new row's columns as sent, unchanged ones filled from the old row where that is known."""
        return None

    @property
    def raw_old(self) -> list[Raw] | None:
        """The old row's columns as sent; under ``K`` only those at ``old_places`` mean anything."""
        if self._old is None and self.message.old_kind:
            self._old = columns_of(self.message.payload, self.message.old_at)
        return self._old

    @property
    def old_places(self) -> tuple[int, ...]:
        """Which columns of ``raw_old`` the server sent."""
        return self.layout.relation.key if self.message.old_kind == "K" else self.layout.all

    @property
    def new_kinds(self) -> bytes | None:
        """The kind of each column of ``raw_new``; ``None``: all text."""
        return None

    @property
    def old_kinds(self) -> bytes | None:
        """The kind of each column of ``raw_old``; ``None``: all text."""
        if not self.layout.binary or not self.message.old_kind:
            return None
        return kinds_of(self.message.payload, self.message.old_at)

    def __repr__(self) -> str:
        at = "" if self.transaction is None else f" at {self.transaction.commit_lsn}"
        return f"<{type(self).__name__} {self.ordinal}{at} on {self.layout.relation}>"


class Insert(RowChange):
    """A new row."""

    __slots__ = ()
    kind = "insert"

    @property
    def new(self) -> Row:
        """The new row."""
        return Row(self.layout, self.raw_new, self.new_kinds)

    @property
    def raw_new(self) -> list[Raw]:
        if self._new is None:
            self._new = columns_of(self.message.payload, self.message.new_at)
        return self._new

    @property
    def new_kinds(self) -> bytes | None:
        return kinds_of(self.message.payload, self.message.new_at) if self.layout.binary else None

    @property
    def unchanged(self) -> tuple[str, ...]:
        # A row filter that makes an insert of an update can leave TOASTed columns out.
        return _unchanged(self.layout.relation, self.raw_new)


class Update(RowChange):
    """A row that changed."""

    __slots__ = ()
    kind = "update"

    @property
    def new(self) -> Row:
        """The row after the change."""
        return Row(self.layout, self.raw_new, self.new_kinds)

    @property
    def raw_new(self) -> list[Raw]:
        if self._new is None:
            columns = columns_of(self.message.payload, self.message.new_at)
            if self.message.old_kind == "O" and any_unchanged(columns) and self.raw_old is not None:
                pairs = zip(columns, self.raw_old, strict=True)
                columns = [old if new is UNCHANGED else new for new, old in pairs]
            self._new = columns
        return self._new

    @property
    def new_kinds(self) -> bytes | None:
        if not self.layout.binary:
            return None
        kinds = kinds_of(self.message.payload, self.message.new_at)
        if self.message.old_kind == "O":
            old = kinds_of(self.message.payload, self.message.old_at)
            kinds = bytes([b if a == TOAST else a for a, b in zip(kinds, old, strict=True)])
        return kinds

    @property
    def unchanged(self) -> tuple[str, ...]:
        whole = self.message.old_kind == "O"
        columns = columns_of(self.message.payload, self.message.new_at) if whole else self.raw_new
        return _unchanged(self.layout.relation, columns)


class Delete(RowChange):
    """A row that is gone."""

    __slots__ = ()
    kind = "delete"

    @property
    def old(self) -> Row:
        """The deleted row: its key, or all of it under replica identity FULL."""
        return Row(self.layout, self.raw_old, self.old_kinds, self.old_places)

    @property
    def raw_old(self) -> list[Raw]:
        if self._old is None:
            self._old = columns_of(self.message.payload, self.message.old_at)
        return self._old


class Truncate(Change):
    """Tables emptied together."""

    __slots__ = ("message",)
    kind = "truncate"

    def __init__(self, transaction: Transaction | None, ordinal: int, message: m.Truncate) -> None:
        super().__init__(transaction, ordinal)
        self.message = message

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The tables."""
        return self.message.relations

    @property
    def cascade(self) -> bool:
        """Whether the statement said CASCADE."""
        return self.message.cascade

    @property
    def restart_identity(self) -> bool:
        """Whether the statement said RESTART IDENTITY."""
        return self.message.restart_identity


class Message(Change):
    """A logical decoding message. One that is not transactional has no ``transaction``; its ordinal is 0."""

    __slots__ = ("message",)
    kind = "message"

    def __init__(self, transaction: Transaction | None, ordinal: int, message: m.Message) -> None:
        super().__init__(transaction, ordinal)
        self.message = message

    @property
    def prefix(self) -> str:
        """What the writer labelled it with."""
        return self.message.prefix

    @property
    def content(self) -> bytes:
        """What the writer sent."""
        return self.message.content

    @property
    def transactional(self) -> bool:
        """Whether it belongs to a transaction, or stands between them."""
        return self.message.transactional

    @property
    def lsn(self) -> LSN:
        """Where it stands in the WAL."""
        return LSN(self.message.lsn)


Content = RowMessage | m.Truncate | m.Message


def row_change(
    transaction: Transaction | None, ordinal: int, layout: Layout, message: RowMessage
) -> RowChange:
    """The change that a row's message makes. Not a call of the class, which costs as much again (``RowMessage.fill``)."""
    change: RowChange
    if isinstance(message, InsertMessage):
        change = Insert.__new__(Insert)
    elif isinstance(message, UpdateMessage):
        change = Update.__new__(Update)
    else:
        change = Delete.__new__(Delete)
    change.fill(transaction, ordinal, layout, message)
    return change


def change_of(
    transaction: Transaction | None, ordinal: int, message: Content, layout: Callable[[Relation], Layout]
) -> Change:
    """The change that a content message makes, as the ``ordinal``-th of its transaction."""
    if isinstance(message, RowMessage):
        return row_change(transaction, ordinal, layout(message.relation), message)
    if isinstance(message, m.Truncate):
        return Truncate(transaction, ordinal, message)
    return Message(transaction, ordinal, message)


def _unchanged(relation: Relation, columns: list[Raw]) -> tuple[str, ...]:
    if not any_unchanged(columns):
        return ()
    return tuple(name for name, raw in zip(relation.names, columns, strict=True) if raw is UNCHANGED)
