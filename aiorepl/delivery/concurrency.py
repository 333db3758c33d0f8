"""One batch as several that may be written at the same time: no two of them touch what is in order with each other. Pure.

What is in order with what, ``Order`` says: the changes of a key, of a table, or of a routing key. A change may touch two
of them (an update that changes the key) and then ties them together. What touches everything (a truncate among keys)
parts the batch in stages: a stage is written when the one before it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.sink import Batch, RoutingKey
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.rows import Raw
from aiorepl.transactions.schema_changes import SchemaChange

Places = tuple[Hashable, ...] | None
"""What a change touches, ``None`` for everything."""
Order = Callable[[Change], Places]
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
    return routing_key


def stages(batch: Batch, lanes: int, touched: Order) -> Iterator[list[Batch]]:
    """The batch in stages of up to ``lanes`` batches each, of about the same number of changes.

    In each of them a transaction has those of its changes that belong there, and is ``first`` and ``last`` as it was in
    the batch. Slices without changes are left out.
    """
    stage = _Stage()
    for number, part in enumerate(batch.transactions):
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
            lane = lane_of[root] = loads.index(min(loads))
            loads[lane] += sizes[root]
        parts: list[dict[int, list[Change]]] = [{} for _ in loads]
        for number, change, place in self._changes:
            parts[lane_of[self._find(place)]].setdefault(number, []).append(change)
        whole = batch.transactions
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


def by_table(change: Change) -> Places:
    """The tables it changes."""
    if isinstance(change, RowChange):
        return ((change.schema, change.table),)
    if isinstance(change, Truncate):
        return tuple((relation.schema, relation.name) for relation in change.relations)
    return (("", change.prefix),) if isinstance(change, Message) else None


def by_key(change: Change) -> Places:
    """The rows it changes, by their replica identity; where there is none, the table."""
    if not isinstance(change, RowChange):
        return (("", change.prefix),) if isinstance(change, Message) else None
    relation = change.layout.relation
    table = relation.schema, relation.name
    if not relation.key:
        return (table,)
    new = None if change.raw_new is None else _key(change.raw_new, relation.key)
    old = None if change.raw_old is None else _key(change.raw_old, relation.key)
    keys = {key for key in (old, new) if key is not None}
    # A key so large that it was not sent: nobody knows whose order it is in.
    return None if any(UNCHANGED in key for key in keys) else tuple((*table, key) for key in keys)


def _key(columns: list[Raw], places: tuple[int, ...]) -> tuple[Raw, ...]:
    return tuple(columns[place] for place in places)
