"""The messages of rows: Insert, Update and Delete.

They are classes with slots and not named tuples like the other messages, because classes compile to C structures. All three
have the same fields, so that code that only forwards or counts rows need not distinguish them.
"""

from __future__ import annotations

from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import TupleData


class RowMessage:
    """The base of the row messages. Immutable; equal when all fields are equal.

    :param old_kind: which columns of the old row were sent: ``"K"`` the key, ``"O"`` all (replica identity FULL), empty:
        none.
    :param old_at: the offset of the old row's TupleData in ``payload``; 0 without one.
    :param new_at: the offset of the new row's TupleData in ``payload``; 0 without one.
    """

    __slots__ = ("new_at", "old_at", "old_kind", "payload", "relation", "xid")

    def __init__(
        self, relation: Relation, old_kind: str, old_at: int, new_at: int, payload: bytes, xid: int | None
    ) -> None:
        self.fill(relation, old_kind, old_at, new_at, payload, xid)

    def fill(
        self, relation: Relation, old_kind: str, old_at: int, new_at: int, payload: bytes, xid: int | None
    ) -> None:
        """Set all fields. In the compiled form, ``__new__`` and this method are C calls; a call of the class is not."""
        self.relation = relation
        self.old_kind = old_kind
        self.old_at = old_at
        self.new_at = new_at
        self.payload = payload
        self.xid = xid

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RowMessage)
            and type(self) is type(other)
            and (self.relation, self.old_kind, self.old_at) == (other.relation, other.old_kind, other.old_at)
            and (self.new_at, self.payload, self.xid) == (other.new_at, other.payload, other.xid)
        )

    def __hash__(self) -> int:
        return hash((self.relation, self.payload, self.xid))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.relation}>"


class Insert(RowMessage):
    """``I``: a new row."""

    __slots__ = ()

    def __init__(self, relation: Relation, new_at: int, payload: bytes, xid: int | None) -> None:
        self.fill(relation, "", 0, new_at, payload, xid)

    @property
    def new(self) -> TupleData:
        """The row."""
        return TupleData(self.payload, self.new_at)


class Update(RowMessage):
    """``U``: a changed row."""

    __slots__ = ()

    @property
    def old(self) -> TupleData | None:
        """The old key (``K``), the whole old row (``O``), or ``None``."""
        return TupleData(self.payload, self.old_at) if self.old_kind else None

    @property
    def new(self) -> TupleData:
        """The row as it is now."""
        return TupleData(self.payload, self.new_at)


class Delete(RowMessage):
    """``D``: a deleted row, by its key (``old_kind`` ``"K"``) or whole (``"O"``)."""

    __slots__ = ()

    def __init__(
        self, relation: Relation, old_kind: str, old_at: int, payload: bytes, xid: int | None
    ) -> None:
        self.fill(relation, old_kind, old_at, 0, payload, xid)

    @property
    def old(self) -> TupleData:
        """The old key (``K``) or the whole old row (``O``)."""
        return TupleData(self.payload, self.old_at)
