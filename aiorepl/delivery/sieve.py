"""A selection at work on the stream of one sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, overload

from aiorepl.delivery.lineage import CatalogTable, Lineage, Name
from aiorepl.delivery.looks import Fate, Look, doubt, doubt_of_kin, gone, look
from aiorepl.delivery.masking import Rewriting, truncation
from aiorepl.delivery.selection import KINDS, Selection
from aiorepl.errors import PermanentError
from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.secret import Secret
from aiorepl.transactions.changes import Change, RowChange, Truncate
from aiorepl.transactions.pending import OVERHEAD
from aiorepl.transactions.transaction import Slice

Described = tuple[int, str, str, tuple[Column, ...]]
"""What of a description counts here."""


class _Table:
    """What a selection makes of one relation."""

    __slots__ = ("relation", "rewriting", "wanted")

    def __init__(self, relation: Relation, wanted: bool, rewriting: Rewriting | None) -> None:
        self.relation = relation
        self.wanted = wanted
        self.rewriting = rewriting

    @property
    def target(self) -> Relation:
        return self.relation if self.rewriting is None else self.rewriting.target


class Sieve:
    """Gives a sink what its selection says. Keeps a little for each table it has seen.

    Use one for each reading of a stream: descriptions are compared with those before.

    :param sink: its name, for errors.
    :param lineage: what the catalog says of the tables.
    """

    def __init__(self, selection: Selection, sink: str = "", lineage: Lineage | None = None) -> None:
        self._sink = sink
        self._lineage = Lineage() if lineage is None else lineage
        self._rules = rules = selection.rules
        self._kinds = frozenset(selection.kinds or KINDS)
        self._secret = Secret.of(selection.secret or "").reveal().encode()
        # By oid, so that what is kept does not grow as tables are described anew.
        self._current: dict[int, _Table] = {}
        # What was looked at before is not doubted again: changes may be walked more than once.
        self._accepted: dict[Described, Look] = {}
        self._latest: dict[int | Name, Look] = {}
        self.filters = bool(rules.tables) or len(self._kinds) < len(KINDS)
        self.open = not (self.filters or rules.drop or rules.mask)

    def apply(self, part: Slice) -> Slice:
        """The slice as the sink gets it: the same one, when that makes no difference.

        Changes that are read from disk when they are walked stay there, and are selected then. Their slice keeps its
        ``size``, which would take a walk to tell.

        :raises DataError: when a column to be masked is not what its type says; from disk, when it is walked.
        :raises PermanentError: when a table was described in a way that puts the selection in doubt; likewise.
        """
        changes = part.changes
        if self.open:
            return part
        if not isinstance(changes, (list, tuple)):
            return replace(part, changes=SelectedChanges(changes, self))
        kept: list[Change] = []
        size, same = part.size, True
        for change in changes:
            selected = self.select(change)
            if selected is not change:
                same = False
                size -= _cost(change)
                if selected is None:
                    continue
                size += _cost(selected)
            kept.append(selected)
        return part if same else replace(part, changes=kept, size=max(size, 0))

    def wants(self, change: Change) -> bool:
        """Whether anything of the change is selected."""
        if change.kind not in self._kinds:
            return False
        if isinstance(change, RowChange):
            return self._table(change.layout.relation).wanted
        if isinstance(change, Truncate):
            return any(self._table(relation).wanted for relation in change.relations)
        return True

    def select(self, change: Change) -> Change | None:
        """The change itself, its selected form, or ``None``."""
        if change.kind not in self._kinds:
            return None
        if isinstance(change, RowChange):
            table = self._table(change.layout.relation)
            if not table.wanted:
                return None
            return change if table.rewriting is None else table.rewriting.change(change)
        if isinstance(change, Truncate):
            tables = [self._table(relation) for relation in change.relations]
            targets = tuple(table.target for table in tables if table.wanted)
            if targets == change.relations:  # relations compare by identity
                return change
            message = truncation(change.message, targets)
            return Truncate(change.transaction, change.ordinal, message) if targets else None
        return change

    def _table(self, relation: Relation) -> _Table:
        table = self._current.get(relation.oid)
        if table is None or table.relation is not relation:
            table = self._current[relation.oid] = self._made(relation)
        return table

    def _made(self, relation: Relation) -> _Table:
        described = (relation.oid, relation.schema, relation.name, relation.columns)
        seen = self._accepted.get(described)
        if seen is None:
            seen = self._accepted[described] = self._look(relation)
        fates = [seen.fates[column] for column in relation.names]
        if not seen.wanted or all(fate is Fate.KEPT for fate in fates):
            return _Table(relation, seen.wanted, None)
        return _Table(relation, True, Rewriting(relation, fates, self._secret))

    def _look(self, relation: Relation) -> Look:
        """Look at a description that is new.

        :raises PermanentError: the selection may mean something else by now.
        """
        rules, lineage, oid = self._rules, self._lineage, relation.oid
        own: Name = relation.schema, relation.name
        # A table that was dropped may have been a partition of any that has its columns.
        relatives = [table.names for table in lineage.alike(relation.names)] if lineage.unknown(oid) else []
        seen = look(rules, (own, *lineage.ancestors(oid)), relation.names, relatives)
        told = doubt_of_kin(rules, seen, relatives)
        lost: dict[str, frozenset[str]] = {}
        for before in (self._before(oid), self._before(own)):
            if before is not None:
                told = told or doubt(rules, before, seen)
                lost |= gone(before, seen)
        for table in lineage.descendants(oid):
            # The publication has got publish_via_partition_root: what came from the partitions comes from here now.
            told = told or doubt(rules, self._as_found(table), seen)
        if told is not None:
            raise PermanentError(f"sink {self._sink}: {told}", final=True)
        seen = replace(seen, gone=lost)
        self._latest[oid] = self._latest[own] = seen
        return seen

    def _before(self, known: int | Name) -> Look | None:
        """The look at this table that came last: at its latest description, or else at what the catalog had."""
        if known in self._latest:
            return self._latest[known]
        lineage = self._lineage
        table = lineage.find(known) if isinstance(known, int) else lineage.named(known)
        return None if table is None else self._as_found(table)

    def _as_found(self, table: CatalogTable) -> Look:
        return look(self._rules, (table.names, *self._lineage.ancestors(table.oid)), table.columns)


class SelectedChanges(Sequence[Change]):
    """Changes that are selected each time they are walked; none is kept."""

    __slots__ = ("_count", "_sieve", "_source")

    def __init__(self, source: Sequence[Change], sieve: Sieve) -> None:
        self._source = source
        self._sieve = sieve
        self._count = None if sieve.filters else len(source)

    def __len__(self) -> int:
        # Counting takes a walk, so it is done once, and without rewriting.
        if self._count is None:
            self._count = sum(map(self._sieve.wants, self._source))
        return self._count

    def __bool__(self) -> bool:
        return any(map(self._sieve.wants, self._source)) if self._count is None else self._count > 0

    def __iter__(self) -> Iterator[Change]:
        for change in self._source:
            selected = self._sieve.select(change)
            if selected is not None:
                yield selected

    @overload
    def __getitem__(self, place: int) -> Change: ...
    @overload
    def __getitem__(self, place: slice) -> list[Change]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) and place >= 0:
            for change in islice(self, place, None):
                return change
            raise IndexError("there are not so many changes")
        return list(self)[place]

    def __repr__(self) -> str:
        return "<selected changes>"


def _cost(change: Any) -> int:
    """What the change counts for in the size of its slice."""
    return len(change.message.payload) + OVERHEAD
