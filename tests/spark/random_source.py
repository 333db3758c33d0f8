"""Random tables of a source: their rows, and the changes that a slot sends, in all shapes that the protocol has.

Left out: keys of other types than int4 and text, and values of other types than these and int8. ``test_types`` has every type,
``test_delta_statistics`` wide numeric keys, and ``tests/chaos`` mirrors keys of numeric and uuid, enums, domains and composites. A table is
not dropped and created again, because a mirror refuses that (``test_mirroring``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

INT4, INT8, TEXT = 23, 20, 25
_SERIAL, _CODE = 1, 2
"""The numbers of two columns that are unique and never null, so that either of them, or both, can be the key."""
_MOST_ROWS: Final = 12


class Column(NamedTuple):
    """A column under its present name."""

    number: int
    name: str
    kind: int


Row = dict[int, str | None]
"""PostgreSQL's text of each value, by the column's number."""


class SourceTable:
    """A table of the source. Its methods change its rows, and return the messages about that.

    :param chance: the only source of randomness.
    :param full: REPLICA IDENTITY FULL; the key then never changes.
    :param to_text: whether ``alter`` may change numbers to text.
    """

    def __init__(
        self,
        stream: Stream,
        chance: random.Random,
        name: str,
        *,
        full: bool,
        to_text: bool,
    ) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.columns = [
            Column(_SERIAL, "id", INT4),
            Column(_CODE, "code", TEXT),
            Column(3, f"{name}_a", TEXT),
            Column(4, f"{name}_b", INT4),
        ]
        self.attributes: dict[str, Attribute] = {}
        self.full = full
        self._key: tuple[int, ...] = (_SERIAL,)
        self._wider = {INT4: INT8, INT8: TEXT if to_text else INT8, TEXT: TEXT}
        self._stream = stream
        self._chance = chance
        self._missing: dict[int, str | None] = {}
        self._next = 5
        self._described: Any = None
        self._describe()

    def change(self) -> Iterator[bytes]:
        """Change one row, or truncate."""
        chance = self._chance
        action = chance.choices(
            ("insert", "update", "move", "delete", "truncate"), (6, 5, 3, 4, 0.5 if self.rows else 0)
        )[0]
        if not self.rows or (action == "insert" and len(self.rows) < _MOST_ROWS):
            yield self.insert()
        elif action in ("insert", "update", "move"):
            place = chance.randrange(len(self.rows))
            yield self._update(place, moves=action == "move")
        elif action == "delete":
            row = self.rows.pop(chance.randrange(len(self.rows)))
            yield self._described.delete(*self._old(row), full=self.full)
        else:
            self.rows.clear()
            yield self._described.truncate()

    def insert(self) -> bytes:
        """Insert a row."""
        row = {each.number: self._value(each) for each in self.columns}
        self.rows.append({**row, **self._identity()})
        inserted: bytes = self._described.insert(*self._sent(self.rows[-1]))
        return inserted

    def snapshot(self) -> None:
        """Deliver a chunk with some of the rows."""
        some = [row for row in self.rows if self._chance.random() < 0.6]
        if some:
            inserts = [self._described.insert(*self._sent(row)) for row in some]
            self._stream.snapshot(self._described, *inserts, number=self._chance.randrange(1, 9))

    def alter(self) -> None:
        """Change the description, as ALTER TABLE does."""
        steps = ("add", "add", "drop", "swap", "widen", "widen", *(() if self.full else ("key", "key")))
        others = [each for each in self.columns if each.number > _CODE]
        match self._chance.choice(steps):
            case "key":
                keys = ((_SERIAL,), (_CODE,), (_SERIAL, _CODE))
                self._key = self._chance.choice([key for key in keys if key != self._key])
            case "drop" if others:
                dropped = self._chance.choice(others)
                self.columns.remove(dropped)
                for row in self.rows:
                    del row[dropped.number]
            case "swap" if len(others) > 1:
                one, other = self._chance.sample(others, 2)
                names = {one.number: other.name, other.number: one.name}
                self.columns = [
                    each._replace(name=names.get(each.number, each.name)) for each in self.columns
                ]
            case "widen":
                self.columns = [each._replace(kind=self._wider[each.kind]) for each in self.columns]
            case _:
                self._add()
        self._describe()

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(each.name for each in self.columns if each.number in self._key)

    def expected(self) -> list[dict[str, str | None]]:
        """Return the rows by the columns' names."""
        return [{each.name: row.get(each.number) for each in self.columns} for row in self.rows]

    def _add(self) -> None:
        taken = {each.name for each in self.columns}
        # Perhaps the name of a column that was dropped.
        names = sorted({f"{self.name}_{letter}" for letter in "abcdefgh"} - taken)
        if not names:
            return
        name = self._chance.choice(names)
        added = Column(self._next, name, self._chance.choice([INT4, INT8, TEXT]))
        self._next += 1
        self.columns.append(added)
        self._missing[added.number] = self._chance.choice([None, "7"])
        for row in self.rows:
            row[added.number] = self._missing[added.number]

    def _describe(self) -> None:
        described = [
            column(each.name, each.kind, key=self.full or each.number in self._key) for each in self.columns
        ]
        identity = "f" if self.full else "d"
        self._described = self._stream.table(
            self.name, *described, replica_identity=identity, replaces=self._described
        )
        self.attributes = {
            each.name: Attribute(each.number, self._missing.get(each.number), True) for each in self.columns
        }

    def _identity(self) -> Row:
        """Return values that no row has in the two columns that may be the key."""
        serials = {row[_SERIAL] for row in self.rows}
        codes = {row[_CODE] for row in self.rows}
        free = [str(number) for number in range(2 * _MOST_ROWS)]
        return {
            _SERIAL: self._chance.choice([each for each in free if each not in serials]),
            _CODE: self._chance.choice([code for each in free if (code := f"c'{each}") not in codes]),
        }

    def _value(self, of: Column) -> str | None:
        number = self._chance.randrange(10**3)
        return self._chance.choice([None, str(number), str(number) * (9 if of.kind == TEXT else 1)])

    def _update(self, place: int, *, moves: bool) -> bytes:
        old = self.rows[place]
        new, sent = dict(old), []
        if moves:
            new.update(self._identity())
        elif self._chance.random() < 0.3:
            new.update(
                {number: value for number, value in self._identity().items() if number not in self._key}
            )
        for each in self.columns:
            value = old.get(each.number)
            if each.number > _CODE:
                if each.kind == TEXT and value is not None and self._chance.random() < 0.5:
                    sent.append(UNCHANGED)
                    continue
                new[each.number] = self._value(each)
            sent.append(new.get(each.number))
        self.rows[place] = new
        if self.full:
            return self._described.update(*sent, old=self._old(old))
        moved = any(old[number] != new[number] for number in self._key)
        return self._described.update(*sent, key=self._old(old) if moved else None)

    def _sent(self, row: Row) -> Sequence[str | None]:
        return [row.get(each.number) for each in self.columns]

    def _old(self, row: Row) -> Sequence[str | None]:
        """Return what the server sends of a former row."""
        return [
            row.get(each.number) if self.full or each.number in self._key else None for each in self.columns
        ]
