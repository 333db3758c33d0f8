"""The chunk ledger: the chunks of a slot's snapshots, and the LSN of each one's transaction. Pure.

The chunks of an initial snapshot have LSNs below the slot's consistent point, which the plan determines. So the plan is durable
before the first chunk is delivered, and the durable positions of the consumers then tell which chunks are done.

If the exported snapshot is lost, or the process ends, the chunks that are left lose these LSNs (``hand_over``). They are read
while the stream runs, like the chunks of requested tables, and the LSN of each is in the ledger before the chunk is delivered. A
chunk is done once the durable position of every consumer has reached the end of its transaction.

The file may lack the last tables that were delivered as one chunk each (``TableProgress.together``). A journal has recorded which
readings of tables are complete, so these tables are not read again after a crash (``ChunkLedger.without_complete``). Without a
journal, they are delivered again. That changes nothing for sinks that replace rows by their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Any, Final, Literal, get_args

import orjson

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan
from aiorepl.storage.checked_json import (
    boolean,
    checksum,
    integer,
    lsn,
    seal,
    text,
    unseal,
)

Status = Literal["reading", "failed"]
"""A failed table is not read again until it is requested."""

_STATUSES: Final[tuple[str, ...]] = get_args(Status)
_UINT32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class InitialRange:
    """The positions of an initial snapshot, which no transaction of the stream has.

    :param base: the position before the first chunk.
    :param consistent_point: where the stream begins.
    :param truncates: whether the snapshot begins with a truncate of all tables, which replaces all earlier rows.
    """

    base: LSN
    consistent_point: LSN
    truncates: bool = False

    @property
    def start(self) -> LSN:
        """The position before the first transaction: the truncate, or the first chunk."""
        return LSN(self.base - 1) if self.truncates else self.base

    def __contains__(self, position: LSN) -> bool:
        """Whether a consumer at ``position`` lacks only chunks of the initial snapshot, and nothing from before the snapshot."""
        return (self.truncates or self.start <= position) and position < self.consistent_point


@dataclass(frozen=True, slots=True)
class TableProgress:
    """A table that is read while the stream runs.

    :param id: identifies this reading of the table: a table can be requested again while it is being read.
    :param where: a condition that selects the rows; ``None``: all.
    :param plan: the chunks of the table; ``None`` until they are planned.
    :param done: the chunks that are durable, by their numbers in the table, from 1.
    :param delivered: the LSN of each chunk that was delivered and is not known to be durable, by number.
    :param error: why a failed table could not be read.
    :param replaces: whether a truncate precedes its rows, because the sinks have rows that the table no longer has.
    """

    id: int
    oid: int
    schema: str
    name: str
    where: str | None = None
    plan: TablePlan | None = None
    done: frozenset[int] = frozenset()
    delivered: Mapping[int, LSN] | None = None
    status: Status = "reading"
    error: str | None = None
    replaces: bool = False
    # The cached result of ``encoded``, so that a write of the ledger encodes only the tables that changed.
    _encoded: orjson.Fragment | None = field(default=None, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def encoded(self) -> orjson.Fragment:
        """The JSON of the table in the ledger's file."""
        if self._encoded is None:
            object.__setattr__(self, "_encoded", orjson.Fragment(orjson.dumps(_dump_table(self))))
            assert self._encoded is not None
        return self._encoded

    @property
    def together(self) -> bool:
        """Whether all rows are delivered together, in one chunk, so that the chunk's record in a journal says that the table is
        complete.
        """
        return self.where is None and (self.plan is None or len(self.plan.ranges) == 1)

    @property
    def parts(self) -> list[int]:
        """The numbers of the chunks that are neither durable nor delivered, in order; to be read next."""
        if self.plan is None:
            return []
        known = self.done | (self.delivered or {}).keys()
        return [part for part in range(1, len(self.plan.ranges) + 1) if part not in known]

    @property
    def left(self) -> int:
        """The number of chunks that are neither durable nor delivered."""
        return 0 if self.plan is None else len(self.plan.ranges) - len(self.done) - len(self.delivered or ())

    @property
    def complete(self) -> bool:
        """Whether all chunks are durable."""
        # A plan has at least one chunk.
        return bool(self.done) and self.plan is not None and len(self.done) == len(self.plan.ranges)

    def planned(self, plan: TablePlan) -> TableProgress:
        """Begin with these chunks; chunks that were delivered before are read again."""
        return replace(self, plan=plan, done=frozenset(), delivered=None, status="reading", error=None)

    def with_chunk(self, part: int, commit_lsn: LSN) -> TableProgress:
        """Record that a chunk is going to be delivered with this LSN."""
        return replace(self, delivered={**(self.delivered or {}), part: commit_lsn})

    def with_sweep(self) -> TableProgress:
        """Record that rows may have escaped the ranges: a sweep, one more chunk, completes the table (``window_reader``)."""
        assert self.plan is not None
        return replace(self, plan=self.plan.with_sweep())

    def failed(self, error: str) -> TableProgress:
        """Record that the table cannot be read."""
        return replace(self, status="failed", error=error)

    def durable(self, position: LSN) -> TableProgress:
        """Record that every consumer has everything up to ``position``."""
        delivered = self.delivered or {}
        done = {part for part, commit_lsn in delivered.items() if commit_lsn < position}
        if not done:
            return self
        left = {part: commit_lsn for part, commit_lsn in delivered.items() if part not in done}
        return replace(self, done=self.done | done, delivered=left or None)

    def rewound(self, position: LSN) -> TableProgress:
        """Record that a consumer has nothing after ``position``: later chunks are read again."""
        left = {
            part: commit_lsn for part, commit_lsn in (self.delivered or {}).items() if commit_lsn < position
        }
        return replace(self, delivered=left or None)


TableChange = Callable[[TableProgress], TableProgress]
"""A change of a table's entry in the ledger."""


@dataclass(frozen=True, slots=True)
class ChunkLedger:
    """The snapshots of one slot.

    :param source: the slot and its cluster, at LSN 0.
    :param initial: the positions of the initial snapshot; ``None`` if there was none.
    :param plan: the chunks of the initial snapshot whose LSNs are in its range; empty once it was handed over.
    :param tables: the tables that are read while the stream runs, or that failed, in order.
    :param durable_lsn: without a journal, how far every consumer was durable when the ledger was written.
    :param last_id: the id of the last table that was added.
    :param signal_lsn: the end of the last signal that was carried out; the stream may repeat it after a restart.
    :param paused: whether reading is paused until a user resumes it.
    :param cancelled: the oids of tables whose reading was cancelled, so that consumers may lack rows of them.
    :param name: distinguishes this ledger from earlier ledgers of the slot, whose tables may have the same ids.
    """

    source: Position
    initial: InitialRange | None = None
    plan: SnapshotPlan = field(default_factory=lambda: SnapshotPlan(()))
    tables: tuple[TableProgress, ...] = ()
    durable_lsn: LSN = ZERO
    last_id: int = 0
    signal_lsn: LSN = ZERO
    paused: bool = False
    cancelled: frozenset[int] = frozenset()
    name: str = field(default_factory=partial(token_hex, 6))

    def stream_position(self, position: LSN) -> LSN:
        """Return a consumer's position in the slot's stream: its beginning for a consumer in the initial snapshot."""
        if self.initial is not None and position in self.initial:
            return self.initial.consistent_point
        return position

    def durable_position(self, slot_lsn: LSN) -> LSN:
        """Return the position up to which a consumer that stores no position is durable.

        :param slot_lsn: the slot's position; all data before it is durable.
        """
        if self.initial is None or slot_lsn > self.initial.consistent_point:
            return slot_lsn
        return max(self.initial.start, self.durable_lsn)

    def chunks_done(self, position: LSN) -> int:
        """Return how many chunks of the initial snapshot are done if every consumer is at ``position`` or after it."""
        if self.initial is None or position >= self.initial.consistent_point:
            return len(self.plan)
        return min(max(position - self.initial.base, 0), len(self.plan))

    def complete(self, position: LSN) -> bool:
        """Whether no chunk has to be read any more, if every consumer is at ``position`` or after it."""
        advanced = self.durable(position)
        return self.chunks_done(position) == len(self.plan) and not advanced.unfinished

    @property
    def unfinished(self) -> list[TableProgress]:
        """The tables to be read while the stream runs."""
        return list(self.each_unfinished())

    def each_unfinished(self) -> Iterator[TableProgress]:
        """Iterate over the tables to be read while the stream runs."""
        return (table for table in self.tables if table.status == "reading" and not table.complete)

    def pending(self, durable: LSN) -> frozenset[int]:
        """Return the oids of the tables whose snapshots continue, if all consumers have everything up to ``durable``."""
        failed = {table.oid for table in self.tables if table.status == "failed"}
        planned = self.plan.tables if self.chunks_done(durable) < len(self.plan) else ()
        return frozenset(
            {table.oid for table in self.unfinished} | ({table.oid for table in planned} - failed)
        )

    @property
    def _settled(self) -> set[int]:
        """The oids of tables without needed chunks in the initial snapshot: their rows are all read again, or they have failed."""
        return {table.oid for table in self.tables if table.where is None}

    def hand_over(self, position: LSN, delivered: int = 0) -> ChunkLedger:
        """Leave the rest of the initial snapshot to be read while the stream runs.

        Write the result before anything of the stream is delivered: from then on positions say nothing about these chunks.

        :param position: every consumer is at or after this position.
        :param delivered: the chunks before this number were delivered; they may not be durable yet.
        """
        done, settled, number = self.chunks_done(position), self._settled, self.last_id
        left: dict[int, TableProgress] = {}
        for chunk in self.plan.chunks(done):
            plan = chunk.table
            if plan.oid in settled:
                continue
            if plan.oid not in left:
                number += 1
                before = frozenset(range(1, chunk.part))
                left[plan.oid] = TableProgress(
                    number, plan.oid, plan.schema, plan.name, plan=plan, done=before
                )
            if chunk.number < delivered and self.initial is not None:
                table = left[plan.oid]
                left[plan.oid] = table.with_chunk(chunk.part, LSN(self.initial.base + chunk.number))
        kept = (table for table in self.tables if table.oid not in left or table.status != "failed")
        return replace(self, plan=SnapshotPlan(()), tables=(*kept, *left.values()), last_id=number)

    def with_table(self, oid: int, schema: str, name: str, where: str | None = None) -> ChunkLedger:
        """Add a table that is to be read; it is the last of ``tables``. A failed one of the same oid is replaced."""
        return self.with_tables([(oid, schema, name)], where)

    def with_tables(
        self, tables: Sequence[tuple[int, str, str]], where: str | None = None, *, replaces: bool = False
    ) -> ChunkLedger:
        """Add tables that are to be read, by oid, schema and name; failed ones of the same oid are replaced."""
        oids = {oid for oid, _, _ in tables}
        kept = [table for table in self.tables if table.oid not in oids or table.status != "failed"]
        new = [
            TableProgress(number, *table, where, replaces=replaces)
            for number, table in enumerate(tables, start=self.last_id + 1)
        ]
        return replace(self, tables=(*kept, *new), last_id=self.last_id + len(new))

    def table(self, number: int) -> TableProgress | None:
        """Return the table with this id."""
        return next((table for table in self.tables if table.id == number), None)

    def reading(self, table: TableProgress) -> str:
        """Return the identity of a reading, for the headers of its chunks and for the journal."""
        return f"{self.name}-{table.id}"

    def without_complete(self, readings: Collection[str]) -> ChunkLedger:
        """Forget the tables that a journal has in full, and never use their ids again, also if this ledger is an old copy.

        :param readings: the complete readings in the journal.
        """
        tables = tuple(table for table in self.tables if self.reading(table) not in readings)
        named = (reading.rpartition("-") for reading in readings)
        last_id = max((int(number) for name, _, number in named if name == self.name), default=0)
        if len(tables) == len(self.tables) and last_id <= self.last_id:
            return self
        return replace(self, tables=tables, last_id=max(self.last_id, last_id))

    def with_progress(self, table: TableProgress) -> ChunkLedger:
        """Replace the table with the same id."""
        if table == self.table(table.id):
            return self
        return replace(self, tables=tuple(table if each.id == table.id else each for each in self.tables))

    def without_cancelled(self, table: TableProgress) -> ChunkLedger:
        """Forget a table: its reading was cancelled."""
        return replace(self.without(table), cancelled=self.cancelled | {table.oid})

    def without(self, table: TableProgress) -> ChunkLedger:
        """Forget a table."""
        return replace(self, tables=tuple(each for each in self.tables if each.id != table.id))

    def left_out(self, plan: TablePlan, error: str | None) -> ChunkLedger:
        """Record that a table of the initial snapshot could not be read.

        :param error: why the table could not be read; ``None`` if the table is read again while the stream runs.
        """
        if error is None and plan.oid in self._settled:
            return self
        ledger = self.with_table(plan.oid, plan.schema, plan.name)
        if error is None:
            return ledger
        return ledger.with_progress(ledger.tables[-1].failed(error))

    def durable(self, position: LSN) -> ChunkLedger:
        """Record that every consumer has everything up to ``position``, and forget complete tables."""
        return self._each(lambda table: table.durable(position))

    def rewound(self, position: LSN) -> ChunkLedger:
        """Record that a consumer has nothing after ``position``: later chunks are read again."""
        return self._each(lambda table: table.rewound(position))

    def _each(self, change: Callable[[TableProgress], TableProgress]) -> ChunkLedger:
        changed = (table if table.delivered is None else change(table) for table in self.tables)
        tables = tuple(table for table in changed if not table.complete)
        return self if tables == self.tables else replace(self, tables=tables)


def dump(ledger: ChunkLedger) -> bytes:
    """Make the bytes of the ledger's file. The bounds of key ranges are row data."""
    initial = ledger.initial
    return seal(
        {
            "source": ledger.source.to_json(),
            "initial": None
            if initial is None
            else {
                "base": str(initial.base),
                "consistent_point": str(initial.consistent_point),
                "truncates": initial.truncates,
            },
            "plan": ledger.plan.to_json(),
            "tables": [table.encoded for table in ledger.tables],
            "durable": str(ledger.durable_lsn),
            "last_id": ledger.last_id,
            "signal": str(ledger.signal_lsn),
            "paused": ledger.paused,
            "cancelled": sorted(ledger.cancelled),
            "name": ledger.name,
        }
    )


def load(data: bytes, location: str) -> ChunkLedger:
    """Parse the output of ``dump``.

    :param location: the file, for errors.
    :raises JournalError: the file is damaged, or has another format.
    """
    return unseal(
        data,
        location,
        _ledger,
        remedy="Delete it, and start with resnapshot=True (--resnapshot): it says which rows are still to be read",
    )


def _ledger(fields: Mapping[str, Any]) -> ChunkLedger:
    initial = fields["initial"]
    return ChunkLedger(
        Position.from_json(fields["source"]),
        None
        if initial is None
        else InitialRange(
            lsn(initial, "base"), lsn(initial, "consistent_point"), boolean(initial, "truncates")
        ),
        SnapshotPlan.from_json(fields["plan"]),
        tuple(map(_load_table, fields["tables"])),
        lsn(fields, "durable"),
        integer(fields, "last_id"),
        lsn(fields, "signal"),
        boolean(fields, "paused"),
        # Ledgers of earlier versions have no cancelled tables.
        frozenset(map(int, fields.get("cancelled", ()))),
        # Earlier versions have none. The file may stay as it is until a table is complete, so each start must find the same name.
        name=text(fields, "name") if "name" in fields else f"{checksum(orjson.dumps(fields)):08x}",
    )


def _dump_table(table: TableProgress) -> dict[str, Any]:
    return {
        "id": table.id,
        "oid": table.oid,
        "schema": table.schema,
        "table": table.name,
        "where": table.where,
        "plan": None if table.plan is None else SnapshotPlan((table.plan,)).to_json(),
        "done": _runs(table.done),
        "delivered": [[part, str(commit_lsn)] for part, commit_lsn in (table.delivered or {}).items()],
        "status": table.status,
        "error": table.error,
        "replaces": table.replaces,
    }


def _load_table(fields: Mapping[str, Any]) -> TableProgress:
    plan = None if fields["plan"] is None else SnapshotPlan.from_json(fields["plan"]).tables[0]
    if fields["status"] not in _STATUSES:
        raise ValueError("the status of a table is unknown")
    delivered = {int(part): LSN.parse(commit_lsn) for part, commit_lsn in fields["delivered"]}
    return TableProgress(
        integer(fields, "id"),
        integer(fields, "oid", _UINT32),
        text(fields, "schema"),
        text(fields, "table"),
        None if fields["where"] is None else text(fields, "where"),
        plan,
        frozenset(part for first, end in fields["done"] for part in range(first, end)),
        delivered or None,
        fields["status"],
        None if fields["error"] is None else text(fields, "error"),
        # Earlier versions have no such tables.
        "replaces" in fields and boolean(fields, "replaces"),
    )


def _runs(numbers: frozenset[int]) -> list[list[int]]:
    """Return numbers as ranges, each with its first number and the one after its last."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return runs


def initial_ledger(
    source: Position,
    plan: SnapshotPlan,
    consistent_point: LSN,
    *,
    previous: LSN = ZERO,
    truncates: bool = False,
) -> ChunkLedger:
    """Make the ledger of an initial snapshot.

    :param source: the slot and its cluster.
    :param previous: the end of the journal, or the position of a sink; 0 if they are empty.
    :param truncates: whether the snapshot begins with a truncate of all tables.
    :raises ConfigurationError: there is no room for its positions after ``previous``.
    """
    initial = InitialRange(plan.base(consistent_point), consistent_point, truncates)
    if initial.start <= previous:
        raise ConfigurationError(
            f"an initial snapshot of {len(plan)} chunks does not fit between {previous}, where the data ends that is there, "
            f"and {consistent_point}, where the slot begins: set a larger chunk_bytes, or first move the server's WAL "
            "(SELECT pg_switch_wal())"
        )
    return ChunkLedger(source.at(ZERO), initial, plan)
