"""Detects renames after which the patterns of a selection may mean something else. Pure.

Patterns match names, and names change: the mask of a renamed column no longer matches. PostgreSQL sends no DDL, so a rename
shows only as a difference between two descriptions of a table. If a hidden column may be visible under another name, or
selected rows would be missing, the sink stops and the user has to correct the patterns. A method that shows a part of each value hides less
than any other method.

A column keeps its number in the catalog as long as it exists, and no other column of the table gets it. So a number tells which
column was hidden or visible before. A new column may have the values of a hidden column that has disappeared, so it counts as
that column. So does a column of a known name, if its number before or after is not known. Where no number is known, the order of
the names tells whether a hidden column may have been replaced by another column of its name. Where no number was known before,
and all numbers are known now, names count only if all names are as before and the numbers are 1, 2 and so on. If a number is
missing, a column was dropped or is not published, and a hidden column may have got its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiorepl.source.catalog.tables import Name
from aiorepl.transforms.methods import Method
from aiorepl.transforms.patterns import Names, quote
from aiorepl.transforms.rules import KEPT, ColumnAction, HiddenColumn, Rules, TableSelection


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


def missing_columns(before: TableSelection, after: TableSelection) -> dict[HiddenColumn, frozenset[str]]:
    """Return the hidden columns that have disappeared, each with the columns that the table had at that time."""
    moved = _moved_columns(list(before.actions), list(after.actions))
    companions = frozenset(before.actions) - moved
    known = {**before.missing, **dict.fromkeys(before.hidden, companions)}
    return {
        # Another table under the same name has other numbers.
        hidden if after.oid == before.oid else HiddenColumn(hidden.name): others
        for hidden, others in known.items()
        if not _is_there(hidden, before, after, moved)
    }


def rename_conflict(
    rules: Rules, before: TableSelection, after: TableSelection, *, gone: bool = False
) -> str | None:
    """Return the problem if the patterns may mean something else in ``after``, the next description; else ``None``.

    :param gone: whether the table no longer existed when it was looked up, so that no number is known.
    """
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
        shows = isinstance(action, Method) and action.shows
        if (action is not KEPT and not shows) or _matches_keep(rules, after, column):
            continue
        now = quote((*after.family[0], column))
        if (hidden := _former(column, before, after)) is not None and _action(
            rules, before, hidden
        ) != action:
            was = quote((*before.family[0], hidden.name))
            if shows:
                return (
                    f"{was}, which the selection hides by another method, was renamed to {now}, and the selection masks this by a method "
                    f"that shows a part of each value: mask {now} by hash, or drop it, or mask {was}? by the same method"
                )
            return (
                f"{was}, which the selection drops or masks, was renamed to {now}: add {now} to drop or mask, or to keep if "
                f"it may be visible, and leave {was}? for the rows from before"
            )
        if shows and rules.names(after.family, column):
            continue
        for hidden in _possible(column, before, after, missing, gone=gone):
            was = quote((*before.family[0], hidden.name))
            return (
                f"{now} is new and may be {was}, which the selection drops or masks, under another name: add {now} to "
                f"drop or mask, or to keep if it is another column, and leave {was}? for the rows from before"
            )
    return None


def _former(column: str, before: TableSelection, after: TableSelection) -> HiddenColumn | None:
    """Return the hidden column that a visible column was before a rename; ``None`` if it was none."""
    number = after.numbers[column] if after.oid == before.oid else None
    for hidden in (*before.hidden, *before.missing):
        if number is not None and hidden.number is not None:
            if hidden.number == number:
                return hidden
        elif hidden.name == column:
            return hidden
    return None


def _possible(
    column: str,
    before: TableSelection,
    after: TableSelection,
    missing: dict[HiddenColumn, frozenset[str]],
    *,
    gone: bool,
) -> Iterator[HiddenColumn]:
    """Yield the hidden columns that a visible column may have been before a rename, where numbers do not decide."""
    same = after.oid == before.oid
    number = after.numbers[column] if same else None
    if number is not None and number in before.numbers.values():
        return
    # In a table with numbers, a name without a number proves nothing: the column may have been dropped, and a hidden one renamed
    # to it.
    numbered = any(each is not None for each in (*before.numbers.values(), *after.numbers.values()))
    for hidden, companions in missing.items():
        if column not in companions or (same and numbered and None in (number, hidden.number)):
            yield hidden
    if not same:
        return
    # The numbers of columns that were altered in the transaction of the rows, or later, may be unknown.
    altered = number is None and before.numbers.get(column) is not None and not gone
    renamed = column not in before.actions and _precedes_known(column, before, after)
    unproven = number is not None and not _continues(before, after)
    for hidden in before.hidden:
        if hidden.number is not None and hidden.number in after.numbers.values():
            continue
        old_name = renamed and hidden not in missing and (number is None or hidden.number is None)
        if altered or old_name or (unproven and hidden.number is None):
            yield hidden


def _precedes_known(column: str, before: TableSelection, after: TableSelection) -> bool:
    """Whether a column with a new name precedes one with a known name. ALTER TABLE adds columns at the end, so the column was renamed."""
    names = list(after.actions)
    return any(name in before.actions for name in names[names.index(column) + 1 :])


def _continues(before: TableSelection, after: TableSelection) -> bool:
    """Whether the names prove that the columns are the same. True if any number was known before, because the numbers decide then.

    Otherwise the next description must begin with the same names and with the numbers 1, 2 and so on. If a number is missing, a
    column was dropped or is not published, and a hidden column may have got its name.
    """
    if any(number is not None for number in before.numbers.values()):
        return True
    count = len(before.actions)
    numbers = list(after.numbers.values())[:count]
    return list(before.actions) == list(after.actions)[:count] and numbers == list(range(1, count + 1))


def _is_there(hidden: HiddenColumn, before: TableSelection, after: TableSelection, moved: set[str]) -> bool:
    """Whether a hidden column is in the next description, under any name."""
    if after.oid == before.oid and hidden.number is not None:
        if hidden.number in after.numbers.values():
            return True
        if after.numbers.get(hidden.name) is not None:
            return False
    return hidden.name in after.actions and (hidden in before.missing or hidden.name not in moved)


def _action(rules: Rules, before: TableSelection, hidden: HiddenColumn) -> ColumnAction:
    """Return the action for a hidden column of a description, or of an earlier one."""
    return before.actions.get(hidden.name) or rules.action(before.family, hidden.name)


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
