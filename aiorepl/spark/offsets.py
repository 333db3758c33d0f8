"""The offsets of a streaming query, as Spark keeps them in its checkpoint. Pure.

Spark gives a data source neither the query's id nor its checkpoint. So the first offset
of a query contains a new id, and every later offset repeats it. Spark stores the end of each batch, but not the start of
the first one: after a restart during the first batch it asks for an initial offset again. So every offset also repeats
where the query started. Checkpoints of earlier versions have positions only: their queries have the empty id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import uuid4

from aiorepl.lsn import LSN
from aiorepl.position import Position


@dataclass(frozen=True, slots=True)
class Offset:
    """A position at the end of a segment, as one query has it.

    :param query: the query's id.
    :param start_lsn: where the query started; ``None`` if an earlier version began it.
    """

    position: Position
    query: str
    start_lsn: LSN | None

    @classmethod
    def initial(cls, position: Position) -> Self:
        """The first offset of a new query, with a new id."""
        return cls(position, uuid4().hex, position.lsn)

    def at(self, position: Position) -> Self:
        """The same query's offset at another position."""
        return replace(self, position=position)

    def follows(self, start: Offset) -> LSN:
        """The LSN after which a batch begins that ends at this offset.

        :param start: the start that Spark names. Another query's id shows that Spark asked for an initial offset again.
        """
        if self.start_lsn is None or start.query == self.query:
            return start.position.lsn
        return self.start_lsn

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, for ``from_json``."""
        fields = self.position.to_json()
        if self.start_lsn is not None:
            fields |= {"query": self.query, "start": str(self.start_lsn)}
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Parse the output of ``to_json``.

        :raises ValueError: a field is missing or malformed.
        :raises SlotError: an earlier version wrote the position.
        """
        position = Position.from_json(fields)
        if "query" not in fields and "start" not in fields:
            return cls(position, "", None)
        try:
            return cls(position, str(fields["query"]), LSN.parse(str(fields["start"])))
        except KeyError as error:
            raise ValueError(f"an offset without {error}") from None
