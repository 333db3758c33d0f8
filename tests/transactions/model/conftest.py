"""A model of a server's sessions, which write WAL and know which of it counts. It knows no messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

TABLES = (1, 2)
# Bytes of a record.
SIZE = 16


@dataclass
class Frame:
    """An open (sub)transaction with its changes and those of released subtransactions."""

    xid: int
    done: list[tuple[Any, ...]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Record:
    """A piece of WAL. ``about`` is a change, names a table, or lists the subtransactions that end."""

    lsn: int
    kind: str
    top: int
    xid: int
    about: Any = None

    @property
    def end(self) -> int:
        """The LSN of the next record."""
        return self.lsn + SIZE


class World:
    """Sessions by the xid of their transaction. A step that is impossible at the moment is skipped."""

    def __init__(self) -> None:
        self.wal: list[Record] = []
        self.told: list[tuple[Any, ...]] = []
        """What counts, in order: kind, xid, LSN, gid, changes."""
        self.sessions: dict[int, list[Frame]] = {}
        self.prepared: dict[str, tuple[Frame, int]] = {}
        self._columns: dict[int, tuple[str, ...]] = dict.fromkeys(TABLES, ("c0",))
        self._count = 0

    def begin(self) -> None:
        if len(self.sessions) < 4:
            top = self._number()
            self.sessions[top] = [Frame(top)]

    def write(self, top: int, table: int, kind: str) -> None:
        """Write a row, or truncate a table."""
        if not self._locked(top, table, exclusively=kind == "truncate"):
            columns = self._view(top, table)
            values = tuple(f"{self._number()}" for _ in columns)
            self._do(top, "change", (kind, table, columns, () if kind == "truncate" else values))

    def alter(self, top: int, table: int) -> None:
        """Add a column."""
        if not self._locked(top, table, exclusively=True):
            self._do(top, "alter", ("alter", table, f"c{self._number()}"))

    def message(self, top: int) -> None:
        """Write a transactional message."""
        self._do(top, "message", ("message", f"{self._number()}"))

    def message_now(self) -> None:
        """Write a non-transactional message."""
        record = self._log("message now", 0, 0, f"{self._number()}")
        self.told.append(("message", None, record.end, None, [("message", record.about)]))

    def savepoint(self, top: int) -> None:
        if len(self.sessions[top]) < 4:
            self.sessions[top].append(Frame(self._number()))

    def release(self, top: int) -> None:
        if len(self.sessions[top]) > 1:
            inner = self.sessions[top].pop()
            outer = self.sessions[top][-1]
            outer.done += inner.done
            outer.released += [inner.xid, *inner.released]

    def rollback_to(self, top: int) -> None:
        if len(self.sessions[top]) > 1:
            inner = self.sessions[top].pop()
            self._log("abort", top, inner.xid, [*inner.released, inner.xid])

    def commit(self, top: int) -> None:
        whole = self._close(top)
        record = self._log("commit", top, top)
        self._count_in("commit", whole, record, None)

    def rollback(self, top: int) -> None:
        whole = self._close(top)
        self._log("rollback", top, top, [*whole.released, top])

    def prepare(self, top: int, gid: str) -> None:
        if gid not in self.prepared:
            whole = self._close(top)
            record = self._log("prepare", top, top, gid)
            self.prepared[gid] = whole, record.lsn
            self.told.append(("prepare", top, record.lsn, gid, _changes(whole)))

    def decide(self, gid: str, *, commit: bool) -> None:
        """Run COMMIT PREPARED or ROLLBACK PREPARED."""
        if gid in self.prepared:
            whole, prepared = self.prepared.pop(gid)
            kind = "commit prepared" if commit else "rollback prepared"
            record = self._log(kind, whole.xid, whole.xid, (gid, prepared, [*whole.released, whole.xid]))
            if commit:
                self._count_in(kind, whole, record, gid)
            else:
                self.told.append((kind, whole.xid, record.end, gid, []))

    def step(self, dice: Random) -> None:
        """Do any step."""
        top = dice.choice([*self.sessions, 0])
        gid = f"g{dice.randrange(3)}"
        if top == 0:
            dice.choice((self.begin, self.begin, self.message_now))()
            return
        match dice.randrange(24):
            case 0:
                self.commit(top)
            case 1:
                dice.choice((self.rollback, self.commit))(top)
            case 2:
                self.prepare(top, gid)
            case 3 | 4:
                self.decide(gid, commit=dice.random() < 0.7)
            case 5 | 6 | 7:
                self.savepoint(top)
            case 8:
                self.release(top)
            case 9 | 10:
                self.rollback_to(top)
            case 11:
                self.message(top)
            case 12:
                self.alter(top, dice.choice(TABLES))
            case _:
                kind = dice.choice(("insert", "insert", "update", "delete", "truncate"))
                self.write(top, dice.choice(TABLES), kind)

    def end(self) -> None:
        """End all transactions."""
        for top in list(self.sessions):
            self.commit(top)
        for gid in list(self.prepared):
            self.decide(gid, commit=True)

    def expected(self, *, delivered: bool = False, two_phase: bool = True) -> list[tuple[Any, ...]]:
        """Return what a consumer receives; prepared transactions at their PREPARE if they are ``delivered`` then."""
        if delivered:
            ends = ("commit prepared", "rollback prepared")
            units = [(*unit[:4], []) if unit[0] in ends else unit for unit in self.told]
            return [unit for unit in units if unit[4] or unit[0] not in ("commit", "message")]
        return [
            ("commit", *unit[1:3], unit[3] if two_phase else None, unit[4])
            if unit[0] == "commit prepared"
            else unit
            for unit in self.told
            if unit[0] in ("commit", "commit prepared", "message") and unit[4]
        ]

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _log(self, kind: str, top: int, xid: int, about: Any = None) -> Record:
        record = Record(0x1000 + SIZE * len(self.wal), kind, top, xid, about)
        self.wal.append(record)
        return record

    def _do(self, top: int, kind: str, done: tuple[Any, ...]) -> None:
        frame = self.sessions[top][-1]
        frame.done.append(done)
        self._log(kind, top, frame.xid, done)

    def _close(self, top: int) -> Frame:
        while len(self.sessions[top]) > 1:
            self.release(top)
        return self.sessions.pop(top)[0]

    def _count_in(self, kind: str, whole: Frame, record: Record, gid: str | None) -> None:
        self.told.append((kind, whole.xid, record.lsn, gid, _changes(whole)))
        for done in whole.done:
            if done[0] == "alter":
                self._columns[done[1]] += (done[2],)

    def _view(self, top: int, table: int) -> tuple[str, ...]:
        added = (
            done[2] for frame in self.sessions[top] for done in frame.done if done[:2] == ("alter", table)
        )
        return (*self._columns[table], *added)

    def _locked(self, top: int, table: int, *, exclusively: bool) -> bool:
        others = [frame for xid, frames in self.sessions.items() if xid != top for frame in frames]
        others += [whole for whole, _ in self.prepared.values()]
        held = {done[0] for frame in others for done in frame.done if done[1] == table}
        return bool(held if exclusively else held & {"alter", "truncate"})


def _changes(whole: Frame) -> list[tuple[Any, ...]]:
    return [done for done in whole.done if done[0] != "alter"]


@pytest.fixture(scope="session")
def world() -> type[World]:
    """What happened."""
    return World
