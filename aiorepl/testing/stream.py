"""A stream of committed transactions without a server: write down what was committed, get the slices for a sink.

    stream = Stream()
    orders = stream.table("orders", column("id", INT4, key=True), column("note"))
    stream.transaction(orders.insert("1", "first"), orders.delete("1", None))
    await sink.write(Batch(stream.slices()))

LSNs and xids count up by themselves. The bytes go through the decoder and the assembler like a server's. ``again``
gives what a server would send on another connection: the same changes, as new objects, perhaps cut otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Column
from aiorepl.position import Position, Timelines
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Value
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo


class Table:
    """A table as it is described now; ``stream.table`` makes one, and a new one after DDL."""

    def __init__(self, oid: int, name: str, columns: int) -> None:
        self.oid = oid
        self.name = name
        self._columns = columns

    def insert(self, *new: Value) -> bytes:
        """An Insert message."""
        return build.insert(relation=self.oid, new=self._row(new))

    def update(
        self, *new: Value, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None
    ) -> bytes:
        """An Update message; ``key`` is the old key that changed, ``old`` the whole old row under FULL."""
        self._row(new)
        if key is not None:
            return build.update(relation=self.oid, new=new, old=self._row(key), old_kind="K")
        return build.update(
            relation=self.oid, new=new, old=None if old is None else self._row(old), old_kind="O"
        )

    def delete(self, *old: Value, full: bool = False) -> bytes:
        """A Delete message, by key or by the whole row."""
        return build.delete(relation=self.oid, old=self._row(old), old_kind="O" if full else "K")

    def truncate(self) -> bytes:
        """A Truncate message."""
        return build.truncate(relations=[self.oid])

    def _row(self, values: Sequence[Value]) -> Sequence[Value]:
        if len(values) != self._columns:
            raise ValueError(
                f"{self.name} has {self._columns} columns, and {len(values)} values were given: of a key give None for the "
                "columns that are not in it"
            )
        return values


class Stream:
    """What one slot sends.

    :param types: types that are not built in.
    :param start: where the stream begins; ``position`` is the slot's there.
    """

    def __init__(
        self,
        *,
        types: Iterable[TypeInfo] = (),
        start: int = 0x1000000,
        slot: str = "test",
        binary: bool = False,
    ) -> None:
        self.position = Position("7000000000000000001", 1, slot, LSN(start), Timelines(1))
        self.ends: list[LSN] = []
        self.types = tuple(types)
        self.binary = binary
        self.listeners: list[Callable[[], None]] = []
        """Called whenever something was committed."""
        self._lsn = start
        self._xid = 700
        self._oid = 16384
        self._time = 800_000_000_000_000
        self._fresh: list[bytes] = []
        self.units: list[tuple[LSN, list[bytes]]] = []
        """Transactions, and what stands between them, as messages, by their end LSNs."""
        self._taken = 0
        self._prepared: dict[str, tuple[int, LSN]] = {}
        self._decoder, self._assembler = self._connection(LSN(0))

    def table(
        self,
        name: str,
        *columns: Column,
        namespace: str = "public",
        replica_identity: str = "d",
        replaces: Table | None = None,
    ) -> Table:
        """Describe a table; the next transaction begins with it.

        :param replaces: the same table before an ALTER TABLE.
        """
        if replaces is None:
            self._oid += 1
        oid = self._oid if replaces is None else replaces.oid
        described = build.relation(
            oid=oid, namespace=namespace, name=name, replica_identity=replica_identity, columns=columns
        )
        self._fresh.append(described)
        return Table(oid, name, len(columns))

    def type_(self, oid: int, name: str, namespace: str = "public") -> None:
        """Send a Type message ahead of the tables that use it."""
        self._fresh.append(build.type_(oid=oid, namespace=namespace, name=name))

    def transaction(self, *contents: bytes, origin: str | None = None, at_once: bool = False) -> LSN:
        """Commit ``contents``, and return the end LSN.

        :param at_once: the commit record begins where the stream ends: the rows were written before that.
        """
        self._xid += 1
        self._time += 1_000_000
        commit_lsn = self._lsn if at_once else self._lsn + sum(map(len, contents)) + 0x40
        end_lsn = commit_lsn + 0x30
        unit = [build.begin(final_lsn=commit_lsn, commit_time=self._time, xid=self._xid)]
        if origin is not None:
            unit.append(build.origin(commit_lsn=1, name=origin))
        unit += [*self._described(), *contents]
        unit.append(build.commit(commit_lsn=commit_lsn, end_lsn=end_lsn, commit_time=self._time))
        return self._ended(end_lsn, unit)

    def prepare(self, gid: str, *contents: bytes) -> LSN:
        """PREPARE TRANSACTION ``contents`` under ``gid``, and return the end LSN of that."""
        self._xid += 1
        self._time += 1_000_000
        prepare_lsn = self._lsn + sum(map(len, contents)) + 0x40
        end_lsn = prepare_lsn + 0x30
        self._prepared[gid] = (self._xid, LSN(end_lsn))
        header = {
            "prepare_lsn": prepare_lsn,
            "end_lsn": end_lsn,
            "prepare_time": self._time,
            "xid": self._xid,
        }
        begin, end = build.begin_prepare(**header, gid=gid), build.prepare(**header, gid=gid)
        return self._ended(end_lsn, [begin, *self._described(), *contents, end])

    def commit_prepared(self, gid: str) -> LSN:
        """COMMIT PREPARED, and return the end LSN."""
        xid, _ = self._prepared.pop(gid)
        self._time += 1_000_000
        commit_lsn = self._lsn + 0x40
        end_lsn = commit_lsn + 0x30
        committed = build.commit_prepared(
            commit_lsn=commit_lsn, end_lsn=end_lsn, commit_time=self._time, xid=xid, gid=gid
        )
        return self._ended(end_lsn, [committed])

    def rollback_prepared(self, gid: str) -> LSN:
        """ROLLBACK PREPARED, and return the end LSN."""
        xid, prepared = self._prepared.pop(gid)
        self._time += 1_000_000
        end_lsn = self._lsn + 0x70
        rolled_back = build.rollback_prepared(
            prepare_end_lsn=prepared,
            rollback_end_lsn=end_lsn,
            rollback_time=self._time,
            xid=xid,
            gid=gid,
        )
        return self._ended(end_lsn, [rolled_back])

    def message(self, prefix: str, content: bytes = b"") -> LSN:
        """Emit a message that is not transactional, and return its LSN."""
        lsn = self._lsn + 0x40
        return self._ended(lsn, [build.message(transactional=False, lsn=lsn, prefix=prefix, content=content)])

    def slices(self, at_once: int | None = None) -> list[Slice]:
        """The slices of everything since the last call.

        :param at_once: how many messages are read from the socket together; all, if not said. A transaction comes
            in as many slices as it takes reads.
        """
        fresh, self._taken = self.units[self._taken :], len(self.units)
        return _cut(self._decoder, self._assembler, fresh, at_once)

    def again(self, at_once: int | None = None, *, after: int = 0) -> list[Slice]:
        """The slices of everything so far, as on a connection of its own that knows what ended up to ``after``."""
        return _cut(*self._connection(LSN(after)), self.units, at_once)

    @property
    def lsn(self) -> LSN:
        """The end of WAL."""
        return LSN(self._lsn)

    def descriptions(self, before: int) -> list[bytes]:
        """The latest Relation and Type messages of the first ``before`` units, which a new connection sends again."""
        described = {
            payload[:5]: payload
            for _, unit in self.units[:before]
            for payload in unit
            if payload[:1] in (b"R", b"Y")
        }
        return list(described.values())

    def _connection(self, after: LSN) -> tuple[Decoder, Assembler]:
        return Decoder(), Assembler(
            Types(self.types),
            binary=self.binary,
            resume=ReplayFilter(after),
            begins=LSN(0),
            deliver_prepared=True,
        )

    def _described(self) -> list[bytes]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def _ended(self, lsn: int, unit: list[bytes]) -> LSN:
        self._lsn = lsn
        self.ends.append(LSN(lsn))
        self.units.append((LSN(lsn), unit))
        for listener in self.listeners:
            listener()
        return self.ends[-1]


def _cut(
    decoder: Decoder, assembler: Assembler, units: Iterable[tuple[LSN, list[bytes]]], at_once: int | None
) -> list[Slice]:
    payloads = [payload for _, unit in units for payload in unit]
    step = at_once or max(len(payloads), 1)
    slices: list[Slice] = []
    for start in range(0, len(payloads), step):
        slices += assembler.feed([decoder.decode(payload) for payload in payloads[start : start + step]])
    return slices
