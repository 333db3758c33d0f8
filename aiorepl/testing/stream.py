"""A stream of committed transactions without a server: commit transactions, and get their slices for a sink.

    stream = Stream()
    orders = stream.table("orders", column("id", INT4, key=True), column("note"))
    stream.transaction(orders.insert("1", "first"), orders.delete("1", None))
    await sink.write(Batch(stream.slices()))

LSNs and xids are assigned automatically. The bytes go through the decoder and the assembler, like those of a server.
``again`` returns what a server would send on another connection: the same changes as new objects, perhaps in other slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Column
from aiorepl.position import Position, Timelines
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Value
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange, row_change
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import SnapshotChunk, Transaction
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo


class StreamTable:
    """A table under its current description. After DDL, ``stream.table`` returns a new one."""

    def __init__(self, oid: int, namespace: str, name: str, columns: int) -> None:
        self.oid = oid
        self.namespace = namespace
        self.name = name
        self._columns = columns

    def insert(self, *new: Value) -> bytes:
        """Return an Insert message."""
        return build.insert(relation=self.oid, new=self._row(new))

    def update(
        self, *new: Value, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None
    ) -> bytes:
        """Return an Update message.

        :param key: the old key, if it changed.
        :param old: the whole old row, under replica identity FULL.
        """
        self._row(new)
        if key is not None:
            return build.update(relation=self.oid, new=new, old=self._row(key), old_kind="K")
        return build.update(
            relation=self.oid, new=new, old=None if old is None else self._row(old), old_kind="O"
        )

    def delete(self, *old: Value, full: bool = False) -> bytes:
        """Return a Delete message with the key, or with the whole row if ``full``."""
        return build.delete(relation=self.oid, old=self._row(old), old_kind="O" if full else "K")

    def truncate(self) -> bytes:
        """Return a Truncate message."""
        return build.truncate(relations=[self.oid])

    def _row(self, values: Sequence[Value]) -> Sequence[Value]:
        if len(values) != self._columns:
            raise ValueError(
                f"{self.name} has {self._columns} columns, not {len(values)}: for a key, pass None for the columns outside it"
            )
        return values


class Stream:
    """The transactions that one slot sends.

    :param types: types that are not built in.
    :param start: the LSN at which the stream begins, also the LSN of ``position``.
    :param binary: columns are sent in binary format.
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
        """Called after each commit."""
        self._lsn = start
        self._xid = 700
        self._oid = 16384
        self._time = 800_000_000_000_000
        self._pending_descriptions: list[bytes] = []
        self.units: list[tuple[LSN, list[bytes]]] = []
        """Transactions, and messages between them: end LSN and pgoutput messages of each."""
        self.chunks: dict[LSN, SnapshotChunk] = {}
        """The chunks of snapshots by commit LSN."""
        self._returned = 0
        self._prepared: dict[str, tuple[int, LSN]] = {}
        self._decoder, self._assembler = self._connection(LSN(0))

    def table(
        self,
        name: str,
        *columns: Column,
        namespace: str = "public",
        replica_identity: str = "d",
        replaces: StreamTable | None = None,
    ) -> StreamTable:
        """Describe a table, in the next transaction.

        :param replaces: this table before an ALTER TABLE.
        """
        if replaces is None:
            self._oid += 1
        oid = self._oid if replaces is None else replaces.oid
        described = build.relation(
            oid=oid, namespace=namespace, name=name, replica_identity=replica_identity, columns=columns
        )
        self._pending_descriptions.append(described)
        return StreamTable(oid, namespace, name, len(columns))

    def type_(self, oid: int, name: str, namespace: str = "public") -> None:
        """Describe a type, before the tables that use it."""
        self._pending_descriptions.append(build.type_(oid=oid, namespace=namespace, name=name))

    def transaction(
        self,
        *contents: bytes,
        origin: str | None = None,
        at_once: bool = False,
        commit_time: int | None = None,
    ) -> LSN:
        """Commit a transaction with these messages, and return its end LSN.

        :param commit_time: in microseconds since 2000; by default, a second after the transaction before.
        :param at_once: the commit record begins at the end of the stream, as if the rows had been written earlier.
        """
        self._xid += 1
        self._time = self._time + 1_000_000 if commit_time is None else commit_time
        commit_lsn = self._lsn if at_once else self._lsn + sum(map(len, contents)) + 0x40
        end_lsn = commit_lsn + 0x30
        unit = [build.begin(final_lsn=commit_lsn, commit_time=self._time, xid=self._xid)]
        if origin is not None:
            unit.append(build.origin(commit_lsn=1, name=origin))
        unit += [*self._take_descriptions(), *contents]
        unit.append(build.commit(commit_lsn=commit_lsn, end_lsn=end_lsn, commit_time=self._time))
        return self._append(end_lsn, unit)

    def snapshot(
        self,
        table: StreamTable,
        *contents: bytes,
        number: int = 1,
        last_of_table: bool = True,
        last: bool = True,
    ) -> LSN:
        """Deliver a chunk of a snapshot of ``table``, and return its end LSN. Its Insert messages become changes of kind read."""
        self._time += 1_000_000
        commit_lsn = LSN(self._lsn + 0x40)
        unit = [build.begin(final_lsn=commit_lsn, commit_time=self._time, xid=0), *self._take_descriptions()]
        unit += [
            *contents,
            build.commit(commit_lsn=commit_lsn, end_lsn=commit_lsn + 1, commit_time=self._time),
        ]
        self.chunks[commit_lsn] = SnapshotChunk(
            LSN(self._lsn), table.oid, table.namespace, table.name, number, last_of_table, last
        )
        return self._append(commit_lsn + 1, unit)

    def prepare(self, gid: str, *contents: bytes) -> LSN:
        """Prepare a transaction with these messages, and return the end LSN of the PREPARE."""
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
        return self._append(end_lsn, [begin, *self._take_descriptions(), *contents, end])

    def commit_prepared(self, gid: str) -> LSN:
        """Commit a prepared transaction, and return the end LSN."""
        xid, _ = self._prepared.pop(gid)
        self._time += 1_000_000
        commit_lsn = self._lsn + 0x40
        end_lsn = commit_lsn + 0x30
        committed = build.commit_prepared(
            commit_lsn=commit_lsn, end_lsn=end_lsn, commit_time=self._time, xid=xid, gid=gid
        )
        return self._append(end_lsn, [committed])

    def rollback_prepared(self, gid: str) -> LSN:
        """Roll back a prepared transaction, and return the end LSN."""
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
        return self._append(end_lsn, [rolled_back])

    def message(self, prefix: str, content: bytes = b"") -> LSN:
        """Emit a message that is not transactional, and return its LSN."""
        lsn = self._lsn + 0x40
        return self._append(
            lsn, [build.message(transactional=False, lsn=lsn, prefix=prefix, content=content)]
        )

    def slices(self, at_once: int | None = None) -> list[Slice]:
        """Return the slices of everything since the last call.

        :param at_once: messages per read, by default all. A transaction has a slice for each read.
        """
        fresh, self._returned = self.units[self._returned :], len(self.units)
        return self._with_chunks(_slices(self._decoder, self._assembler, fresh, at_once))

    def again(self, at_once: int | None = None, *, after: int = 0) -> list[Slice]:
        """Return the slices of the whole stream, as on another connection that resumes after an LSN."""
        return self._with_chunks(_slices(*self._connection(LSN(after)), self.units, at_once))

    @property
    def lsn(self) -> LSN:
        """The end of the stream."""
        return LSN(self._lsn)

    def descriptions(self, before: int) -> list[bytes]:
        """Return the latest Relation and Type messages of the first ``before`` units, which a new connection repeats."""
        described = {
            payload[:5]: payload
            for _, unit in self.units[:before]
            for payload in unit
            if payload[:1] in (b"R", b"Y")
        }
        return list(described.values())

    def _with_chunks(self, slices: list[Slice]) -> list[Slice]:
        """Mark each transaction that is a chunk of a snapshot, as the reader of a snapshot does."""
        headers: dict[Transaction, Transaction] = {}
        for index, part in enumerate(slices):
            header = part.transaction
            if header is None or header.commit_lsn not in self.chunks:
                continue
            known = headers.get(header)
            if known is None:
                known = headers[header] = replace(header, snapshot=self.chunks[header.commit_lsn])
            changes = []
            for change in part.changes:
                assert isinstance(change, RowChange)
                changes.append(row_change(known, change.ordinal, change.layout, change.message))
            slices[index] = replace(part, transaction=known, changes=changes)
        return slices

    def _connection(self, after: LSN) -> tuple[Decoder, Assembler]:
        return Decoder(), Assembler(
            Types(self.types),
            binary=self.binary,
            resume=ReplayFilter(after),
            begins=LSN(0),
            deliver_prepared=True,
        )

    def _take_descriptions(self) -> list[bytes]:
        descriptions, self._pending_descriptions = self._pending_descriptions, []
        return descriptions

    def _append(self, lsn: int, unit: list[bytes]) -> LSN:
        self._lsn = lsn
        self.ends.append(LSN(lsn))
        self.units.append((LSN(lsn), unit))
        for listener in self.listeners:
            listener()
        return self.ends[-1]


def _slices(
    decoder: Decoder, assembler: Assembler, units: Iterable[tuple[LSN, list[bytes]]], at_once: int | None
) -> list[Slice]:
    payloads = [payload for _, unit in units for payload in unit]
    step = at_once or max(len(payloads), 1)
    slices: list[Slice] = []
    for start in range(0, len(payloads), step):
        slices += assembler.feed([decoder.decode(payload) for payload in payloads[start : start + step]])
    return slices
