"""The settings of a mirror for each of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.table import Layout, Mode
from aiorepl.spark.mirroring.column_types import Choices, ColumnTypes, choices_of
from aiorepl.table_name import TableName
from aiorepl.transforms.patterns import Patterns
from aiorepl.transforms.selection import Selection

OnError = Literal["halt", "set_aside"]

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The checked settings of a mirror.

    :param tables: patterns of the tables that are mirrored.
    :param modes: the mode by pattern; the first pattern that matches a table applies.
    :param keys: by pattern, the columns that identify a row, for tables whose replica identity names none.
    :param layouts: the layout by pattern.
    :param null: whether a value that its column's type cannot represent becomes null instead of an error.
    :param on_error: ``halt`` or ``set_aside``: the reaction to a table that cannot be written.
    :param selection: the columns that are dropped or masked; ``None`` if no column is hidden.
    :param types: the types of columns by pattern.
    """

    tables: Patterns
    modes: tuple[tuple[Patterns, Mode], ...]
    keys: tuple[tuple[Patterns, tuple[str, ...]], ...]
    layouts: tuple[tuple[Patterns, Layout], ...]
    null: bool
    on_error: OnError
    selection: Selection | None = None
    types: Choices = ()

    @classmethod
    def of(
        cls,
        tables: Sequence[str],
        mode: Mode | Mapping[str, Mode],
        keys: Mapping[str, Sequence[str]],
        layout: Layout | Mapping[str, Layout],
        unrepresentable: Literal["error", "null"],
        on_error: OnError,
        selection: Selection | None = None,
        types: Mapping[str, str] = MappingProxyType({}),
    ) -> Settings:
        """Check the arguments of ``mirror``.

        :raises ConfigurationError: an argument cannot work; the message names the argument.
        """
        if isinstance(tables, str) or not tables:
            raise ConfigurationError(
                'tables is a list of patterns, such as ["public.*", "!public.sessions"], and not empty'
            )
        if selection is not None and (selection.tables or selection.kinds):
            raise ConfigurationError(
                "the selection of a mirror takes drop, mask and keep, but no tables or kinds: name the tables in the mirror's option tables"
            )
        columns: dict[str, tuple[str, ...]] = {}
        for pattern, names in keys.items():
            if isinstance(names, str) or not names:
                raise ConfigurationError(f"keys: {pattern!r} has no list of columns")
            columns[pattern] = tuple(names)
        return cls(
            Patterns("tables", tuple(tables), 2, exclusions=True),
            _by_pattern("mode", mode),
            _by_pattern("keys", columns),
            _by_pattern("layout", layout),
            unrepresentable == "null",
            on_error,
            selection if selection is not None and selection.rules else None,
            choices_of(types),
        )

    def wanted(self, table: TableName) -> bool:
        """Whether a table is mirrored."""
        return not table.messages and self.tables.match((table.schema, table.name))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of tables, as the user wrote them."""
        return tuple(each.text for each in self.tables.all)

    def added(self, table: TableName, former: Sequence[str]) -> bool:
        """Whether the patterns match a table that the ``former`` patterns did not match."""
        names = (table.schema, table.name)
        return self.wanted(table) and not Patterns("tables", tuple(former), 2, exclusions=True).match(names)

    def mode_of(self, table: TableName) -> Mode:
        """Return the mode of a table.

        :raises ConfigurationError: no pattern of ``mode`` matches it.
        """
        found = _of(self.modes, table)
        if found is None:
            raise ConfigurationError(f'no pattern of mode matches {table}: add "*.*" as the last one')
        return found

    def keys_of(self, table: TableName) -> tuple[str, ...]:
        """Return the columns that the user named as the key of a table."""
        return _of(self.keys, table) or ()

    def types_of(self, table: TableName) -> ColumnTypes:
        return ColumnTypes(table, self.types)

    def layout_of(self, table: TableName) -> Layout:
        return _of(self.layouts, table) or Layout()


def _by_pattern(option: str, value: Any) -> tuple[tuple[Patterns, Any], ...]:
    """Parse a value for each pattern; a single value applies to all tables."""
    each = value if isinstance(value, Mapping) else {"*.*": value}
    return tuple((Patterns(option, (pattern,), 2), found) for pattern, found in each.items())


def _of(values: Sequence[tuple[Patterns, T]], table: TableName) -> T | None:
    return next((value for patterns, value in values if patterns.match((table.schema, table.name))), None)
