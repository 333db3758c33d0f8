"""Partitions a batch for concurrent writes: changes that must stay in order are in the same part, or in different stages. Pure.

An ``Order`` maps each change to ordering keys: a row's key, a table, or a routing key. Changes that share an ordering key
stay in order. A change may have two keys (an UPDATE of the replica identity), which then belong together. A change without
keys (a TRUNCATE, under ``order="key"``) is ordered with all others: it is a stage of its own. A stage is written once the
previous stage is complete.

Tables are identified by oid, because names change. Partitions of one table share its keys, because PostgreSQL moves a row
between partitions with a DELETE and an INSERT. Keys are comparable only if they are values of the same columns: a new stage
begins when a table is described again, or when a partition has another replica identity. Keys are compared as bytes. Only
types whose equal values have equal bytes allow this; a table whose key has another type (such as numeric: 1.0 = 1.00) is
ordered as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.sink import Batch, RoutingKey
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.slices import Slice
from aiorepl.values.registry import Types
from aiorepl.values.types import DOMAIN, ENUM

OrderingKeys = tuple[Hashable, ...] | None
"""The ordering keys of a change; ``None`` if it is ordered with all others."""
KeyFunction = Callable[[Change], OrderingKeys]
"""Returns the ordering keys of each change of one batch. Called once per change, in order."""
Order = Callable[[TableCatalog], KeyFunction]
ORDERS = ("key", "table", "routing_key")

# Stands for an unknown root table; no table has this oid.
_ANY_ROOT: Final = (0,)
_BPCHAR: Final = 1042
# bool, bytea, "char", name, int8, int2, int4, text, oid, varchar, date, time, timestamp, timestamptz, bit, varbit, uuid
_BYTEWISE: Final = frozenset(
    (16, 17, 18, 19, 20, 21, 23, 25, 26, 1043, 1082, 1083, 1114, 1184, 1560, 1562, 2950)
)


def order(name: str, routing_key: RoutingKey | None) -> Order:
    """Return the order with this name.

    :param name: ``"key"``, ``"table"`` or ``"routing_key"``.
    :raises ConfigurationError: the name is unknown, or ``routing_key`` is missing.
    """
    if name == "key":
        return by_key
    if name == "table":
        return by_table
    if name != "routing_key":
        raise ConfigurationError(f"order is {name!r}, but must be one of {', '.join(ORDERS)}")
    if routing_key is None:
        raise ConfigurationError("order = routing_key needs a routing_key")
    key = routing_key
    return lambda _: _ByRoutingKey(key).ordering_keys


def stages(batch: Batch, concurrency: int, ordering_keys: KeyFunction) -> Iterator[list[Batch]]:
    """Split a batch into stages of up to ``concurrency`` parts, with about the same number of changes in each part.

    A part has the slices of its changes; they keep the ``first`` and ``last`` of the batch. Slices without changes are left
    out, except those that end a chunk of a snapshot: each is a stage of its own after the chunk's rows, because it may complete
    the table.
    """
    parts = [replace(part, end_lsn=None) if _ends_chunk(part) else part for part in batch.slices]
    rows = replace(batch, slices=parts)
    stage = _Stage()
    for index, part in enumerate(batch.slices):
        for change in part.changes:
            if (keys := ordering_keys(change)) is not None:
                stage.add(index, change, keys)
                continue
            yield from stage.parts(rows, concurrency)
            yield [Batch((replace(parts[index], changes=(change,)),))]
            stage = _Stage()
        if _ends_chunk(part):
            yield from stage.parts(rows, concurrency)
            yield [Batch((replace(part, changes=(), first=part.first and not part.changes, size=0),))]
            stage = _Stage()
    yield from stage.parts(rows, concurrency)


def _ends_chunk(part: Slice) -> bool:
    return part.last and part.transaction is not None and part.transaction.snapshot is not None


class _Stage:
    """Groups changes by ordering key, as a disjoint-set forest: a change with several keys unites their groups."""

    def __init__(self) -> None:
        # The index of each change's slice, the change, and one of its keys.
        self._changes: list[tuple[int, Change, Hashable]] = []
        self._parent: dict[Hashable, Hashable] = {}

    def add(self, index: int, change: Change, keys: tuple[Hashable, ...]) -> None:
        root = self._find(keys[0])
        for key in keys[1:]:
            self._parent[self._find(key)] = root
        self._changes.append((index, change, root))

    def parts(self, batch: Batch, concurrency: int) -> Iterator[list[Batch]]:
        """Return the stage's parts as the only item; nothing for an empty stage."""
        if not self._changes:
            return
        sizes = Counter(self._find(key) for _, _, key in self._changes)
        loads = [0] * min(concurrency, len(sizes))
        part_of: dict[Hashable, int] = {}
        for root, size in sizes.most_common():
            smallest = part_of[root] = loads.index(min(loads))
            loads[smallest] += size
        parts: list[dict[int, list[Change]]] = [{} for _ in loads]
        for index, change, key in self._changes:
            parts[part_of[self._find(key)]].setdefault(index, []).append(change)
        slices = batch.slices
        yield [
            Batch(tuple(replace(slices[index], changes=changes) for index, changes in part.items()))
            for part in parts
        ]

    def _find(self, key: Hashable) -> Hashable:
        parent = self._parent
        root = key
        while (above := parent.get(root, root)) != root:
            root = above
        parent[key] = root
        return root


def by_table(catalog: TableCatalog) -> KeyFunction:
    """Keep changes in order within a table and all tables with the same root."""

    def ordering_keys(change: Change) -> OrderingKeys:
        if isinstance(change, RowChange):
            return catalog.roots(change.layout.relation.oid)
        if isinstance(change, Truncate):
            return tuple(root for relation in change.relations for root in catalog.roots(relation.oid))
        return (("", change.prefix),) if isinstance(change, Message) else None

    return ordering_keys


def by_key(catalog: TableCatalog) -> KeyFunction:
    """Keep changes in order within a row, by its replica identity; without one, within its table."""
    return _ByKey(catalog).ordering_keys


class _ByRoutingKey:
    """Keep changes in order within a routing key. A template's result may differ once a table is described again."""

    def __init__(self, routing_key: RoutingKey) -> None:
        self._routing_key = routing_key
        self._relations: set[Relation] = set()
        self._described: set[int] = set()

    def ordering_keys(self, change: Change) -> OrderingKeys:
        if not isinstance(change, (RowChange, Truncate, Message)):
            return None
        if isinstance(change, RowChange) and (relation := change.layout.relation) not in self._relations:
            self._relations.add(relation)
            if relation.oid in self._described:
                return None
            self._described.add(relation.oid)
        return self._routing_key(change)


class _Key:
    """The key columns of one description of a table.

    :ivar indexes: the key's columns, sorted by name, because partitions may order columns differently; empty if the key
        cannot be compared as bytes.
    :ivar identity: two keys are comparable only if their identities are equal.
    """

    __slots__ = ("identity", "indexes", "roots")

    def __init__(self, layout: Layout, roots: tuple[int, ...]) -> None:
        relation = layout.relation
        columns = relation.columns
        self.roots = roots
        indexes = tuple(sorted(relation.key, key=lambda index: columns[index].name))
        self.identity = tuple((columns[index].name, columns[index].type_oid) for index in indexes)
        bytewise = all(_is_bytewise(columns[index], layout.types) for index in indexes)
        self.indexes = indexes if bytewise else ()


def _is_bytewise(column: Column, types: Types) -> bool:
    """Whether equal values of the column have equal bytes.

    The collation is not known here: text counts as bytewise, although it is not under a nondeterministic collation.
    """
    oid = column.type_oid
    while (info := types.info(oid)) is not None and info.kind == DOMAIN:
        oid = info.element
    if oid == _BPCHAR:
        # Equal values have equal bytes if the type has a length, because they are padded to it.
        return column.type_modifier != -1
    return oid in _BYTEWISE or (info is not None and info.kind == ENUM)


class _ByKey:
    """Returns the ordering keys of the changes of one batch, in order."""

    def __init__(self, catalog: TableCatalog) -> None:
        self._catalog = catalog
        self._relation: Relation | None = None
        self._roots: tuple[int, ...] = ()
        self._indexes: tuple[int, ...] = ()
        self._keys: dict[Relation, _Key] = {}
        self._described: set[int] = set()
        self._identities: dict[int, Hashable] = {}
        self._unknown = False

    def ordering_keys(self, change: Change) -> OrderingKeys:
        if not isinstance(change, RowChange):
            return (("", change.prefix),) if isinstance(change, Message) else None
        layout = change.layout
        if layout.relation is not self._relation and self._begins_stage(layout):
            return None
        roots, indexes = self._roots, self._indexes
        if not indexes:
            return roots
        # An INSERT, and an UPDATE that keeps the key, have only the new row.
        rows = change.raw_old, change.raw_new
        keys = {tuple([row[index] for index in indexes]) for row in rows if row is not None}
        if any(UNCHANGED in key for key in keys):
            # The key was not sent (unchanged TOAST), so the change could be of any row.
            return None
        return tuple([(root, key) for root in roots for key in keys])

    def _begins_stage(self, layout: Layout) -> bool:
        """Switch to another description. Return whether its keys cannot be compared with the keys of the current stage."""
        relation = self._relation = layout.relation
        key = self._keys.get(relation)
        begins = False
        # A dropped table may have been a partition of any other table.
        unknown = self._catalog.uncertain(relation.oid)
        if key is None:
            roots = _ANY_ROOT if unknown else self._catalog.roots(relation.oid)
            key = self._keys[relation] = _Key(layout, roots)
            begins = relation.oid in self._described
            self._described.add(relation.oid)
        self._roots, self._indexes = key.roots, key.indexes
        for root in key.roots:
            begins |= self._identities.setdefault(root, key.identity) != key.identity
            self._identities[root] = key.identity
        before, self._unknown = self._unknown, unknown
        return begins or before is not unknown
