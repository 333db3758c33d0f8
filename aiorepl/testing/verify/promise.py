"""What a consumer was promised, and the verdict on whether it was kept. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiorepl.testing.verify.history import Operation

_MOST: Final = 50


def everything(operation: Operation) -> Operation:
    """Expect every operation as it is."""
    return operation


@dataclass(frozen=True, slots=True)
class Promise:
    """What a consumer was promised.

    :param exactly_once: no change comes twice, also not after a restart.
    :param repeats: changes may come again at any time, because calls whose answers are lost are repeated.
    :param order: whether all changes come in commit order, or only those of each key.
    :param expected: what the consumer gets of an operation, after selection, masks and transform; ``None``: nothing.
    :param masked: columns of each table that come as digests, or not at all.
    :param snapshot: whether the log begins with the initial rows; otherwise the consumer has them already.
    :param defaults: columns that are added meanwhile, by table, with the values in rows of writers that do not know them.
    """

    exactly_once: bool = False
    repeats: bool = False
    order: Literal["commit", "key"] = "commit"
    expected: Callable[[Operation], Operation | None] = everything
    masked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    snapshot: bool = False
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Verdict:
    """The result of a verification.

    :param violations: sentences without rows, at most fifty.
    :param transactions: committed transactions that were compared.
    :param changes: changes that were compared, without duplicates.
    :param duplicates: changes that came again, as they may.
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
