"""What a column that was not sent is now: found by going through a key's changes in order. Pure.

The server leaves a TOASTed value out when an update did not touch it. The value is then the one sent before, in the
same batch, or the one the mirror has; and where the update changed the key, it is the one under the key that the row
had before. Only keys whose last change left something out come here, so it may take its time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """The value that the mirror has under ``key``, if it has that row."""

    key: Key


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one key. ``values`` has what was sent of the columns that matter."""

    op: str
    position: tuple[int, int]
    key: Key
    values: Mapping[str, Any]


def resolve(steps: Iterable[Step], columns: Sequence[str], *, truncated: bool) -> dict[Key, dict[str, Any]]:
    """The value of each of ``columns`` for each key that is there in the end: a value, ``Kept``, or ``None``.

    :param steps: all changes of the keys that matter, and of the keys that those were before, in any order.
    :param truncated: whether the table was emptied before the first of them, so that the mirror has nothing.
    """
    rows: dict[Key, dict[str, Any] | None] = {}
    left: dict[tuple[int, int], dict[str, Any] | None] = {}

    def at(key: Key) -> dict[str, Any] | None:
        if key not in rows:
            rows[key] = None if truncated else dict.fromkeys(columns, Kept(key))
        return rows[key]

    # A key change is a delete and an insert at the same position.
    for step in sorted(steps, key=lambda step: (step.position, step.op != "delete")):
        if step.op == "delete":
            left[step.position] = at(step.key)
            rows[step.key] = None
        else:
            before = left.get(step.position) if step.op == "insert" else at(step.key)
            rows[step.key] = {**(before or dict.fromkeys(columns)), **step.values}
    return {key: row for key, row in rows.items() if row is not None}
