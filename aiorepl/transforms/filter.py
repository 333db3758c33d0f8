"""Applies a selection to the stream of one sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, overload

from aiorepl.errors import PermanentError
from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.source.catalog.tables import CatalogTable, Name, TableCatalog
from aiorepl.transactions.changes import Change, RowChange, Truncate
from aiorepl.transactions.lazy_changes import LazyChanges
from aiorepl.transactions.pending import OVERHEAD
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.masking import Rewriting, truncation
from aiorepl.transforms.memory import Remembered, SelectionMemory
from aiorepl.transforms.renames import missing_columns, parent_conflict, rename_conflict
from aiorepl.transforms.rules import KEPT, HiddenColumn, TableSelection, select_table
from aiorepl.transforms.selection import KINDS, Selection

Own = tuple[int, str, str, tuple[Column, ...], tuple[int | None, ...]]
"""Oid, schema, name and columns of a Relation message, and the columns' numbers in the catalog, as far as they are known."""
Description = tuple[Own, tuple[Name, ...], tuple[Name, ...], tuple[int, ...]]
"""Everything that a selection depends on: the description, the names of the table's ancestors and possible former parents, and the
partitions whose rows arrive under its name."""


class _Table:
    """What the selection does with the rows of one relation."""

    __slots__ = ("relation", "rewriting", "selected")

    def __init__(self, relation: Relation, selected: bool, rewriting: Rewriting | None) -> None:
        self.relation = relation
        self.selected = selected
        self.rewriting = rewriting

    @property
    def target(self) -> Relation:
        return self.relation if self.rewriting is None else self.rewriting.target


class StreamFilter:
    """Applies a selection to a sink's slices. Keeps a few bytes for each table.

    Use a new one for each reading of a stream, because it compares each description with the previous one.

    :param sink: the name of the sink, for errors; empty if there is no sink.
    :param catalog: the catalog's information about the tables.
    :param memory: the descriptions that the selection was applied to before; by default none.
    """

    def __init__(
        self,
        selection: Selection,
        sink: str = "",
        catalog: TableCatalog | None = None,
        memory: SelectionMemory | None = None,
    ) -> None:
        self._sink = sink
        self._catalog = TableCatalog() if catalog is None else catalog
        self._rules = rules = selection.rules
        self._kinds = selection.selected_kinds
        self._masks = selection.masks
        # By oid, so that the dictionary does not grow when tables are described again. Valid for one version of the catalog.
        self._version = self._catalog.version
        self._current: dict[int, _Table] = {}
        # Each description is checked once, although changes may be walked more than once.
        self._accepted: dict[Description, TableSelection] = {}
        self._memory = SelectionMemory(rules) if memory is None else memory
        self.filters = bool(rules.tables) or len(self._kinds) < len(KINDS)
        self.open = not (self.filters or rules.drop or rules.mask)

    def apply(self, part: Slice) -> Slice:
        """Return the slice with the selected changes; the same object if nothing is left out.

        Spooled changes stay on disk and are selected when they are iterated over. Their slice keeps its ``size``, since
        a new one would need an iteration. If a restart has the memory, new descriptions are judged now, because the memory has
        to be durable before a sink gets their rows.

        :raises DataError: a column to be masked is not valid for its type; for spooled changes, on iteration.
        :raises PermanentError: after a rename, the selection may mean something else; for spooled changes, on iteration.
        """
        changes = part.changes
        if self.open:
            return part
        if not isinstance(changes, (list, tuple)):
            if self._memory.kept and isinstance(changes, LazyChanges):
                self._judge(changes)
            return replace(part, changes=SelectedChanges(changes, self))
        unchanged = self._unchanged(changes)
        if unchanged == len(changes):
            return part
        kept: list[Change] = list(changes[:unchanged])
        size = part.size
        for change in islice(changes, unchanged, None):
            selected = self.select(change)
            if selected is not change:
                size -= _cost(change)
                if selected is None:
                    continue
                size += _cost(selected)
            kept.append(selected)
        return replace(part, changes=kept, size=max(size, 0))

    def _unchanged(self, changes: Sequence[Change]) -> int:
        """Return how many changes at the beginning are selected unchanged."""
        last: Relation | None = None
        all_kinds = len(self._kinds) == len(KINDS)
        for index, change in enumerate(changes):
            if isinstance(change, RowChange) and (all_kinds or change.kind in self._kinds):
                relation = change.layout.relation
                if relation is last:
                    continue
                table = self._table(relation)
                if table.selected and table.rewriting is None:
                    last = relation
                    continue
            elif self.select(change) is change:
                continue
            return index
        return len(changes)

    def selects(self, change: Change) -> bool:
        """Whether the change, or a part of it, is selected."""
        if change.kind not in self._kinds:
            return False
        if isinstance(change, RowChange):
            return self._table(change.layout.relation).selected
        if isinstance(change, Truncate):
            return any(self._table(relation).selected for relation in change.relations)
        return True

    def select(self, change: Change) -> Change | None:
        """Return the change itself, its selected form, or ``None`` if it is left out."""
        if change.kind not in self._kinds:
            return None
        if isinstance(change, RowChange):
            table = self._table(change.layout.relation)
            if not table.selected:
                return None
            return change if table.rewriting is None else table.rewriting.change(change)
        if isinstance(change, Truncate):
            tables = [self._table(relation) for relation in change.relations]
            targets = tuple(table.target for table in tables if table.selected)
            if targets == change.relations:  # relations compare by identity
                return change
            message = truncation(change.message, targets)
            return Truncate(change.transaction, change.ordinal, message) if targets else None
        return change

    def judge(self, relation: Relation) -> None:
        """Apply the rules to a description, and remember its names.

        :raises PermanentError: a hidden table or column was renamed, so the selection may show it.
        """
        self._table(relation)

    def _judge(self, changes: LazyChanges) -> None:
        """Apply the rules to each description that is new and that has rows.

        A description without rows may belong to a subtransaction that was rolled back. So the changes are searched for rows
        until each new description has one.
        """
        new = {
            _own(relation)
            for relation in changes.relations
            if self._description(relation) not in self._accepted
        }
        if not new:
            return
        for change in changes:
            relations: tuple[Relation, ...] = ()
            if change.kind not in self._kinds:
                continue
            if isinstance(change, RowChange):
                relations = (change.layout.relation,)
            elif isinstance(change, Truncate):
                relations = change.relations
            for relation in relations:
                self._table(relation)
                new.discard(_own(relation))
            if not new:
                return

    def _description(self, relation: Relation) -> Description:
        oid, catalog = relation.oid, self._catalog
        partitions = tuple([table.oid for table in catalog.descendants(oid)])
        return _own(relation), catalog.ancestors(oid), catalog.former_parents(oid, relation.names), partitions

    def _table(self, relation: Relation) -> _Table:
        if self._version != self._catalog.version:
            # A table may have become a partition without a new description.
            self._version = self._catalog.version
            self._current.clear()
        table = self._current.get(relation.oid)
        if table is None or table.relation is not relation:
            table = self._current[relation.oid] = self._create(relation)
        return table

    def _create(self, relation: Relation) -> _Table:
        description = self._description(relation)
        selection = self._accepted.get(description)
        if selection is None:
            selection = self._accepted[description] = self._check(relation)
        actions = [selection.actions[column] for column in relation.names]
        if not selection.selected or all(action is KEPT for action in actions):
            return _Table(relation, selection.selected, None)
        return _Table(relation, True, Rewriting(relation, actions, self._masks))

    def _check(self, relation: Relation) -> TableSelection:
        """Apply the rules to a new description.

        :raises PermanentError: after a rename, the selection may mean something else.
        """
        rules, catalog, oid = self._rules, self._catalog, relation.oid
        own: Name = relation.schema, relation.name
        relatives = catalog.former_parents(oid, relation.names)
        columns = dict(zip(relation.names, _numbers(relation), strict=True))
        selection = select_table(rules, oid, (own, *catalog.ancestors(oid)), columns, relatives)
        conflict = parent_conflict(rules, selection, relatives)
        missing: dict[HiddenColumn, frozenset[str]] = {}
        for before in (self._before(oid, oid), self._before(own, oid)):
            if before is not None:
                gone = catalog.unknown(oid)
                conflict = conflict or rename_conflict(rules, before, selection, gone=gone)
                missing |= missing_columns(before, selection)
        for table in catalog.descendants(oid):
            # publish_via_partition_root was set: rows of the partitions now arrive under this table.
            conflict = conflict or rename_conflict(rules, self._from_catalog(table), selection)
        if conflict is not None:
            owner = f"sink {self._sink}: " if self._sink else ""
            raise PermanentError(f"{owner}{conflict}", fatal=True)
        selection = replace(selection, missing=missing)
        described = Remembered(oid, own, tuple(columns.items()), missing, catalog.ancestor_names(oid))
        self._memory.add(described, selection)
        return selection

    def _before(self, known: int | Name, oid: int) -> TableSelection | None:
        """Return the selection for the table's latest description, or for the catalog's if there is none."""
        remembered = self._memory.get(known)
        if remembered is not None:
            return remembered.select(self._rules, self._catalog, oid)
        table = self._catalog.find(known) if isinstance(known, int) else self._catalog.named(known)
        return None if table is None else self._from_catalog(table)

    def _from_catalog(self, table: CatalogTable) -> TableSelection:
        family = table.names, *self._catalog.ancestors(table.oid)
        return select_table(self._rules, table.oid, family, table.numbered)


class SelectedChanges(Sequence[Change]):
    """Changes that are selected on each iteration; none is kept in memory."""

    __slots__ = ("_count", "_filter", "_source")

    def __init__(self, source: Sequence[Change], stream_filter: StreamFilter) -> None:
        self._source = source
        self._filter = stream_filter
        self._count = None if stream_filter.filters else len(source)

    def __len__(self) -> int:
        # Counting needs an iteration, so it is done once, without rewriting.
        if self._count is None:
            self._count = sum(map(self._filter.selects, self._source))
        return self._count

    def __bool__(self) -> bool:
        return any(map(self._filter.selects, self._source)) if self._count is None else self._count > 0

    def __iter__(self) -> Iterator[Change]:
        for change in self._source:
            selected = self._filter.select(change)
            if selected is not None:
                yield selected

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and index >= 0:
            for change in islice(self, index, None):
                return change
            raise IndexError("change index out of range")
        return list(self)[index]

    def __repr__(self) -> str:
        return "<selected changes>"


def _own(relation: Relation) -> Own:
    return relation.oid, relation.schema, relation.name, relation.columns, _numbers(relation)


def _numbers(relation: Relation) -> tuple[int | None, ...]:
    found = relation.attributes
    return tuple([found[name].number if name in found else None for name in relation.names])


def _cost(change: Any) -> int:
    """Return the change's share of its slice's size, in bytes."""
    return len(change.message.payload) + OVERHEAD
