"""Changes: a message, its transaction, and its ordinal in it.

A change holds bytes; its rows decode the values when they are read (``rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar, cast

from aiorepl.errors import DataError
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

# A change keeps its columns if its message has at most this size. The columns of a larger message are cut out at each use:
# otherwise the row would be in memory twice while its last sink writes it.
_MOST_KEPT: Final = 1 << 20
# ``uncut`` does not copy columns above this size.
_LARGE_COLUMN: Final = 256 * 1024


M = TypeVar("M")
Kind = Literal["insert", "read", "update", "delete", "truncate", "message", "schema", "publication", "resync"]


class Change:
    """The base of all changes. ``(transaction.commit_lsn, ordinal)`` identifies a change permanently."""

    __slots__ = ("ordinal", "transaction")
    kind = cast("Kind", "")  # C classes have no annotated attributes

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
        """Set all fields; ``row_change`` calls this without ``__init__``."""
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
        """The replica identity's columns before the change, or of an insert's new row.

        ``None`` if no columns identify the row: replica identity FULL or NOTHING.
        """
        indexes = self.layout.relation.key
        if not indexes:
            return None
        if self.raw_old is not None:
            return Row(self.layout, self.raw_old, self.old_kinds, indexes)
        return Row(self.layout, self.raw_new or [], self.new_kinds, indexes)

    @property
    def old(self) -> Row | None:
        """The columns of the old row that the server sent: the key if it changed, all under FULL, else ``None``."""
        columns = self.raw_old
        if columns is None:
            return None
        return Row(self.layout, columns, self.old_kinds, self.old_indexes)

    @property
    def new(self) -> Row | None:
        """The row after the change; ``None`` for a delete."""
        columns = self.raw_new
        return None if columns is None else Row(self.layout, columns, self.new_kinds)

    @property
    def unchanged(self) -> tuple[str, ...]:
        """The columns whose TOASTed value was not sent, even if it is known from the old row."""
        return ()

    def into(self, model: type[M]) -> M:
        """Make an object of ``model`` from the row after the change; of a delete, from the deleted row. See ``Row.into``.

        :raises DataError, ConfigurationError: as ``Row.into``.
        """
        row = self.old if self.new is None else self.new
        if row is None:
            raise DataError(f"{self.relation}: the change has no row")
        return row.into(model)

    def with_columns(self, values: Mapping[str, Any]) -> RowChange:
        """Return the change with these columns of its new row set or added. Transaction and ordinal stay.

        :param values: a ``str`` is PostgreSQL's text of the column's type, ``None`` is NULL. Values of these types are
            converted to text: bool, int, float, Decimal, bytes, date, time, datetime, UUID, lists for arrays, dicts and
            lists for JSON. A column that the table does not have is added after the others, with a type that fits the value.
        :raises TypeError: the change is a delete, which has no new row, or a value is of another type.
        """
        if not isinstance(self.message, (InsertMessage, UpdateMessage)):
            raise TypeError(f"a {self.kind} has no new row whose columns could be set")
        message, layout = with_columns(self.message, self.layout, values)
        return type(self)(self.transaction, self.ordinal, layout, message)

    # The members below are for formats: the bytes of the columns, in the relation's order.

    @property
    def raw_new(self) -> list[Raw] | None:
        """The new row's columns as sent; unchanged ones come from the old row if it has them."""
        return None

    @property
    def raw_old(self) -> list[Raw] | None:
        """The old row's columns as sent; under ``K`` only those at ``old_indexes`` are valid."""
        if self._old is None and self.message.old_kind:
            return self._keep_old(columns_of(self.message.payload, self.message.old_at))
        return self._old

    def _keep_new(self, columns: list[Raw]) -> list[Raw]:
        if len(self.message.payload) <= _MOST_KEPT:
            self._new = columns
        return columns

    def _keep_old(self, columns: list[Raw]) -> list[Raw]:
        if len(self.message.payload) <= _MOST_KEPT:
            self._old = columns
        return columns

    @property
    def old_indexes(self) -> tuple[int, ...]:
        """The indexes of the columns in ``raw_old`` that the server sent."""
        return self.layout.relation.key if self.message.old_kind == "K" else self.layout.all

    @property
    def new_kinds(self) -> bytes | None:
        """The kind of each column of ``raw_new``; ``None`` if all are text."""
        return None

    @property
    def old_kinds(self) -> bytes | None:
        """The kind of each column of ``raw_old``; ``None`` if all are text."""
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
            return self._keep_new(columns_of(self.message.payload, self.message.new_at))
        return self._new

    @property
    def new_kinds(self) -> bytes | None:
        return kinds_of(self.message.payload, self.message.new_at) if self.layout.binary else None

    @property
    def unchanged(self) -> tuple[str, ...]:
        # An update that a row filter turns into an insert can lack TOASTed columns.
        return _unchanged(self.layout.relation, self.message)


class Read(Insert):
    """A row of a snapshot, which existed before; Debezium's operation ``r``. The target may have the row already."""

    __slots__ = ()
    kind = "read"  # type: ignore[assignment] # it is not an insert


class Update(RowChange):
    """A changed row."""

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
            return self._keep_new(columns)
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
        return _unchanged(self.layout.relation, self.message)


class Delete(RowChange):
    """A deleted row."""

    __slots__ = ()
    kind = "delete"

    @property
    def old(self) -> Row:
        """The deleted row: its key, or all of it under replica identity FULL."""
        return Row(self.layout, self.raw_old, self.old_kinds, self.old_indexes)

    @property
    def raw_old(self) -> list[Raw]:
        if self._old is None:
            return self._keep_old(columns_of(self.message.payload, self.message.old_at))
        return self._old


class Truncate(Change):
    """Tables truncated together."""

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
        """Whether the statement had CASCADE."""
        return self.message.cascade

    @property
    def restart_identity(self) -> bool:
        """Whether the statement had RESTART IDENTITY."""
        return self.message.restart_identity


class Message(Change):
    """A logical decoding message. If it is not transactional, ``transaction`` is ``None`` and the ordinal is 0."""

    __slots__ = ("message",)
    kind = "message"

    def __init__(self, transaction: Transaction | None, ordinal: int, message: m.Message) -> None:
        super().__init__(transaction, ordinal)
        self.message = message

    @property
    def prefix(self) -> str:
        """The prefix given by the writer."""
        return self.message.prefix

    @property
    def content(self) -> bytes:
        """The content given by the writer."""
        return self.message.content

    @property
    def transactional(self) -> bool:
        """Whether the message belongs to a transaction."""
        return self.message.transactional

    @property
    def lsn(self) -> LSN:
        """The message's position in the WAL."""
        return LSN(self.message.lsn)


Content = RowMessage | m.Truncate | m.Message


def row_change(
    transaction: Transaction | None, ordinal: int, layout: Layout, message: RowMessage
) -> RowChange:
    """Make the change of a row message: an insert with xid 0 is a row of a snapshot.

    Calling the class would double the cost (``RowMessage.fill``).
    """
    change: RowChange
    if isinstance(message, InsertMessage):
        if transaction is not None and transaction.xid == 0:
            change = Read.__new__(Read)
        else:
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
    """Make the change of a content message."""
    if isinstance(message, RowMessage):
        return row_change(transaction, ordinal, layout(message.relation), message)
    if isinstance(message, m.Truncate):
        return Truncate(transaction, ordinal, message)
    return Message(transaction, ordinal, message)


def is_large(change: RowChange) -> bool:
    """Whether the message of a change is so large that columns should not be copied out of it; see ``uncut``."""
    return len(change.message.payload) > _MOST_KEPT


def uncut(change: RowChange) -> tuple[list[Any] | None, list[Any] | None]:
    """Return ``raw_new`` and ``raw_old``; each large column is a ``LargeColumn``, which refers to the message."""
    message = change.message
    new = columns_of(message.payload, message.new_at, _LARGE_COLUMN) if message.new_at else None
    old = columns_of(message.payload, message.old_at, _LARGE_COLUMN) if message.old_kind else None
    if new is not None and old is not None and message.old_kind == "O":
        pairs = zip(new, old, strict=True)
        new = [before if after is UNCHANGED else after for after, before in pairs]
    return new, old


def _unchanged(relation: Relation, message: RowMessage) -> tuple[str, ...]:
    kinds = kinds_of(message.payload, message.new_at)
    if TOAST not in kinds:
        return ()
    return tuple(name for name, kind in zip(relation.names, kinds, strict=True) if kind == TOAST)
