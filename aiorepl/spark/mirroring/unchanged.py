"""Finds the values of columns that the server did not send, from a key's earlier changes. Pure.

The server does not send a TOASTed value that an update did not change. The value is the last one that was sent in the
same batch, otherwise the mirror's. If the update changed the key, it is the value under the old key. Only keys whose last
change lacks a value are processed here, so this need not be fast.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """Stands for the mirror's value under ``key``, if the mirror has that row."""

    key: Key


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one key.

    :param op: as the column ``_op``.
    :param position: commit LSN and ordinal.
    :param values: the values that were sent, by column.
    """

    op: str
    position: tuple[int, int]
    key: Key
    values: Mapping[str, Any]


def resolve(steps: Iterable[Step], columns: Sequence[str], *, truncated: bool) -> dict[Key, dict[str, Any]]:
    """Find the final value of each of ``columns`` for each key that exists at the end: a value, ``Kept``, or ``None``.

    :param steps: all changes of the wanted keys and of their earlier keys, in any order.
    :param truncated: whether the table was truncated before the first step, so that the mirror has no rows.
    """
    rows: dict[Key, dict[str, Any] | None] = {}
    deleted: dict[tuple[int, int], dict[str, Any] | None] = {}

    def row_at(key: Key) -> dict[str, Any] | None:
        if key not in rows:
            rows[key] = None if truncated else dict.fromkeys(columns, Kept(key))
        return rows[key]

    # A key change is a delete and an insert at the same position.
    for step in sorted(steps, key=lambda step: (step.position, step.op != "delete")):
        if step.op == "delete":
            deleted[step.position] = row_at(step.key)
            rows[step.key] = None
        else:
            # A row that is read in a snapshot is whole.
            before = row_at(step.key) if step.op == "update" else deleted.get(step.position)
            rows[step.key] = {**(before or dict.fromkeys(columns)), **step.values}
    return {key: row for key, row in rows.items() if row is not None}
