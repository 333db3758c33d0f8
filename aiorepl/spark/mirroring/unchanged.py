"""Finds the values that the server did not send, for rows whose key changed. Pure.

The server does not send a TOASTed value that an update did not change. The value is the last value that was sent in the same
batch, or else the target's. If an update changes the key, the value under the old key counts; a key change is a delete and an
insert at the same position. Only keys with such a change are processed here, so this need not be fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aiorepl.spark.lake.table import Place


@dataclass(frozen=True, slots=True)
class Kept:
    """Stands for the target's value under ``key``, if the target has that row."""

    key: int


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one key.

    :param op: the operation, as in the column ``_op``.
    :param key: a number that stands for the key.
    :param sent: by column, the index of the sent value.
    """

    op: str
    place: Place
    key: int
    sent: Mapping[str, int]


Row = Mapping[str, int | Kept | None]
"""By column, the index of the value, or the target's value; ``None`` if the value is null."""


def resolve(steps: Iterable[Step], columns: Sequence[str]) -> Iterator[Row]:
    """Yield the row after each step; for a delete, the deleted row.

    :param steps: all changes of the wanted keys and of their earlier keys, in commit order, a delete before an insert.
    """
    rows: dict[int, Row | None] = {}
    deleted: dict[Place, Row | None] = {}
    nothing: Row = dict.fromkeys(columns)
    for step in steps:
        if step.key not in rows:
            rows[step.key] = dict.fromkeys(columns, Kept(step.key))
        before = rows[step.key]
        if step.op == "delete":
            deleted[step.place] = before
            rows[step.key] = None
            yield before or nothing
        else:
            # Only an update builds on the present row. An insert has all values, except after the delete of a key change.
            if step.op != "update":
                before = deleted.get(step.place)
            row = {**(before or nothing), **step.sent}
            rows[step.key] = row
            yield row
