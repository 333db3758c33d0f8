"""The offsets of a streaming query, as Spark keeps them in its checkpoint. Pure.

Spark gives a data source neither the query's id nor its checkpoint. So the first offset of a query contains a new id, and every
later offset repeats it. Spark stores the end of each batch, but not the start of the first one: after a restart during the first
batch it asks for an initial offset again. So every offset also repeats the position where the query started.

An offset is at the end of a segment, or within a segment that is larger than a batch. In the latter case it has the next block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self
from uuid import uuid4

from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.storage.checked_json import integer


class HiddenColumn(NamedTuple):
    """A column that a query has dropped or masked.

    :param oid: the table's oid.
    :param number: the column's attribute number, which a rename does not change.
    :param name: the column's name when it was hidden.
    """

    oid: int
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Offset:
    """A position of one query.

    :param query: the query's id.
    :param start_lsn: where the query started.
    :param part: the number of the next part, in the segment after ``position``.
    :param block: the number of the next block in that part.
    :param columns: a digest of the columns of the query's schema; ``None`` if the user gave the schema.
    :param hidden: the columns that the query has dropped or masked so far.
    """

    position: Position
    query: str
    start_lsn: LSN
    part: int = 0
    block: int = 0
    columns: str | None = None
    hidden: frozenset[HiddenColumn] = frozenset()

    @classmethod
    def initial(cls, position: Position, columns: str | None) -> Self:
        """The first offset of a new query, with a new id."""
        return cls(position, uuid4().hex, position.lsn, columns=columns)

    def at(self, position: Position, columns: str | None, part: int = 0, block: int = 0) -> Self:
        """The same query's offset at another position."""
        return replace(self, position=position, part=part, block=block, columns=columns)

    @property
    def place(self) -> BlockPosition:
        """The position in the journal."""
        return BlockPosition(self.position.lsn, self.part, self.block)

    def follows(self, start: Offset) -> BlockPosition:
        """Return the position where the batch begins that ends at this offset.

        :param start: the batch's start from Spark. If it has another query id, Spark asked for an initial offset again.
        """
        return start.place if start.query == self.query else BlockPosition(self.start_lsn)

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, for ``from_json``."""
        fields = self.position.to_json() | {"query": self.query, "start": str(self.start_lsn)}
        if self.part or self.block:
            fields |= {"part": self.part, "block": self.block}
        if self.columns is not None:
            fields["columns"] = self.columns
        if self.hidden:
            fields["hidden"] = sorted(self.hidden)
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Parse the output of ``to_json``.

        :raises ValueError: a field is missing or malformed.
        :raises SlotError: an earlier version wrote the position.
        """
        position, inside = Position.from_json(fields), {"part": 0, "block": 0, **fields}
        columns = fields.get("columns")
        hidden = frozenset(
            HiddenColumn(integer({"oid": oid}, "oid"), integer({"number": number}, "number"), str(name))
            for oid, number, name in fields.get("hidden", ())
        )
        try:
            query, start = str(fields["query"]), LSN.parse(str(fields["start"]))
        except KeyError as error:
            raise ValueError(f"an offset without {error}") from None
        return cls(
            position,
            query,
            start,
            integer(inside, "part"),
            integer(inside, "block"),
            None if columns is None else str(columns),
            hidden,
        )
