"""One batch as several that may be written at the same time: no two of them touch what is in order with each other. Pure.

What is in order with what, ``Order`` says: the changes of a key, of a table, or of a routing key. A change may touch two
of them (an update that changes the key) and then ties them together. A change that touches everything (a truncate among keys)
parts the batch in stages: a stage is written when the one before it is done.

Tables are identified by oid, because names change. Partitions of one table share its keys, because a row that moves to
another partition is deleted in one and inserted in the other. Two keys are comparable only if they are values of the same
columns: a new stage begins when a table is described anew, or when a partition has a different replica identity.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.sink import Batch, RoutingKey
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.rows import Raw
from aiorepl.transactions.schema_changes import SchemaChange

Places = tuple[Hashable, ...] | None
"""What a change touches, ``None`` for everything."""
Touched = Callable[[Change], Places]
"""Tells it of the changes of one batch, in order."""
Order = Callable[[TableCatalog], Touched]
# Stands for an unknown root; no table has this oid.
_ANY: Final = (0,)
ORDERS = ("key", "table", "routing_key")


def order(by: str, routing_key: RoutingKey | None) -> Order:
    """What is in order, by its name.

    :raises ConfigurationError: for another name, and for ``routing_key`` without one.
    """
    if by == "key":
        return by_key
    if by == "table":
        return by_table
    if by != "routing_key":
        raise ConfigurationError(f"order {by!r} does not exist: it is {', '.join(ORDERS)}")
    if routing_key is None:
        raise ConfigurationError("order = routing_key needs a routing_key")
    key = routing_key
    return lambda _: _ByRoutingKey(key).touched


def stages(batch: Batch, lanes: int, touched: Touched) -> Iterator[list[Batch]]:
    """The batch in stages of up to ``lanes`` batches each, of about the same number of changes.

    In each of them a transaction has those of its changes that belong there, and is ``first`` and ``last`` as it was in
    the batch. Slices without changes are left out.
    """
    stage = _Stage()
    for number, part in enumerate(batch.slices):
        for change in part.changes:
            places = None if isinstance(change, SchemaChange) else touched(change)
            if places is not None:
                stage.add(number, change, places)
                continue
            yield from stage.batches(batch, lanes)
            yield [Batch((replace(part, changes=(change,)),))]
            stage = _Stage()
    yield from stage.batches(batch, lanes)


class _Stage:
    """Changes between two that touch everything, in groups that grow together where a change touches two."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, Change, Hashable]] = []
        self._parent: dict[Hashable, Hashable] = {}

    def add(self, number: int, change: Change, places: tuple[Hashable, ...]) -> None:
        first = self._find(places[0])
        for place in places[1:]:
            self._parent[self._find(place)] = first
        self._changes.append((number, change, first))

    def batches(self, batch: Batch, lanes: int) -> Iterator[list[Batch]]:
        """The stage's batches, as the only item; nothing for an empty stage."""
        if not self._changes:
            return
        sizes: dict[Hashable, int] = {}
        for _, _, place in self._changes:
            root = self._find(place)
            sizes[root] = sizes.get(root, 0) + 1
        loads = [0] * min(lanes, len(sizes))
        lane_of: dict[Hashable, int] = {}
        for root in sorted(sizes, key=sizes.__getitem__, reverse=True):
            number = lane_of[root] = loads.index(min(loads))
            loads[number] += sizes[root]
        parts: list[dict[int, list[Change]]] = [{} for _ in loads]
        for number, change, place in self._changes:
            parts[lane_of[self._find(place)]].setdefault(number, []).append(change)
        whole = batch.slices
        yield [
            Batch(tuple(replace(whole[number], changes=changes) for number, changes in part.items()))
            for part in parts
        ]

    def _find(self, place: Hashable) -> Hashable:
        parent = self._parent
        root = place
        while (above := parent.get(root, root)) != root:
            root = above
        parent[place] = root
        return root


def by_table(catalog: TableCatalog) -> Touched:
    """Keep changes in order within a table and all tables with the same root."""

    def touched(change: Change) -> Places:
        if isinstance(change, RowChange):
            return catalog.roots(change.layout.relation.oid)
        if isinstance(change, Truncate):
            return tuple(root for relation in change.relations for root in catalog.roots(relation.oid))
        return (("", change.prefix),) if isinstance(change, Message) else None

    return touched


def by_key(catalog: TableCatalog) -> Touched:
    """Keep changes in order within a row, by its replica identity; without one, within its table."""
    return _ByKey(catalog).touched


class _ByRoutingKey:
    """Keep changes with the same routing key in order. A template's result may differ once a table is described anew."""

    def __init__(self, routing_key: RoutingKey) -> None:
        self._routing_key = routing_key
        self._seen: set[Relation] = set()
        self._described: set[int] = set()

    def touched(self, change: Change) -> Places:
        if isinstance(change, RowChange) and (relation := change.layout.relation) not in self._seen:
            self._seen.add(relation)
            if relation.oid in self._described:
                return None
            self._described.add(relation.oid)
        return self._routing_key(change)


class _Keyed:
    """The key columns of one description of a table.

    :ivar places: indexes of the key's columns, sorted by name, because partitions may order columns differently.
    :ivar identity: two keys are comparable only if their identities are equal.
    """

    __slots__ = ("identity", "places", "roots")

    def __init__(self, relation: Relation, roots: tuple[int, ...]) -> None:
        columns = relation.columns
        self.roots = roots
        self.places = tuple(sorted(relation.key, key=lambda place: columns[place].name))
        self.identity = tuple((columns[place].name, columns[place].type_oid) for place in self.places)


class _ByKey:
    """Tells what the changes of one batch touch, in order."""

    def __init__(self, catalog: TableCatalog) -> None:
        self._catalog = catalog
        self._relation: Relation | None = None
        self._roots: tuple[int, ...] = ()
        self._places: tuple[int, ...] = ()
        self._known: dict[Relation, _Keyed] = {}
        self._described: set[int] = set()
        self._identities: dict[int, Hashable] = {}
        self._unknown = False

    def touched(self, change: Change) -> Places:
        if not isinstance(change, RowChange):
            return (("", change.prefix),) if isinstance(change, Message) else None
        relation = change.layout.relation
        if relation is not self._relation and self._parts(relation):
            return None
        roots, places = self._roots, self._places
        if not places:
            return roots
        new, old = change.raw_new, change.raw_old
        # An insert, and an update that keeps the key, touch the new row only.
        first = _key(new if old is None else old, places)
        second = first if new is None or old is None else _key(new, places)
        if UNCHANGED in first or UNCHANGED in second:
            # The key was too large to be sent (unchanged TOAST), so the row is unknown.
            return None
        if first == second:
            return tuple([(root, first) for root in roots])
        return tuple([(root, key) for root in roots for key in (first, second)])

    def _parts(self, relation: Relation) -> bool:
        """Take a new description; return whether its keys are not comparable with the earlier ones."""
        self._relation = relation
        keyed = self._known.get(relation)
        parts = False
        # A dropped table may have been a partition of any other table.
        unknown = self._catalog.unknown(relation.oid)
        if keyed is None:
            roots = _ANY if unknown else self._catalog.roots(relation.oid)
            keyed = self._known[relation] = _Keyed(relation, roots)
            parts = relation.oid in self._described
            self._described.add(relation.oid)
        self._roots, self._places = keyed.roots, keyed.places
        for root in keyed.roots:
            parts |= self._identities.setdefault(root, keyed.identity) != keyed.identity
            self._identities[root] = keyed.identity
        before, self._unknown = self._unknown, unknown
        return parts or before is not unknown


def _key(columns: list[Raw] | None, places: tuple[int, ...]) -> tuple[Raw, ...]:
    assert columns is not None  # a change has a new row, or an old one, or both
    return tuple([columns[place] for place in places])
