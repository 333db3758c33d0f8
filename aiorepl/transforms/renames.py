"""Detects renames after which the patterns of a selection may mean something else. Pure.

Patterns match names, and names change: the mask of a renamed column no longer matches. PostgreSQL sends no DDL, so a rename
shows only as a difference between two descriptions of a table. If a hidden column may be visible under another name, or
selected rows would be missing, the sink stops and the user has to correct the patterns.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiorepl.source.catalog.tables import Name
from aiorepl.transforms.patterns import Names, quote
from aiorepl.transforms.rules import ColumnAction, Rules, TableSelection


def parent_conflict(rules: Rules, table: TableSelection, parents: Sequence[Name]) -> str | None:
    """Return the problem if the table's selection depends on whether it was a partition of ``parents``; else ``None``."""
    for parent in parents:
        family = (*table.family, parent)
        if rules.selects(family) != table.selected and not rules.tables.decide(table.family, [parent]):
            return (
                f"table {table.name} was dropped or detached before it was looked up, and may have been a partition or child of "
                f"{quote(parent)}: add {table.name}? to tables if its rows are wanted, or !{table.name}? if they are not"
            )
    return None


def missing_columns(before: TableSelection, after: TableSelection) -> dict[str, frozenset[str]]:
    """Return the hidden columns that have disappeared, each with the columns that the table had at that time."""
    moved = _moved_columns(list(before.actions), list(after.actions))
    hidden = {column for column, action in before.actions.items() if action is not ColumnAction.KEPT}
    missing = {column for column in hidden if column not in after.actions or column in moved}
    earlier = {column: others for column, others in before.missing.items() if column not in after.actions}
    return earlier | dict.fromkeys(missing, frozenset(before.actions) - moved)


def rename_conflict(rules: Rules, before: TableSelection, after: TableSelection) -> str | None:
    """Return the problem if the patterns may mean something else in ``after``, the next description; else ``None``."""
    if after.selected != before.selected and not rules.tables.decide(after.family, before.family):
        verb = "includes" if after.selected else "excludes"
        return (
            f"table {before.name} was renamed to {after.name}, which the selection {verb}: add {after.name} or "
            f"!{after.name} to tables, and keep {before.name}? for the rows from before"
        )
    if not after.selected:
        return None
    missing = missing_columns(before, after)
    for column, action in after.actions.items():
        if action is not ColumnAction.KEPT or _matches_keep(rules, after, column):
            continue
        now = quote((*after.family[0], column))
        if column not in missing and before.actions.get(column, ColumnAction.KEPT) is not ColumnAction.KEPT:
            was = quote((*before.family[0], column))
            return (
                f"{was}, which the selection drops or masks, was renamed to {now}: add {now} to drop or mask, or to keep if "
                f"it may be visible, and leave {was}? for the rows from before"
            )
        for other, companions in missing.items():
            if column not in companions:
                was = quote((*before.family[0], other))
                return (
                    f"{now} is new and may be {was}, which the selection drops or masks, under another name: add {now} to "
                    f"drop or mask, or to keep if it is another column, and leave {was}? for the rows from before"
                )
    return None


def _matches_keep(rules: Rules, after: TableSelection, column: str) -> bool:
    names: list[Names] = [(*table, column) for table in after.family]
    return rules.keep.match(*names)


def _moved_columns(before: Sequence[str], after: Sequence[str]) -> set[str]:
    """Return the columns of both descriptions whose order changed: they were renamed, or dropped and added again.

    ALTER TABLE never moves a column, and adds a new one at the end.
    """
    earlier, later = set(before), set(after)
    pairs = zip(
        [name for name in before if name in later], [name for name in after if name in earlier], strict=True
    )
    return {name for pair in pairs if pair[0] != pair[1] for name in pair}
