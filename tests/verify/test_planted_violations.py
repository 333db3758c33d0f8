"""The verifier finds every kind of damage in runs that combine a snapshot, dead letters, a selection and masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from aiorepl.lsn import LSN
from aiorepl.verify import (
    Delivered,
    Entry,
    History,
    Operation,
    Promise,
    Restarted,
    Tables,
    Transaction,
    verify,
)

pytestmark = pytest.mark.by_day

KEYS = {
    "accounts": ("id",),
    "entries": ("n",),
    "notes": ("a",),
    "ledger": ("writer", "number"),
    "others": ("id",),
}
MASKED = {"accounts": frozenset({"note"}), "notes": frozenset({"stamp"})}
SEEDS = range(20)
STEP = 100
CHUNKS = 9
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def selected(operation: Operation) -> Operation | None:
    """Return the operation if the sink gets it: no rows of ``others``, and no accounts that it rejects."""
    return None if operation.table == "others" or rejected(operation) else operation


def rejected(operation: Operation) -> bool:
    """Whether the sink rejects an operation."""
    return operation.table == "accounts" and operation.key[0] % 3 == 0


def lettered(operation: Operation) -> Operation | None:
    """Return the operation if it is among the dead letters, or in the ledger."""
    return operation if operation.table == "ledger" or rejected(operation) else None


class Run:
    """A random run: its history, and what was delivered.

    :ivar sink: the sink's log.
    :ivar letters: the dead letters.
    :ivar states: the tables before each transaction, at each chunk, and after the last transaction, by LSN.
    :ivar chunks: the table and the range of keys of each chunk, by LSN.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tables: Tables = {
            "accounts": {(n,): self._account(n, 1) for n in range(1, 13)},
            "entries": {(n,): {"n": n} for n in range(4)},
            "notes": {(n,): self._note(n, 1) for n in range(1, 6)},
            "ledger": {},
            "others": {(n,): {"id": n, "version": 1} for n in range(1, 4)},
        }
        self.history = History(keys=KEYS, initial=deepcopy(self.tables))
        self.sink: list[Entry] = []
        self.letters: list[Entry] = []
        self.states: dict[int, Tables] = {}
        self.chunks: dict[int, tuple[str, range]] = {}
        self._numbers = {1: 0, 2: 0, 3: 0}
        chunks = [
            (table, keys)
            for table in ("accounts", "entries", "notes")
            for keys in (range(-99, 4), range(4, 8), range(8, 99_999))
        ]
        self.chance.shuffle(chunks)
        places = sorted(self.chance.choices(range(1, 18), k=CHUNKS))
        for number in range(1, 25):
            self.states[STEP * number] = deepcopy(self.tables)
            self._transaction(number)
            while places and places[0] == number:
                places.pop(0)
                lsn = STEP * number + STEP - 1 - len(places)
                self.states[lsn] = deepcopy(self.tables)
                self.chunks[lsn] = chunks.pop()
                self._put(chunk(self.tables, lsn, *self.chunks[lsn]))
        self.states[STEP * 25] = deepcopy(self.tables)
        self.history.final = deepcopy(self.tables)

    def violations(self) -> list[str]:
        """Verify both logs."""
        # Each transaction needs a place in the stream of dead letters, as in the sink's.
        entries = (entry for entry in self.sink if isinstance(entry, Delivered))
        ledger = {entry.identity: entry for entry in entries if entry.tables == ("ledger",)}
        found: list[str] = []
        for log, order, expected in (
            (self.sink, "commit", selected),
            ([*ledger.values(), *self.letters], "key", lettered),
        ):
            promise = Promise(order=order, expected=expected, masked=MASKED, snapshot=True)
            found += verify(self.history, log, promise, final=self.history.final).violations
        return found

    def _account(self, key: int, version: int) -> dict[str, object]:
        return {"id": key, "version": version, "note": f"n{version}", "doc": f"d{self.chance.random()}"}

    def _note(self, key: int, version: int) -> dict[str, object]:
        return {"a": key, "version": version, "stamp": f"s{version}", "text": f"t{self.chance.random()}"}

    def _transaction(self, number: int) -> None:
        chance, lsn, before = self.chance, STEP * number, deepcopy(self.tables)
        writer = chance.choice([1, 2, 3])
        self._numbers[writer] += 1
        key = (writer, self._numbers[writer])
        one = Transaction(writer, key[1], 700 + number)
        self.history.transactions.append(one)
        row: dict[str, object] = {"writer": writer, "number": key[1]}
        changes = [self._do(one, lsn, Operation("insert", "ledger", key, row))]
        changes += [
            self._do(one, lsn, operation)
            for _ in range(chance.randrange(5))
            if (operation := self._drawn()) is not None
        ]
        if chance.random() < 0.1:
            self.tables, one.outcome = before, "aborted"
            return
        one.outcome, one.earliest = "committed", LSN(lsn - chance.randrange(40))
        one.latest = chance.choice([None, LSN(lsn + 1 + chance.randrange(40))])
        one.since, one.until = TIME + timedelta(minutes=number - 1), TIME + timedelta(minutes=number)
        self._put(changes)
        if chance.random() < 0.1:
            self.sink.append(Restarted())
            self._put(changes, letters=False)

    def _put(self, changes: list[Delivered], *, letters: bool = True) -> None:
        for change in changes:
            row = change.new or change.old or {}
            operation = Operation(
                change.kind, change.tables[0], tuple(row.get(name) for name in KEYS[change.tables[0]])
            )
            if selected(operation) is not None:
                self.sink.append(change)
            elif letters and lettered(operation) is not None:
                self.letters.append(change)

    def _drawn(self) -> Operation | None:
        chance = self.chance
        table = chance.choice(["accounts", "accounts", "accounts", "notes", "notes", "entries", "others"])
        rows = self.tables[table]
        if table == "entries":
            if chance.random() < 0.1:
                return Operation("truncate", table)
            n = max((key[0] for key in rows), default=0) + 1000
            return Operation("insert", table, (n,), {"n": n})
        if not rows or chance.random() < 0.2:
            free = next(key for key in range(1, 99) if (key,) not in rows)
            made = {"accounts": self._account, "notes": self._note}.get(table)
            return Operation(
                "insert", table, (free,), {"id": free, "version": 1} if made is None else made(free, 1)
            )
        key = chance.choice(sorted(rows))
        if chance.random() < 0.15:
            return Operation("delete", table, key)
        version = int(str(rows[key]["version"])) + 1
        new = {**rows[key], "version": version}
        if table == "accounts":
            new["note"] = f"n{version}"
        elif table == "notes":
            new["stamp"] = f"s{version}"
        if table == "accounts" and chance.random() < 0.3:
            free = next(number for number in range(chance.randrange(1, 20), 99) if (number,) not in rows)
            return Operation(
                "update", table, (free,), {**new, "id": free}, moved=key, untouched=frozenset({"doc"})
            )
        return Operation(
            "update", table, key, new, untouched=frozenset({"doc"} if table == "accounts" else ())
        )

    def _do(self, one: Transaction, lsn: int, operation: Operation) -> Delivered:
        """Change the tables, and return the change as it is delivered."""
        table, rows = operation.table, self.tables[operation.table]
        old_key = operation.key if operation.moved is None else operation.moved
        before, ordinal = rows.get(old_key), len(one.operations)
        one.operations.append(operation)
        time = TIME + timedelta(minutes=lsn // STEP - 0.5)
        change = Delivered(LSN(lsn), ordinal, one.xid, operation.kind, (table,), time=time)
        if operation.kind == "truncate":
            rows.clear()
            return change
        rows.pop(old_key, None)
        old = None if before is None else dict(zip(KEYS[table], old_key, strict=True))
        if table == "notes" and before is not None:
            old = hidden(table, before)
        if operation.new is None:
            return replace(change, old=old)
        rows[operation.key] = operation.new
        new, unchanged = hidden(table, operation.new), frozenset[str]()
        # A pipeline would complete a row that moves to a chunk that was read from one that was not.
        complete = operation.moved is None or len(self.chunks) == CHUNKS
        if operation.untouched and complete and self.chance.random() < 0.5:
            unchanged = operation.untouched
            new = {name: value for name, value in new.items() if name not in unchanged}
        if operation.moved is None and table != "notes":
            old = None
        return replace(change, new=new, old=old, unchanged=unchanged)


def hidden(table: str, row: dict) -> dict:
    """Return a row with its masked columns as digests."""
    return {name: f"~{value}" if name in MASKED.get(table, ()) else value for name, value in row.items()}


def chunk(tables: Tables, lsn: int, table: str, keys: range) -> list[Delivered]:
    """Return the rows of a range of keys, as a snapshot delivers them."""
    rows = [row for key, row in sorted(tables[table].items()) if key[0] in keys]
    return [
        Delivered(LSN(lsn), number, 0, "read", (table,), new=hidden(table, row))
        for number, row in enumerate(rows)
    ]


@cache
def undamaged(seed: int) -> Run:
    """Return the run of a seed."""
    return Run(seed)


def run_of(seed: int) -> Run:
    """Return a run to damage."""
    run = copy(undamaged(seed))
    run.chance, run.sink, run.letters = random.Random(seed), list(run.sink), list(run.letters)
    return run


# Each puts one kind of damage into a run, and returns whether that was possible.
Damage = Callable[[Run], bool]


def rows_of(run: Run, log: list[Entry], *, snapshot: bool, table: str | None = None) -> list[int]:
    """Return the places of rows of the snapshot, or of changes of the stream that were not repeated; in random order."""
    first, again = set[object](), set[object]()
    for entry in log:
        if isinstance(entry, Delivered):
            (again if entry.identity in first else first).add(entry.identity)
    places = [
        place
        for place, entry in enumerate(log)
        if isinstance(entry, Delivered)
        and entry.identity not in again
        and (not entry.xid) == snapshot
        and (table is None or entry.tables == (table,))
    ]
    run.chance.shuffle(places)
    return places


def key_of(change: Delivered) -> tuple[object, ...]:
    """Return the key of the row."""
    row = change.new or change.old or {}
    return tuple(row[name] for name in KEYS[change.tables[0]])


def never_changed(run: Run, change: Delivered) -> bool:
    """Whether the row is the same all the time, so that the stream does not deliver it."""
    rows = [state[change.tables[0]].get(key_of(change)) for state in run.states.values()]
    return all(row is not None and hidden(change.tables[0], row) == change.new for row in rows)


def lost_row(run: Run, log: str = "sink") -> bool:
    """A row of the snapshot is missing."""
    entries = getattr(run, log)
    for place in rows_of(run, entries, snapshot=True):
        if never_changed(run, entries[place]):
            del entries[place]
            return True
    return False


def other_version(run: Run, *, newer: bool) -> bool:
    """A row of the snapshot is as it was at another time."""
    for log in (run.sink, run.letters):
        for place in rows_of(run, log, snapshot=True):
            change = log[place]
            table = change.tables[0]
            for lsn, state in run.states.items():
                row = state[table].get(key_of(change))
                if (
                    row is not None
                    and (lsn > change.commit_lsn) == newer
                    and row != run.states[int(change.commit_lsn)][table].get(key_of(change))
                ):
                    log[place] = replace(change, new=hidden(table, row))
                    return True
    return False


def early_chunk(run: Run, *, placed: bool) -> bool:
    """A chunk is placed before the transaction that it follows, or its rows are those before it."""
    chunks = list(run.chunks.items())
    run.chance.shuffle(chunks)
    for lsn, (table, keys) in chunks:
        before = lsn // STEP * STEP
        read, there = (lsn, before) if placed else (before, lsn)
        to = before - 1 if placed else lsn
        rows = [
            change
            for change in chunk(run.states[read], to, table, keys)
            if selected(Operation("read", table, key_of(change))) is not None
        ]
        current = chunk(run.states[there], to, table, keys)
        if all(any(row.new == each.new for each in current) for row in rows):
            continue
        run.sink[:] = [
            each for each in run.sink if not (isinstance(each, Delivered) and each.commit_lsn == lsn)
        ]
        for row in rows:
            put_in_order(run.sink, replace(row, ordinal=row.ordinal + 1000))
        return True
    return False


def lost_change(run: Run, log: str = "sink") -> bool:
    """A change of the stream is missing."""
    entries = getattr(run, log)
    for place in rows_of(run, entries, snapshot=False):
        del entries[place]
        return True
    return False


def twice(run: Run, log: str, *, snapshot: bool) -> bool:
    """A change comes twice without a restart."""
    entries = getattr(run, log)
    for place in rows_of(run, entries, snapshot=snapshot):
        if not any(isinstance(entry, Restarted) for entry in entries[place : place + 2]):
            entries.insert(place + 1, entries[place])
            return True
    return False


def invented_letter(run: Run, *, snapshot: bool) -> bool:
    """A row that the sink has taken is among the dead letters, too."""
    for place in rows_of(run, run.sink, snapshot=snapshot):
        change = run.sink[place]
        if change.tables != ("ledger",):
            run.letters.append(change)
            run.letters.sort(key=lambda entry: entry.identity)
            return True
    return False


def kept_letter(run: Run, *, snapshot: bool) -> bool:
    """A row that the sink rejects is in the sink."""
    for place in rows_of(run, run.letters, snapshot=snapshot):
        put_in_order(run.sink, run.letters[place])
        return True
    return False


def put_in_order(log: list[Entry], change: Delivered) -> None:
    """Put a change where its position is."""
    at = next(
        (n for n, each in enumerate(log) if isinstance(each, Delivered) and each.identity > change.identity),
        len(log),
    )
    log.insert(at, change)


def unselected(run: Run, *, snapshot: bool) -> bool:
    """A row of a table that is not selected is in the sink."""
    for one in run.history.transactions:
        for ordinal, operation in enumerate(one.operations):
            if operation.table == "others" and operation.new is not None and one.outcome == "committed":
                lsn = next(
                    each.commit_lsn
                    for each in run.sink
                    if isinstance(each, Delivered) and each.xid == one.xid
                )
                change = Delivered(lsn, ordinal, one.xid, operation.kind, ("others",), new=operation.new)
                if snapshot:
                    change = replace(change, commit_lsn=LSN(lsn + 1), xid=0, ordinal=0, kind="read")
                put_in_order(run.sink, change)
                return True
    return False


def unmasked(run: Run, *, snapshot: bool, old: bool = False) -> bool:
    """A masked column comes as it is."""
    for log in (run.sink, run.letters):
        for place in rows_of(run, log, snapshot=snapshot):
            change = log[place]
            row = change.old if old else change.new
            for name in MASKED.get(change.tables[0], ()):
                if row is not None and name in row:
                    shown = {**row, name: str(row[name])[1:]}
                    log[place] = replace(change, old=shown) if old else replace(change, new=shown)
                    return True
    return False


def other_old_row(run: Run) -> bool:
    """The old row is not the one that was there."""
    for place in rows_of(run, run.sink, snapshot=False, table="notes"):
        change = run.sink[place]
        if change.old is not None:
            run.sink[place] = replace(change, old={**change.old, "text": "another"})
            return True
    return False


def other_xid(run: Run, xid: Callable[[Run, Delivered], int], *, snapshot: bool = False) -> bool:
    """A change has another transaction's xid, or none."""
    for place in rows_of(run, run.sink, snapshot=snapshot):
        run.sink[place] = replace(run.sink[place], xid=xid(run, run.sink[place]))
        return True
    return False


def whole_xid(run: Run) -> bool:
    """All changes of a transaction have the xid of another one."""
    for place in rows_of(run, run.sink, snapshot=False):
        mine = run.sink[place].xid
        other = run.chance.choice([one.xid for one in run.history.transactions if one.xid != mine])
        for at, entry in enumerate(run.sink):
            if isinstance(entry, Delivered) and entry.xid == mine:
                run.sink[at] = replace(entry, xid=other)
        return True
    return False


def other_lsn(run: Run) -> bool:
    """A transaction has an LSN at which it cannot have committed."""
    for place in rows_of(run, run.sink, snapshot=False):
        one = next(each for each in run.history.transactions if each.xid == run.sink[place].xid)
        for at, entry in enumerate(run.sink):
            if isinstance(entry, Delivered) and entry.xid == one.xid:
                run.sink[at] = replace(entry, commit_lsn=LSN(one.earliest - 1))
        return True
    return False


def other_time(run: Run, hours: float | None, *, whole: bool) -> bool:
    """A transaction, or one of its changes, has another commit time, or none."""
    for place in rows_of(run, run.sink, snapshot=False):
        change = run.sink[place]
        time = None if hours is None else change.time + timedelta(hours=hours)
        mine = [each for each in run.sink if isinstance(each, Delivered) and each.xid == change.xid]
        if not whole and len({each.identity for each in mine}) == 1:
            continue
        for at, entry in enumerate(run.sink):
            if entry in mine if whole else at == place:
                run.sink[at] = replace(entry, time=time)
        return True
    return False


def other_ordinal(run: Run) -> bool:
    """A change has another ordinal."""
    for place in rows_of(run, run.sink, snapshot=False):
        run.sink[place] = replace(run.sink[place], ordinal=run.sink[place].ordinal + 50)
        return True
    return False


def later_in_the_log(run: Run, *, snapshot: bool) -> bool:
    """A change comes after one that it precedes."""
    for place in rows_of(run, run.sink, snapshot=snapshot):
        if place + 1 < len(run.sink) and isinstance(run.sink[place + 1], Delivered):
            run.sink[place : place + 2] = reversed(run.sink[place : place + 2])
            return True
    return False


def other_kind(run: Run, kind: str, *, snapshot: bool) -> bool:
    """A change is of another kind."""
    for place in rows_of(run, run.sink, snapshot=snapshot):
        if run.sink[place].kind in ("insert", "read"):
            run.sink[place] = replace(run.sink[place], kind=kind)
            return True
    return False


def other_value(run: Run, *, snapshot: bool) -> bool:
    """A column has another value."""
    for place in rows_of(run, run.sink, snapshot=snapshot):
        change = run.sink[place]
        for name in ("doc", "text", "version"):
            if change.new and name in change.new:
                run.sink[place] = replace(change, new={**change.new, name: 77_777})
                return True
    return False


DAMAGES: dict[str, Damage] = {
    "a lost row of the snapshot": lost_row,
    "a lost row of the snapshot among the letters": lambda run: lost_row(run, "letters"),
    "an older row": lambda run: other_version(run, newer=False),
    "a newer row": lambda run: other_version(run, newer=True),
    "a chunk placed a transaction early": lambda run: early_chunk(run, placed=True),
    "a chunk read a transaction early": lambda run: early_chunk(run, placed=False),
    "a lost change": lost_change,
    "a lost letter": lambda run: lost_change(run, "letters"),
    "a change twice": lambda run: twice(run, "sink", snapshot=False),
    "a row twice": lambda run: twice(run, "sink", snapshot=True),
    "a letter twice": lambda run: twice(run, "letters", snapshot=False),
    "a letter of the snapshot twice": lambda run: twice(run, "letters", snapshot=True),
    "an invented letter": lambda run: invented_letter(run, snapshot=False),
    "an invented letter of the snapshot": lambda run: invented_letter(run, snapshot=True),
    "a rejected change": lambda run: kept_letter(run, snapshot=False),
    "a rejected row": lambda run: kept_letter(run, snapshot=True),
    "an unselected change": lambda run: unselected(run, snapshot=False),
    "an unselected row": lambda run: unselected(run, snapshot=True),
    "an unmasked change": lambda run: unmasked(run, snapshot=False),
    "an unmasked row": lambda run: unmasked(run, snapshot=True),
    "an unmasked old row": lambda run: unmasked(run, snapshot=False, old=True),
    "another old row": other_old_row,
    "the xid of another": lambda run: other_xid(
        run,
        lambda run, change: run.chance.choice(
            [one.xid for one in run.history.transactions if one.xid != change.xid]
        ),
    ),
    "no xid": lambda run: other_xid(run, lambda run, change: 0),
    "an unknown xid": lambda run: other_xid(run, lambda run, change: 9999),
    "a row with an xid": lambda run: other_xid(run, lambda run, change: 701, snapshot=True),
    "a transaction with another xid": whole_xid,
    "another LSN": other_lsn,
    "a later time": lambda run: other_time(run, 1, whole=True),
    "an earlier time": lambda run: other_time(run, -1, whole=True),
    "no time": lambda run: other_time(run, None, whole=True),
    "a change with another time": lambda run: other_time(run, 0.001, whole=False),
    "another ordinal": other_ordinal,
    "a change after its successor": lambda run: later_in_the_log(run, snapshot=False),
    "a row after its successor": lambda run: later_in_the_log(run, snapshot=True),
    "an insert as a read": lambda run: other_kind(run, "read", snapshot=False),
    "a read as an insert": lambda run: other_kind(run, "insert", snapshot=True),
    "another value": lambda run: other_value(run, snapshot=False),
    "another value in the snapshot": lambda run: other_value(run, snapshot=True),
}


def test_runs_without_damage():
    """The verifier finds no violation in them."""
    assert [[]] * len(SEEDS) == [run_of(seed).violations() for seed in SEEDS]


@pytest.mark.parametrize("name", DAMAGES)
def test_damage(name):
    """Each kind of damage is possible in most runs, and is found in each of them."""
    damaged, missed = 0, []
    for seed in SEEDS:
        run = run_of(seed)
        if DAMAGES[name](run):
            damaged += 1
            if not run.violations():
                missed.append(seed)
    assert damaged > len(SEEDS) // 2
    assert [] == missed
