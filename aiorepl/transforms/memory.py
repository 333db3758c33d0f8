"""Remembers the descriptions of tables for a selection, so that a rename cannot disclose hidden columns. Pure, except for ``persist``.

Patterns match names, and names change. So each description of a table is compared with the previous one, even across a restart:
the memory becomes durable before the sink's position passes the rows of a description. The memory has only names; what is hidden
follows from the patterns of the present configuration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiorepl.errors import ConfigurationError
from aiorepl.source.catalog.tables import CatalogTable, Name, TableCatalog
from aiorepl.storage.checked_json import integer, text
from aiorepl.transforms.renames import rename_conflict
from aiorepl.transforms.rules import KEPT, HiddenColumn, Rules, TableSelection, select_table

_UINT32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Remembered:
    """The last description of a table.

    :param columns: the names of its columns, in their order, each with its number, if that is known.
    :param missing: columns that earlier descriptions had, each with the columns that the table had at that time.
    :param ancestors: the names of its ancestors, by oid.
    """

    oid: int
    names: Name
    columns: tuple[tuple[str, int | None], ...]
    missing: Mapping[HiddenColumn, frozenset[str]] = field(default_factory=dict)
    ancestors: Mapping[int, tuple[Name, ...]] = field(default_factory=dict)

    def select(self, rules: Rules, catalog: TableCatalog, oid: int) -> TableSelection:
        """Apply the rules to this description.

        :param oid: the table that this description is compared with. If that is another table of the same name, its ancestors do
            not count.
        """
        family = (self.names, *(catalog.ancestors(oid) if oid == self.oid else ()))
        missing = {
            column: others
            for column, others in self.missing.items()
            if rules.action(family, column.name) is not KEPT
        }
        return replace(select_table(rules, self.oid, family, dict(self.columns)), missing=missing)


class SelectionMemory:
    """The last description of each table that one sink's selection was applied to.

    :param write: makes the output of ``to_json`` durable; ``None``: the memory is lost at a restart.
    :param count_writes: returns how often this memory was written.
    """

    def __init__(
        self,
        rules: Rules,
        write: Callable[[list[Any]], Awaitable[None]] | None = None,
        count_writes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._rules = rules
        self.count_writes = count_writes
        self._write = write
        # By oid and by name, in the order in which the tables were described last.
        self._tables: dict[int, Remembered] = {}
        self._names: dict[Name, Remembered] = {}
        self._changed = False

    def get(self, known: int | Name) -> Remembered | None:
        """The last description of the table that has this oid, or this name."""
        return self._tables.get(known) if isinstance(known, int) else self._names.get(known)

    def add(self, table: Remembered, selection: TableSelection) -> None:
        """Remember a description.

        :param selection: the result of the rules for the description.
        """
        if self._tables.get(table.oid) == table and self._names.get(table.names) == table:
            return
        self._put(table)
        hides = any(action is not KEPT for action in selection.actions.values())
        # Write the memory only if a column could be disclosed, or rows lost.
        self._changed |= hides or bool(table.missing or self._rules.tables)

    def may_disclose(self, oid: int, names: Name, columns: Mapping[str, int | None]) -> bool:
        """Whether visible columns of a table may be columns that were hidden under other names.

        :param columns: the columns as they are now, each with its number, if that is known.
        """
        for before in (self.get(oid), self.get(names)):
            if before is None:
                continue
            catalog = TableCatalog()
            catalog.remember(oid, before.ancestors)
            after = select_table(self._rules, oid, (names, *catalog.ancestors(oid)), columns)
            if rename_conflict(self._rules, before.select(self._rules, catalog, oid), after) is not None:
                return True
        return False

    @property
    def oids(self) -> set[int]:
        """The oids of the tables that are remembered."""
        return set(self._tables)

    @property
    def kept(self) -> bool:
        """Whether the memory survives a restart."""
        return self._write is not None

    async def persist(self) -> None:
        """Make the memory durable if it has changed.

        :raises SinkError: the folder cannot be written.
        """
        if self._changed and self._write is not None:
            self._changed = False
            try:
                await self._write(self.to_json())
            except BaseException:
                self._changed = True
                raise

    def begin(self, catalog: TableCatalog) -> None:
        """Compare the memory with the published tables, and add the tables.

        :raises ConfigurationError: the selection would hide less than it did before, or select other tables.
        """
        for remembered in self._tables.values():
            # A table that was detached meanwhile still has its rows, so it stays hidden.
            catalog.remember(remembered.oid, remembered.ancestors)
        problems = [problem for table in catalog for problem in self._problems(table, catalog)]
        if problems:
            raise ConfigurationError("; ".join(dict.fromkeys(problems)))
        there = {table.oid for table in catalog}
        for oid in self._tables.keys() - there:
            # The table is no longer published. It is forgotten only if another table has its name now.
            if (other := catalog.named(self._tables[oid].names)) is not None and other.oid != oid:
                del self._tables[oid]
        for table in catalog:
            self._adopt(table, catalog)

    def to_json(self) -> list[Any]:
        """Return the memory as JSON types."""
        # First the descriptions under names that their tables no longer have, so that ``load`` keeps the present descriptions.
        former = [table for table in self._names.values() if self._tables.get(table.oid) is not table]
        return [
            {
                "oid": table.oid,
                "schema": table.names[0],
                "table": table.names[1],
                "columns": table.columns,
                "missing": [[*column, sorted(others)] for column, others in table.missing.items()],
                "ancestors": {
                    str(oid): [list(each) for each in names] for oid, names in table.ancestors.items()
                },
            }
            for table in (*former, *self._tables.values())
            if self._matters(table)
        ]

    def load(self, tables: Iterable[Mapping[str, Any]]) -> None:
        """Add the output of ``to_json``.

        :raises ValueError, TypeError, LookupError: the output is malformed.
        """
        for each in tables:
            missing = {
                HiddenColumn(str(name), _number(number)): frozenset(map(str, others))
                for name, number, others in each["missing"]
            }
            ancestors = {
                int(oid): tuple((str(schema), str(name)) for schema, name in names)
                for oid, names in each["ancestors"].items()
            }
            names = text(each, "schema"), text(each, "table")
            columns = tuple((str(name), _number(number)) for name, number in each["columns"])
            self._put(Remembered(integer(each, "oid", _UINT32), names, columns, missing, ancestors))

    def _put(self, table: Remembered) -> None:
        self._tables.pop(table.oid, None)
        self._tables[table.oid] = self._names[table.names] = table

    def _matters(self, table: Remembered) -> bool:
        family = (table.names, *(name for names in table.ancestors.values() for name in names))
        hidden = (self._rules.action(family, column) is not KEPT for column, _ in table.columns)
        return bool(self._rules.tables or table.missing) or any(hidden)

    def _problems(self, table: CatalogTable, catalog: TableCatalog) -> Iterator[str]:
        family = (table.names, *catalog.ancestors(table.oid))
        after = select_table(self._rules, table.oid, family, table.numbered)
        for before in (self.get(table.oid), self.get(table.names)):
            if before is not None:
                problem = rename_conflict(self._rules, before.select(self._rules, catalog, table.oid), after)
                if problem is not None:
                    yield problem

    def _adopt(self, table: CatalogTable, catalog: TableCatalog) -> None:
        """Add a table of the catalog. If the table is known already, add only hidden columns that no description had."""
        known = self._tables.get(table.oid)
        family = (table.names, *catalog.ancestors(table.oid))
        selection = select_table(self._rules, table.oid, family, table.numbered)
        if known is None:
            columns = tuple(table.numbered.items())
            new = Remembered(table.oid, table.names, columns, ancestors=catalog.ancestor_names(table.oid))
        else:
            described = dict(known.columns)
            hidden = {
                column: frozenset(table.columns) - {column.name}
                for column in selection.hidden
                if column.name not in described or described[column.name] not in (None, column.number)
            }
            ancestors = {**known.ancestors, **catalog.ancestor_names(table.oid)}
            new = replace(known, missing={**hidden, **known.missing}, ancestors=ancestors)
        if new != known:
            self.add(new, selection)


def _number(value: Any) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError("a column's number is no integer")
    return value
