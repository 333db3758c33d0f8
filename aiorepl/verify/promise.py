"""The guarantees that a consumer has, and the verdict on whether they held. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiorepl.verify.history import Operation

_MOST: Final = 50


def everything(operation: Operation) -> Operation:
    """Expect every operation, unfiltered."""
    return operation


def nothing(operation: Operation) -> bool:
    """Make no operation optional."""
    return False


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantees that a consumer has.

    :param exactly_once: no change comes twice, even after a restart.
    :param repeats: changes may be repeated at any time, because calls whose answers were lost are retried.
    :param order: whether all changes come in commit order, or only the changes of each key. With ``event key``, an update that changes
        a key has an order only among the changes of its old key, as in partitions of Kafka.
    :param expected: returns an operation as the consumer gets it, after selection, masks and transform; ``None`` if it gets
        nothing.
    :param optional: returns whether the consumer may lack an operation: if the consumer selects by parent, an operation of a
        table that was not attached to the parent yet, or no longer.
    :param masked: by table, the columns that come as digests, or not at all; a parent's columns are masked in its children, too.
    :param snapshot: whether the log begins with the initial rows; otherwise the consumer has them already.
    :param notices: whether messages that are not transactional must come.
    :param described: whether a schema change comes before the first row of each table after a start, and before the first row with
        other columns.
    :param defaults: by table, the columns that writers add, with their values in rows of writers that do not know them yet.
    """

    exactly_once: bool = False
    repeats: bool = False
    order: Literal["commit", "key", "event key"] = "commit"
    expected: Callable[[Operation], Operation | None] = everything
    optional: Callable[[Operation], bool] = nothing
    masked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    snapshot: bool = False
    notices: bool = False
    described: bool = False
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Verdict:
    """The result of a verification.

    :param violations: sentences without rows, at most fifty.
    :param transactions: committed transactions that were compared.
    :param changes: changes that were compared, without duplicates.
    :param duplicates: permitted duplicates.
    :param rows: rows of snapshots among the changes.
    """

    violations: list[str] = field(default_factory=list)
    transactions: int = 0
    changes: int = 0
    duplicates: int = 0
    rows: int = 0

    def add(self, violation: str) -> None:
        """Record a violation."""
        if len(self.violations) < _MOST:
            self.violations.append(violation)
