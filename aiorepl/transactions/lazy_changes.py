"""Changes of a slice that are made from bytes at each iteration. A stage that only counts or stores changes makes no objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from aiorepl.pgoutput.relations import Relation
from aiorepl.transactions.changes import Change
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.transaction import Transaction

LayoutOf = Callable[[Relation], Layout]


class LazyChanges(Sequence[Change]):
    """A sequence of changes with consecutive ordinals, made at each iteration and not kept."""

    __slots__ = ()

    @property
    @abstractmethod
    def first_ordinal(self) -> int:
        """The ordinal of the first change; the others follow without a gap."""

    @property
    @abstractmethod
    def relations(self) -> tuple[Relation, ...]:
        """The tables that may have rows among the changes."""

    @abstractmethod
    def by(self, layout_of: LayoutOf) -> LazyChanges:
        """Return the same changes with other layouts."""


class TableRows(LazyChanges):
    """New rows of one table, as in COPY's binary format.

    ``position`` and ``data`` are for code that reads columns without making changes.

    :ivar transaction: the header of their transaction.
    :ivar layout: the table's columns.
    :ivar kinds: the kind of each column that is not NULL, as in a tuple of pgoutput.
    :ivar data: rows: the number of columns in two bytes, then for each column its length in four, -1 for NULL, and its bytes.
    :ivar position: where the first row begins in ``data``.
    """

    __slots__ = ("data", "kinds", "layout", "position", "transaction")

    def __init__(
        self, transaction: Transaction, layout: Layout, kinds: bytes, data: bytes, position: int
    ) -> None:
        self.transaction = transaction
        self.layout = layout
        self.kinds = kinds
        self.data = data
        self.position = position

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The table that has the rows."""
        return (self.layout.relation,)

    @abstractmethod
    def put_messages(self, out: bytearray, start: int, limit: int) -> int:
        """Append rows as Insert messages, each after its length in four bytes, until ``out`` has ``limit`` bytes.

        :param start: the number of the first row, from 0. Calls in order do not search for it.
        :returns: the number of the next row.
        """
