"""Changes into steps, each of which is one statement for many rows. Pure.

Where order can be seen the steps keep it: a run of changes of one kind to one table is a step, and a row that comes
twice ends the run. Where it cannot (``Target.commutes``) only the last state of each row is written, once all changes
have been looked at. Both happen within one transaction of the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from aiorepl import UNCHANGED, Delete, Insert, PermanentError, RowChange, Truncate, Update
from aiorepl_sinks.postgres.identifiers import Name
from aiorepl_sinks.postgres.rows import Row, Value, complete, new_row, old_row
from aiorepl_sinks.postgres.target import Target

Key = tuple[Value, ...]


@dataclass(slots=True)
class Step:
    """Rows of one table to be inserted, updated or deleted by one statement.

    :param places: of an update, the columns that are set.
    :param keys: of an update or delete, where to find the rows: their keys, or the whole old rows where there is no key.
    :param rows: of an insert or update, the new rows, whole as they were sent.
    :param ordered: whether one row after the other would do where all at once will not.
    """

    kind: Literal["insert", "update", "delete"]
    target: Target
    places: tuple[int, ...] = ()
    keys: list[Key] = field(default_factory=list, repr=False)
    rows: list[Row] = field(default_factory=list, repr=False)
    ordered: bool = True

    def __len__(self) -> int:
        return max(len(self.keys), len(self.rows))

    @property
    def whole(self) -> bool:
        """Whether rows are found by all their columns."""
        return self.target.key is None

    def split(self) -> Iterable[Step]:
        """The same, a row at a time."""
        for at in range(len(self)):
            yield Step(
                self.kind,
                self.target,
                self.places,
                self.keys[at : at + 1],
                self.rows[at : at + 1],
                self.ordered,
            )


@dataclass(frozen=True, slots=True)
class TruncateStep:
    """Tables to be emptied together."""

    targets: tuple[Target, ...]
    restart_identity: bool
    cascade: bool


@dataclass(frozen=True, slots=True)
class Emission:
    """A logical decoding message to be written to the target's WAL."""

    prefix: str
    content: bytes = field(repr=False)


AnyStep = Step | TruncateStep | Emission


class Plan:
    """Gathers changes until ``take``.

    :param compact: whether to write only the last state of rows where that makes no difference.
    """

    def __init__(self, *, compact: bool) -> None:
        self._compact = compact
        self._steps: list[AnyStep] = []
        self._run: Step | None = None
        self._seen: set[Key] = set()
        self._states: dict[Name, tuple[Target, _States]] = {}

    def take(self) -> list[AnyStep]:
        """The steps so far; what is added later makes further ones."""
        for name in list(self._states):
            self._settle(name)
        steps, self._steps, self._run = self._steps, [], None
        return steps

    def row(self, target: Target, change: RowChange) -> None:
        """Add a change of a row.

        :raises PermanentError: it does not say which row it changes, or an insert not the whole row.
        """
        known = self._states.get(target.name)
        if known is not None and known[0] is not target:
            # The same table under another description, or another source's.
            self._settle(target.name)
        if isinstance(change, Insert):
            row = new_row(change)
            if not complete(row):
                raise PermanentError(
                    f"postgres: an insert into {change.relation} comes without all of its columns, for a row filter made "
                    f"it of an update: ALTER TABLE … REPLICA IDENTITY FULL on the source"
                )
            if self._commutes(target):
                self._state_of(target).put(_key(target, row), row)
            else:
                # Of a key the source has one row only; a second one is another, after a delete.
                self._add("insert", target, (), None, row, () if target.key is None else (_key(target, row),))
        elif isinstance(change, Update):
            self._update(target, change)
        elif isinstance(change, Delete):
            old = old_row(change)
            assert old is not None
            if self._commutes(target):
                self._state_of(target).remove(_key(target, old))
            else:
                key = self._identity(target, old)
                self._add("delete", target, (), key, None, () if target.key is None else (key,))

    def truncate(self, targets: tuple[Target, ...], change: Truncate, *, cascade: bool) -> None:
        """Add a TRUNCATE: what was to become of the rows does not matter any more."""
        for target in targets:
            self._states.pop(target.name, None)
        self._do(TruncateStep(targets, change.restart_identity, cascade))

    def emit(self, prefix: str, content: bytes) -> None:
        """Add a message."""
        self._do(Emission(prefix, content))

    def _update(self, target: Target, change: Update) -> None:
        new, old = new_row(change), old_row(change)
        before = self._identity(target, new if old is None else old)
        if not complete(before):
            raise PermanentError(
                f"postgres: an update of {change.relation} does not say which row: a key is missing, or too large to be "
                "sent: ALTER TABLE … REPLICA IDENTITY FULL on the source"
            )
        for place, value in zip(target.key or (), before, strict=False):
            if new[place] is UNCHANGED:
                new[place] = value
        after = self._identity(target, new)
        moved = after != before and target.key is not None
        if self._commutes(target):
            states = self._state_of(target)
            if states.change(before, after, new):
                return
            # The row moves, and has values that are known on the target alone.
            self._settle(target.name)
        kept = frozenset() if moved or target.key is None else frozenset(target.key)
        places = tuple(place for place in target.written if place not in kept and new[place] is not UNCHANGED)
        if not places:
            return
        if moved:
            self._end()
            self._add("update", target, places, before, new, ())
            self._end()
        elif target.key is None:
            # A later one may mean the row that this one makes.
            if before in self._seen:
                self._end()
            self._add("update", target, places, before, new, ())
            self._seen.add(after)
        else:
            self._add("update", target, places, before, new, (before,))

    def _add(
        self,
        kind: Literal["insert", "update", "delete"],
        target: Target,
        places: tuple[int, ...],
        key: Key | None,
        row: Row | None,
        once: tuple[Key, ...],
    ) -> None:
        """Add to the run, if it goes on with this; ``once`` are keys that may be in a run but once."""
        run = self._run
        if (
            run is None
            or run.kind != kind
            or run.target is not target
            or run.places != places
            or not self._seen.isdisjoint(once)
        ):
            self._end()
            run = self._run = Step(kind, target, places)
            self._steps.append(run)
        self._seen.update(once)
        if key is not None:
            run.keys.append(key)
        if row is not None:
            run.rows.append(row)

    def _do(self, step: AnyStep) -> None:
        self._end()
        self._steps.append(step)

    def _end(self) -> None:
        self._run = None
        self._seen = set()

    def _commutes(self, target: Target) -> bool:
        return self._compact and target.commutes

    def _state_of(self, target: Target) -> _States:
        known = self._states.get(target.name)
        if known is None:
            known = self._states[target.name] = target, _States()
        return known[1]

    def _settle(self, name: Name) -> None:
        known = self._states.pop(name, None)
        if known is not None:
            target, states = known
            self._end()
            self._steps += states.steps(target)

    @staticmethod
    def _identity(target: Target, row: Row) -> Key:
        return tuple(row[place] for place in (target.written if target.key is None else target.key))


@dataclass(slots=True)
class _State:
    """What becomes of a row: ``row`` is ``None`` where it is deleted. ``new``: it was not there before."""

    new: bool
    row: Row | None


class _States:
    """The last states of the rows of one table, by key."""

    def __init__(self) -> None:
        self._rows: dict[Key, _State] = {}

    def put(self, key: Key, row: Row) -> None:
        known = self._rows.get(key)
        self._rows[key] = _State(known is None or known.new, row)

    def remove(self, key: Key) -> None:
        known = self._rows.get(key)
        self._rows[key] = _State(known is not None and known.new, None)

    def change(self, before: Key, after: Key, row: Row) -> bool:
        """Whether it could be taken in: a row that moves has to be known whole."""
        known = self._rows.get(before)
        if known is not None and known.row is not None and not complete(row):
            row = [old if value is UNCHANGED else value for value, old in zip(row, known.row, strict=True)]
        if before == after:
            self._rows[before] = _State(known is not None and known.new, row)
            return True
        if not complete(row):
            return False
        self.remove(before)
        self.put(after, row)
        return True

    def steps(self, target: Target) -> list[AnyStep]:
        """Deletes first, so that keys that are equal to the target though they read differently are free again."""
        deleted = Step("delete", target, ordered=False)
        inserted = Step("insert", target, ordered=False)
        updated: dict[tuple[int, ...], Step] = {}
        key = frozenset(target.key or ())
        for identity, state in self._rows.items():
            row = state.row
            if row is None:
                deleted.keys.append(identity)
            elif state.new and complete(row):
                inserted.rows.append(row)
            else:
                places = tuple(
                    place for place in target.written if place not in key and row[place] is not UNCHANGED
                )
                if not places and complete(row):
                    inserted.rows.append(row)  # all of it is key: it is there, or is written now
                elif places:
                    step = updated.get(places)
                    if step is None:
                        step = updated[places] = Step("update", target, places, ordered=False)
                    step.keys.append(identity)
                    step.rows.append(row)
        return [step for step in (deleted, *updated.values(), inserted) if len(step)]


def _key(target: Target, row: Row) -> Key:
    assert target.key is not None
    return tuple([row[place] for place in target.key])
