"""The steps of applying changes: each is one statement for many rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from aiorepl_sinks.postgres.rows import Row, Value
from aiorepl_sinks.postgres.target import Target

Key = tuple[Value, ...]
"""The values of a row's key, or of all its columns if it has none."""


Kind = Literal["insert", "read", "update", "delete"]


@dataclass(slots=True)
class Step:
    """Insert, update or delete rows of one table. The kind ``read`` inserts or replaces rows of a snapshot.

    :param columns: for an update, the indexes of the columns that are set.
    :param keys: for an update or delete, the rows' keys, or the whole old rows if there is no key.
    :param rows: for an insert, a read or an update, the new rows with all their columns.
    :param ordered: whether the step may succeed row by row if it fails as one statement.
    """

    kind: Kind
    target: Target
    columns: tuple[int, ...] = ()
    keys: list[Key] = field(default_factory=list, repr=False)
    rows: list[Row] = field(default_factory=list, repr=False)
    ordered: bool = True

    def __len__(self) -> int:
        return max(len(self.keys), len(self.rows))

    @property
    def by_whole_row(self) -> bool:
        """Whether rows are found by all their columns, because they have no key."""
        return self.target.key is None

    def split(self) -> Iterable[Step]:
        """Yield one step for each row."""
        for index in range(len(self)):
            yield Step(
                self.kind,
                self.target,
                self.columns,
                self.keys[index : index + 1],
                self.rows[index : index + 1],
                self.ordered,
            )


@dataclass(frozen=True, slots=True)
class TruncateStep:
    """Truncate tables in one statement."""

    targets: tuple[Target, ...]
    restart_identity: bool
    cascade: bool


@dataclass(frozen=True, slots=True)
class MessageStep:
    """Write a logical decoding message to the target's WAL."""

    prefix: str
    content: bytes = field(repr=False)


AnyStep = Step | TruncateStep | MessageStep
