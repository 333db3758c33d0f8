"""The patterns of a selection, and what they say about one description of a table. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiorepl.source.catalog.tables import Name
from aiorepl.transforms.methods import Method
from aiorepl.transforms.patterns import Patterns, quote


class Fixed(enum.Enum):
    """A column is passed on, or dropped."""

    KEPT = enum.auto()
    DROPPED = enum.auto()


ColumnAction = Fixed | Method
"""Whether a column is passed on, dropped, or masked by a method."""
KEPT: Final = Fixed.KEPT
DROPPED: Final = Fixed.DROPPED


@dataclass(frozen=True, slots=True)
class Rules:
    """The patterns of a selection.

    :param keep: columns that stay visible, and that never count as a renamed hidden column.
    :param methods: the method of each pattern of ``mask``.
    """

    tables: Patterns
    drop: Patterns
    mask: Patterns
    keep: Patterns
    methods: tuple[Method, ...] = ()

    def __bool__(self) -> bool:
        return any((self.tables, self.drop, self.mask))

    def selects(self, family: Sequence[Name]) -> bool:
        """Whether the table is selected.

        :param family: the names of the table and of its ancestors.
        """
        return not self.tables or self.tables.match(*family)

    def may_hide(self, column: str) -> bool:
        """Whether columns of this name are dropped or masked in some table."""
        return any(pattern.matches_last(column) for pattern in (*self.drop.all, *self.mask.all))

    def names(self, family: Sequence[Name], column: str) -> bool:
        """Whether an exact pattern of ``mask`` matches a column of the table with these names."""
        return any(
            pattern.exact and pattern.match((*table, column)) for pattern in self.mask.all for table in family
        )

    def action(self, family: Sequence[Name], column: str) -> ColumnAction:
        """Return the action for a column of the table with these names. The method is that of the first pattern that matches."""
        names = [(*table, column) for table in family]
        if self.keep.match(*names):
            return KEPT
        if self.drop.match(*names):
            return DROPPED
        for pattern, method in zip(self.mask.all, self.methods, strict=True):
            if any(map(pattern.match, names)):
                return method
        return KEPT


class HiddenColumn(NamedTuple):
    """A dropped or masked column: its name, and its number in the catalog if that is known."""

    name: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class TableSelection:
    """The result of the rules for one description of a table.

    :param oid: the table.
    :param family: the names of the table and of its ancestors.
    :param selected: whether the table is selected.
    :param actions: the action for each column, in the order of the columns.
    :param numbers: each column's number in the catalog (``attnum``), which a rename keeps; ``None`` if it is not known.
    :param missing: hidden columns that earlier descriptions had, each with the columns that the table had at that time.
    """

    oid: int
    family: tuple[Name, ...]
    selected: bool
    actions: Mapping[str, ColumnAction]
    numbers: Mapping[str, int | None]
    missing: Mapping[HiddenColumn, frozenset[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table's own name, quoted as in a pattern."""
        return quote(self.family[0])

    @property
    def hidden(self) -> list[HiddenColumn]:
        """The hidden columns of this description."""
        return [
            HiddenColumn(column, self.numbers[column])
            for column, action in self.actions.items()
            if action is not KEPT
        ]


def select_table(
    rules: Rules,
    oid: int,
    family: Sequence[Name],
    columns: Mapping[str, int | None],
    relatives: Sequence[Name] = (),
) -> TableSelection:
    """Apply the rules to a table with these names and columns.

    :param columns: the columns in their order, each with its number, if that is known.
    :param relatives: tables that it may have been a partition of; columns that are hidden there are hidden here.
    """
    names = (*family, *relatives)
    actions = {column: rules.action(names, column) for column in columns}
    return TableSelection(oid, tuple(family), rules.selects(family), actions, columns)
