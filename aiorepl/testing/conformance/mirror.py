"""Conformance tests for sinks whose target contains the current rows: a database, a lakehouse, a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.tuples import BINARY, UNCHANGED
from aiorepl.testing.conformance.base import value_of
from aiorepl.testing.conformance.contents import Contents
from aiorepl.testing.conformance.delivering import Batches, Concurrency, Crashes
from aiorepl.testing.conformance.engine import Engine
from aiorepl.testing.conformance.failures import Failures
from aiorepl.testing.conformance.halting import Halting
from aiorepl.testing.conformance.prepared import Prepared
from aiorepl.testing.conformance.replaying import Replays
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.conformance.scenario import SampleTable
from aiorepl.transactions.changes import Change, Delete, Insert, Read, RowChange, Truncate
from aiorepl.transactions.rows import Raw
from aiorepl.transactions.slices import Slice

Row = dict[str, str | None]
State = dict[tuple[str, str], list[Row]]

_SAMPLE_OF: Final = {sample.oid: sample for sample in SAMPLES}


class MirrorConformance(
    Batches, Crashes, Concurrency, Prepared, Failures, Halting, Replays, Contents, Engine
):
    """Derive a class, define ``make_sink`` and ``rows``, and declare what the sink guarantees.

    The target has the tables of ``TABLES``, empty; ``SampleTable.ddl`` creates one if the sink does not.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"insert", "read", "update", "delete", "truncate"})

    def rows(
        self, table: SampleTable
    ) -> Sequence[Mapping[str, Any] | None] | Awaitable[Sequence[Mapping[str, Any]]]:
        """Return the rows of a table in the target, in any order, with columns by name. May be ``async``.

        Values are PostgreSQL's text, as of ``column::text``, or something that ``same`` can compare with it.
        """
        raise NotImplementedError("define rows: return the rows of a table in the target")

    def same(self, type_name: str, expected: str, found: Any) -> bool:
        """Return whether a value of the target, not NULL, equals PostgreSQL's text of the expected value."""
        if type_name == "bool":
            return str(found).lower()[:1] == expected
        return str(found) == expected

    async def expect(
        self,
        done: Sequence[Slice],
        maybe: Sequence[Slice] = (),
        *,
        replayed: Sequence[Slice] = (),
        after: str,
    ) -> None:
        states = self._states([*done, *replayed], maybe)
        possible = range(len(states))
        for table in self.tables:
            at = (table.schema, table.name)
            found: Sequence[Mapping[str, Any]] = await value_of(self.rows(table))
            matching = [
                number for number in possible if self._equal(table, states[number].get(at, []), found)
            ]
            if not matching:
                raise ContractBroken(
                    f"after {after}, {table} is not what the source has: "
                    f"{self._difference(table, states[0].get(at, []), found)}",
                    "what was flushed is there, in the order of commits; UNCHANGED leaves the target's value alone; "
                    + ("a transaction is seen whole or not at all" if self.atomic else "nothing is invented"),
                )
            if self.atomic:
                # All tables must be at the same transaction.
                possible = matching  # type: ignore[assignment]

    def _states(self, done: Sequence[Slice], maybe: Sequence[Slice]) -> list[State]:
        """Return the possible states: all of ``done``, and any prefix of ``maybe``."""
        mirror = _Mirror(self.kinds)
        mirror.apply_slices(done)
        states = [mirror.copy()]
        waiting: list[Slice] = []
        for part in maybe:
            waiting.append(part)
            if self.atomic and not part.last:
                continue
            for ready in waiting:
                for change in ready.changes:
                    mirror.apply(change)
                    if not self.atomic:
                        states.append(mirror.copy())
            waiting = []
            states.append(mirror.copy())
        return states

    def _equal(self, table: SampleTable, expected: Sequence[Row], found: Sequence[Mapping[str, Any]]) -> bool:
        if len(expected) != len(found):
            return False
        left = list(found)
        for row in expected:
            match = next((other for other in left if not self._differing(table, row, other)), None)
            if match is None:
                return False
            left.remove(match)
        return True

    def _differing(self, table: SampleTable, expected: Row, found: Mapping[str, Any]) -> list[str]:
        """Return the names of the columns that differ."""
        names = [
            name
            for name, type_name, _ in table.columns
            if name not in found or not self._same(type_name, expected[name], found[name])
        ]
        return names + [name for name in found if name not in expected]

    def _same(self, type_name: str, expected: str | None, found: Any) -> bool:
        if expected is None or found is None:
            return expected is found
        return self.same(type_name, expected, found)

    def _difference(
        self, table: SampleTable, expected: Sequence[Row], found: Sequence[Mapping[str, Any]]
    ) -> str:
        if len(expected) != len(found):
            return f"it has {len(found)} rows, not {len(expected)}"
        unmatched = [
            row for row in expected if all(self._differing(table, row, other) for other in found)
        ] or expected
        nearest = [min((self._differing(table, row, other) for other in found), key=len) for row in unmatched]
        names = Counter(name for differing in nearest for name in differing)
        types = {name: type_name for name, type_name, _ in table.columns}
        listed = ", ".join(f"{name} ({types.get(name, 'not on the source')})" for name in list(names)[:5])
        return f"{len(unmatched)} of {len(expected)} rows differ, in {listed}"


class _Mirror:
    """The expected rows of all tables: applies changes as a PostgreSQL subscriber does."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = kinds
        self._rows: State = {}
        self._prepared: dict[str, list[Slice]] = {}

    def copy(self) -> State:
        return {table: [dict(row) for row in rows] for table, rows in self._rows.items()}

    def apply_slices(self, slices: Sequence[Slice]) -> None:
        for part in slices:
            gid = None if part.transaction is None else part.transaction.gid
            if gid is None:
                self._apply_all([part])
            elif isinstance(part.two_phase, m.CommitPrepared):
                self._apply_all(self._prepared.pop(gid, []))
            elif isinstance(part.two_phase, m.RollbackPrepared):
                self._prepared.pop(gid, None)
            else:
                self._prepared.setdefault(gid, []).append(part)

    def apply(self, change: Change) -> None:
        if change.kind not in self._kinds:
            return
        if isinstance(change, Truncate):
            for relation in change.relations:
                self._rows[relation.schema, relation.name] = []
        elif isinstance(change, RowChange):
            rows = self._rows.setdefault((change.schema, change.table), [])
            # An inserted row is new, unless it is a row of a snapshot whose key is there already.
            new = isinstance(change, Insert) and not (isinstance(change, Read) and change.relation.key)
            index = None if new else self._find(rows, change)
            if isinstance(change, Delete):
                if index is not None:
                    del rows[index]
            elif index is None:
                rows.append(self._row(change, change.raw_new, change.new_kinds))
            else:
                rows[index] = {**rows[index], **self._row(change, change.raw_new, change.new_kinds)}

    def _apply_all(self, slices: Sequence[Slice]) -> None:
        for part in slices:
            for change in part.changes:
                self.apply(change)

    def _find(self, rows: Sequence[Row], change: RowChange) -> int | None:
        if change.raw_old is not None:
            wanted = self._row(change, change.raw_old, change.old_kinds)
        else:
            wanted = self._row(change, change.raw_new, change.new_kinds)
        names = [change.relation.names[index] for index in change.relation.key or change.layout.all]
        return next((n for n, row in enumerate(rows) if all(row[x] == wanted[x] for x in names)), None)

    def _row(self, change: RowChange, columns: Sequence[Raw] | None, kinds: bytes | None) -> Row:
        row: Row = {}
        for index, raw in enumerate(columns or ()):
            column = change.relation.columns[index]
            if raw is None:
                row[column.name] = None
            elif raw is not UNCHANGED:
                assert isinstance(raw, bytes)
                binary = kinds is not None and kinds[index] == BINARY
                row[column.name] = _text(column.type_oid, raw) if binary else raw.decode()
        return row


def _text(oid: int, raw: bytes) -> str:
    sample = _SAMPLE_OF[oid]
    return sample.text if raw.hex() == sample.binary else str(int.from_bytes(raw, "big", signed=True))
