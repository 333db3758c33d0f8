"""Applies a selection to one description of a table, and detects renames that put it in doubt. Pure.

Patterns match names, and names change: the mask of a renamed column no longer matches. PostgreSQL sends no DDL, so a rename
shows only as a difference between two descriptions of a table. If a hidden column may be visible under another name, or
selected rows would be missing, the sink stops and the user has to correct the patterns.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiorepl.source.catalog.tables import Name
from aiorepl.transforms.patterns import Names, Patterns, written


class ColumnAction(enum.Enum):
    """Whether a column is passed on, dropped or masked."""

    KEPT = enum.auto()
    DROPPED = enum.auto()
    MASKED = enum.auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """A selection's patterns.

    :param keep: columns that are neither dropped nor masked, and are not renamed columns that should be.
    """

    tables: Patterns
    drop: Patterns
    mask: Patterns
    keep: Patterns

    def __bool__(self) -> bool:
        return any((self.tables, self.drop, self.mask))

    def wanted(self, family: Sequence[Name]) -> bool:
        """Whether the table with these names, its own and its ancestors', is selected."""
        return not self.tables or self.tables.match(*family)

    def action(self, family: Sequence[Name], column: str) -> ColumnAction:
        """The action of a column in the table with these names."""
        of = [(*names, column) for names in family]
        if self.keep.match(*of):
            return ColumnAction.KEPT
        if self.drop.match(*of):
            return ColumnAction.DROPPED
        return ColumnAction.MASKED if self.mask.match(*of) else ColumnAction.KEPT


@dataclass(frozen=True, slots=True)
class TableSelection:
    """A table under one description.

    :param family: its name and those of its ancestors.
    :param actions: of its columns, in their order.
    :param gone: hidden columns that have disappeared, each with the other columns of its time.
    """

    family: tuple[Name, ...]
    wanted: bool
    actions: Mapping[str, ColumnAction]
    gone: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table's own name, as a pattern."""
        return written(self.family[0])


def look(
    rules: Rules, family: Sequence[Name], columns: Sequence[str], relatives: Sequence[Name] = ()
) -> TableSelection:
    """Apply the rules to a table with these names and columns.

    :param relatives: tables that it may have been a partition of; columns that are hidden there are hidden here.
    """
    names = (*family, *relatives)
    return TableSelection(
        tuple(family), rules.wanted(family), {column: rules.action(names, column) for column in columns}
    )


def doubt_of_kin(rules: Rules, seen: TableSelection, relatives: Sequence[Name]) -> str | None:
    """The problem, if the selection depends on whether the table was a partition of ``relatives``; else ``None``."""
    for names in relatives:
        family = (*seen.family, names)
        if rules.wanted(family) != seen.wanted and not rules.tables.decide(seen.family, [names]):
            return (
                f"table {seen.name} is not in the catalog any more, and may have been a partition of {written(names)}: add "
                f"{seen.name}? to tables if it was, or !{seen.name}? if it was not"
            )
    return None


def gone(before: TableSelection, after: TableSelection) -> dict[str, frozenset[str]]:
    """Hidden columns that have disappeared, each with the other columns of its time."""
    moved = _moved(list(before.actions), list(after.actions))
    hidden = {column for column, action in before.actions.items() if action is not ColumnAction.KEPT}
    missing = {column for column in hidden if column not in after.actions or column in moved}
    found = {column: others for column, others in before.gone.items() if column not in after.actions}
    return found | dict.fromkeys(missing, frozenset(before.actions) - moved)


def doubt(rules: Rules, before: TableSelection, after: TableSelection) -> str | None:
    """The problem, if the patterns may mean something else in ``after``, the table's next description; else ``None``."""
    if after.wanted != before.wanted and not rules.tables.decide(after.family, before.family):
        does = "lets through" if after.wanted else "leaves out"
        return (
            f"table {before.name} is now called {after.name}, which the selection {does}: add {after.name} or !{after.name} to "
            f"tables, and keep {before.name}? for the rows from before"
        )
    if not after.wanted:
        return None
    lost = gone(before, after)
    for column, action in after.actions.items():
        if action is not ColumnAction.KEPT or _is_kept(rules, after, column):
            continue
        now = written((*after.family[0], column))
        if column not in lost and before.actions.get(column, ColumnAction.KEPT) is not ColumnAction.KEPT:
            was = written((*before.family[0], column))
            return (
                f"{was}, which the selection drops or masks, is now called {now}: add that to drop or mask, or to keep if it "
                f"is to be seen, and leave {was}? for the rows from before"
            )
        for other, companions in lost.items():
            if column not in companions:
                was = written((*before.family[0], other))
                return (
                    f"{now} is new and may be {was}, which the selection drops or masks, under another name: add it to drop or "
                    f"mask, or to keep if it is another column, and leave {was}? for the rows from before"
                )
    return None


def _is_kept(rules: Rules, after: TableSelection, column: str) -> bool:
    of: list[Names] = [(*names, column) for names in after.family]
    return rules.keep.match(*of)


def _moved(before: Sequence[str], after: Sequence[str]) -> set[str]:
    """Columns of both descriptions whose order changed: one got another's name, or was dropped and added again.

    An ALTER TABLE never moves a column, and a new one comes last.
    """
    known, now = set(before), set(after)
    pairs = zip([one for one in before if one in now], [one for one in after if one in known], strict=True)
    return {one for pair in pairs if pair[0] != pair[1] for one in pair}
