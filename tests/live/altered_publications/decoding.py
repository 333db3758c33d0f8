"""Decodes the pgoutput messages that the server sent to one connection into transactions, whole or in part.

The parser is not aiorepl's, so that an error of aiorepl's parser cannot hide a change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

UNCHANGED = "unchanged"

Row = tuple[tuple[str, Any], ...]
Event = tuple[Any, ...]


@dataclass
class Decoded:
    """A transaction as the server sent it to one connection.

    :param form: ``plain``, ``streamed`` or ``prepared``.
    :param commit_lsn: 0 for a prepared transaction without an outcome.
    :param events: the changes, each with the LSN of its WAL record.
    :param whole: whether the server sent the end of the transaction, its commit or its PREPARE, and aiorepl does not receive it again.
    """

    xid: int
    form: str
    commit_lsn: int = 0
    end_lsn: int = 0
    events: list[tuple[int, Event]] = field(default_factory=list)
    whole: bool = False


@dataclass
class Connection:
    """Everything that the server sent to one connection.

    :param transactions: plain and streamed transactions.
    :param prepared: prepared transactions, each with its gid; whether they committed is in ``outcomes``.
    :param outcomes: the header of each COMMIT PREPARED, with its gid; its ``events`` are empty.
    :param messages: logical messages that are not transactional, by LSN.
    """

    transactions: list[Decoded] = field(default_factory=list)
    prepared: list[tuple[str, Decoded]] = field(default_factory=list)
    outcomes: list[tuple[str, Decoded]] = field(default_factory=list)
    messages: dict[int, Event] = field(default_factory=dict)


def decode(frames: list[tuple[int, bytes]]) -> Connection:
    """Decode the frames of one connection."""
    return _Decoder().decode(frames)


class _Decoder:
    def __init__(self) -> None:
        self._found = Connection()
        self._relations: dict[int, tuple[str, list[tuple[str, bool]]]] = {}
        self._plain: Decoded | None = None
        self._preparing: Decoded | None = None
        # Streamed transactions, each change with the xid of its subtransaction.
        self._streams: dict[int, list[tuple[int, int, Event]]] = {}
        self._doubtful: set[int] = set()
        self._block: int | None = None

    def decode(self, frames: list[tuple[int, bytes]]) -> Connection:
        for lsn, payload in frames:
            self._take(lsn, _Bytes(payload))
        if self._plain is not None:
            self._found.transactions.append(self._plain)
        return self._found

    def _take(self, lsn: int, data: _Bytes) -> None:
        kind = data.letter()
        match kind:
            case "B":
                commit_lsn, _, xid = data.take("QqI")
                self._plain = Decoded(xid, "plain", commit_lsn)
            case "C":
                _, _, end_lsn = data.take("BQQ")
                assert self._plain is not None
                self._plain.end_lsn, self._plain.whole = end_lsn, True
                self._found.transactions.append(self._plain)
                self._plain = None
            case "S":
                self._block, _ = data.take("IB")
                self._streams.setdefault(self._block, [])
            case "E":
                self._block = None
            case "c":
                xid, _, commit_lsn, end_lsn = data.take("IBQQ")
                self._found.transactions.append(self._streamed(Decoded(xid, "streamed", commit_lsn, end_lsn)))
            case "A":
                xid, sub = data.take("II")
                if xid == sub:
                    self._streams.pop(xid, None)
                else:
                    self._roll_back(xid, sub)
            case "b":
                _, end_lsn, _, xid = data.take("QQqI")
                self._preparing = Decoded(xid, "prepared", end_lsn=end_lsn)
            case "P":
                data.take("BQQqI")
                assert self._preparing is not None
                self._preparing.whole = True
                self._found.prepared.append((data.text(), self._preparing))
                self._preparing = None
            case "p":
                _, _, end_lsn, _, xid = data.take("BQQqI")
                done = self._streamed(Decoded(xid, "prepared", 0, end_lsn))
                self._found.prepared.append((data.text(), done))
            case "K":
                _, commit_lsn, end_lsn, _, xid = data.take("BQQqI")
                self._found.outcomes.append(
                    (data.text(), Decoded(xid, "prepared", commit_lsn, end_lsn, whole=True))
                )
            case "r" | "Y" | "O":
                pass
            case _:
                self._content(kind, lsn, data)

    def _roll_back(self, xid: int, sub: int) -> None:
        """Drop the changes of a subtransaction, and all changes after its first one: they belong to it, or to its own subtransactions."""
        events = self._streams.get(xid, [])
        first = next((at for at, one in enumerate(events) if one[0] == sub), len(events))
        if first and events[first - 1][2][0] == "M":
            # A message has the xid of the top-level transaction, so this one may belong to the subtransaction.
            self._doubtful.add(xid)
        del events[first:]

    def _streamed(self, one: Decoded) -> Decoded:
        one.events = [(lsn, event) for _, lsn, event in self._streams.pop(one.xid, [])]
        # aiorepl receives a doubtful transaction again, without streaming.
        one.whole = one.xid not in self._doubtful
        return one

    def _content(self, kind: str, lsn: int, data: _Bytes) -> None:
        sub = data.take("I")[0] if self._block is not None else 0
        event = self._event(kind, data)
        if event is None:
            return
        if self._block is not None:
            self._streams[self._block].append((sub, lsn, event))
            return
        open_one = self._plain or self._preparing
        assert open_one is not None
        open_one.events.append((lsn, event))

    def _event(self, kind: str, data: _Bytes) -> Event | None:
        if kind == "R":
            self._describe(data)
            return None
        if kind == "M":
            flags, lsn = data.take("BQ")
            prefix, content = data.text(), data.counted()
            if not flags & 1:
                self._found.messages[lsn] = ("M", prefix, content)
                return None
            return "M", prefix, content
        if kind == "T":
            count, _ = data.take("IB")
            return "T", tuple(sorted(self._relations[oid][0] for oid in data.take(f"{count}I")))
        (oid,) = data.take("I")
        name, columns = self._relations[oid]
        old: Row | None = None
        new: Row | None = None
        for letter, values in data.tuples():
            row = tuple((column, value) for (column, _), value in zip(columns, values, strict=True))
            if letter == "N":
                new = row
                if old is not None and len(old) == len(new):
                    # If the old row is whole, it has the unchanged values.
                    pairs = zip(new, old, strict=True)
                    new = tuple(before if one[1] == UNCHANGED else one for one, before in pairs)
            elif letter == "O":
                old = row
            else:
                old = tuple(one for one, (_, key) in zip(row, columns, strict=True) if key)
        return kind, name, oid, old, new

    def _describe(self, data: _Bytes) -> None:
        (oid,) = data.take("I")
        name = f"{data.text()}.{data.text()}"
        _, count = data.take("BH")
        columns = []
        for _ in range(count):
            (flags,) = data.take("B")
            columns.append((data.text(), bool(flags & 1)))
            data.take("II")
        self._relations[oid] = name, columns


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def letter(self) -> str:
        return chr(self.take("B")[0])

    def take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f">{layout}", self._data, self._at)
        self._at += struct.calcsize(f">{layout}")
        return found

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        found, self._at = self._data[self._at : end].decode(), end + 1
        return found

    def counted(self) -> bytes:
        (count,) = self.take("I")
        self._at += count
        return self._data[self._at - count : self._at]

    def tuples(self) -> Iterator[tuple[str, list[Any]]]:
        while self._at < len(self._data):
            letter, (count,) = self.letter(), self.take("H")
            yield letter, [self._value() for _ in range(count)]

    def _value(self) -> Any:
        match self.letter():
            case "n":
                return None
            case "u":
                return UNCHANGED
        return self.counted()
