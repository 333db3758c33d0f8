"""Turns changes into steps, each of which is one statement for many rows. Pure.

In general the steps keep the order of changes: a run of changes of one kind to one table is a step, and a row that occurs twice
ends the run. If the order makes no difference (``Target.commutes``), only the last state of each row is written, after all
changes are collected. All steps are applied in one transaction of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiorepl import UNCHANGED, Delete, Insert, PermanentError, Read, RowChange, Truncate, Update
from aiorepl_sinks.postgres.identifiers import Name
from aiorepl_sinks.postgres.rows import Row, complete, new_row, old_row
from aiorepl_sinks.postgres.steps import AnyStep, Key, Kind, MessageStep, Step, TruncateStep
from aiorepl_sinks.postgres.target import Target


class StepBuilder:
    """Collects changes until ``take``.

    :param compact: whether to write only the last state of rows where the order makes no difference.
    """

    def __init__(self, *, compact: bool) -> None:
        self._compact = compact
        self._steps: list[AnyStep] = []
        self._run: Step | None = None
        self._keys: set[Key] = set()
        self._states: dict[Name, tuple[Target, _RowStates]] = {}

    def take(self) -> list[AnyStep]:
        """Return the steps for the collected changes, and begin again without changes."""
        for name in list(self._states):
            self._settle(name)
        steps, self._steps, self._run = self._steps, [], None
        return steps

    def row(self, target: Target, change: RowChange) -> None:
        """Add an insert, update or delete.

        :raises PermanentError: the change does not identify its row, or an insert lacks values.
        """
        known = self._states.get(target.name)
        if known is not None and known[0] is not target:
            # The target's table was looked up again, or another relation maps to the same table.
            self._settle(target.name)
        if isinstance(change, Insert):
            row = new_row(change)
            if not complete(row):
                raise PermanentError(
                    f"postgres: an insert into {change.relation} lacks values, because a row filter made it from an update: ALTER "
                    "TABLE … REPLICA IDENTITY FULL on the source"
                )
            if self._commutes(target):
                self._states_of(target).put(_key(target, row), row)
            else:
                # The source has one row with this key. So a second row was inserted after a delete, or read by a snapshot.
                kind: Kind = "read" if isinstance(change, Read) else "insert"
                self._add(kind, target, (), None, row, () if target.key is None else (_key(target, row),))
        elif isinstance(change, Update):
            self._update(target, change)
        elif isinstance(change, Delete):
            old = old_row(change)
            assert old is not None
            if self._commutes(target):
                self._states_of(target).remove(_key(target, old))
            else:
                key = self._identity(target, old)
                self._add("delete", target, (), key, None, () if target.key is None else (key,))

    def truncate(self, targets: tuple[Target, ...], change: Truncate, *, cascade: bool) -> None:
        """Add a TRUNCATE, and drop the collected states of the tables' rows."""
        for target in targets:
            self._states.pop(target.name, None)
        self._append(TruncateStep(targets, change.restart_identity, cascade))

    def emit(self, prefix: str, content: bytes) -> None:
        """Add a logical decoding message."""
        self._append(MessageStep(prefix, content))

    def _update(self, target: Target, change: Update) -> None:
        new, old = new_row(change), old_row(change)
        before = self._identity(target, new if old is None else old)
        if not complete(before):
            raise PermanentError(
                f"postgres: an update of {change.relation} does not identify its row: it has no key, or the key is an unchanged TOAST "
                "value: ALTER TABLE … REPLICA IDENTITY FULL on the source"
            )
        for index, value in zip(target.key or (), before, strict=False):
            if new[index] is UNCHANGED:
                new[index] = value
        after = self._identity(target, new)
        moved = after != before and target.key is not None
        if self._commutes(target):
            states = self._states_of(target)
            if states.change(before, after, new):
                return
            # The row's key changes, and only the target has some of its values: end the collected states, and add an update.
            self._settle(target.name)
        kept = frozenset() if moved or target.key is None else frozenset(target.key)
        columns = tuple(
            index for index in target.written if index not in kept and new[index] is not UNCHANGED
        )
        if not columns:
            return
        if moved:
            self._end_run()
            self._add("update", target, columns, before, new, ())
            self._end_run()
        elif target.key is None:
            # A later update may have to find the row that this update makes.
            if before in self._keys:
                self._end_run()
            self._add("update", target, columns, before, new, ())
            self._keys.add(after)
        else:
            self._add("update", target, columns, before, new, (before,))

    def _add(
        self,
        kind: Kind,
        target: Target,
        columns: tuple[int, ...],
        key: Key | None,
        row: Row | None,
        once: tuple[Key, ...],
    ) -> None:
        """Add to the current run, or begin another.

        :param once: keys that may occur only once in a run.
        """
        run = self._run
        if (
            run is None
            or run.kind != kind
            or run.target is not target
            or run.columns != columns
            or not self._keys.isdisjoint(once)
        ):
            self._end_run()
            run = self._run = Step(kind, target, columns)
            self._steps.append(run)
        self._keys.update(once)
        if key is not None:
            run.keys.append(key)
        if row is not None:
            run.rows.append(row)

    def _append(self, step: AnyStep) -> None:
        self._end_run()
        self._steps.append(step)

    def _end_run(self) -> None:
        self._run = None
        self._keys = set()

    def _commutes(self, target: Target) -> bool:
        return self._compact and target.commutes

    def _states_of(self, target: Target) -> _RowStates:
        known = self._states.get(target.name)
        if known is None:
            known = self._states[target.name] = target, _RowStates()
        return known[1]

    def _settle(self, name: Name) -> None:
        known = self._states.pop(name, None)
        if known is not None:
            target, states = known
            self._end_run()
            self._steps += states.steps(target)

    @staticmethod
    def _identity(target: Target, row: Row) -> Key:
        return tuple(row[index] for index in (target.written if target.key is None else target.key))


@dataclass(slots=True)
class _State:
    """The last state of a row.

    :param new: whether the row did not exist before.
    :param row: ``None`` if it is deleted.
    """

    new: bool
    row: Row | None


class _RowStates:
    """The last states of one table's rows, by key."""

    def __init__(self) -> None:
        self._rows: dict[Key, _State] = {}

    def put(self, key: Key, row: Row) -> None:
        known = self._rows.get(key)
        self._rows[key] = _State(known is None or known.new, row)

    def remove(self, key: Key) -> None:
        known = self._rows.get(key)
        self._rows[key] = _State(known is not None and known.new, None)

    def change(self, before: Key, after: Key, row: Row) -> bool:
        """Add an update. Return ``False``, and add nothing, if the key changes and some value of the row is unknown."""
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
        """Return the steps: deletes first, because keys with different texts may be equal on the target."""
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
                columns = tuple(
                    index for index in target.written if index not in key and row[index] is not UNCHANGED
                )
                if not columns and complete(row):
                    inserted.rows.append(
                        row
                    )  # all columns are in the key: an upsert writes it if it is missing
                elif columns:
                    step = updated.get(columns)
                    if step is None:
                        step = updated[columns] = Step("update", target, columns, ordered=False)
                    step.keys.append(identity)
                    step.rows.append(row)
        return [step for step in (deleted, *updated.values(), inserted) if len(step)]


def _key(target: Target, row: Row) -> Key:
    assert target.key is not None
    return tuple([row[index] for index in target.key])
