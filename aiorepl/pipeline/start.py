"""Decides how a pipeline starts: which rows it reads besides the stream, and where its consumers and the stream continue. Pure.

A consumer is the journal; without a journal, each sink is one. A start decides twice, and its consumers are opened in between:

1. Once the slot was found or created, ``choose_rows`` chooses the rows. ``Beginning`` has their ledger, and the position of new consumers.
2. Once the consumers have returned their stored positions, ``plan_start`` decides where each consumer and the stream continue.

A start makes a ``SlotRequest``, a ``PreflightResult``, a ``Beginning`` and a ``Start``, each from the one before. So its steps cannot run in
another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from aiorepl.errors import SlotError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.snapshot.chunks import SnapshotPlan
from aiorepl.snapshot.gap import Gap
from aiorepl.snapshot.ledger.ledger import ChunkLedger, initial_ledger
from aiorepl.source.continuity import Gap as AcceptedGap
from aiorepl.source.continuity import GapPolicy
from aiorepl.source.preflight import PreflightResult

_log = logger("aiorepl.snapshot")


class Rows(Enum):
    """The rows that a start reads besides the stream."""

    EXPORTED = auto()
    """The snapshot that the new slot exported. It comes before the stream."""
    ALL = auto()
    """All tables, while the stream runs: an earlier process ended while it created the slot, or the journal was deleted."""
    REST = auto()
    """The rows that are left in the ledger, while the stream runs. None if there is no ledger."""
    MISSED = auto()
    """None, although the user wants them. The slot existed before, and no ledger tells which rows the consumers have."""


def choose_rows(
    *, exported: bool, wanted: bool, intended: bool | None, known: bool, empty_journal: bool
) -> Rows:
    """Choose the rows that a start reads besides the stream.

    :param exported: whether the slot was created now and has exported a snapshot.
    :param wanted: whether the rows from before the slot are needed: the user wants them, or the slot was lost.
    :param intended: set if an earlier process ended while it created the slot; the value tells whether a truncate precedes the rows.
    :param known: whether there is a ledger.
    :param empty_journal: whether there is a journal, and it is empty.
    """
    if exported:
        return Rows.EXPORTED
    if intended is not None or (wanted and empty_journal and not known):
        return Rows.ALL
    return Rows.MISSED if wanted and not known else Rows.REST


@dataclass(frozen=True, slots=True)
class Beginning:
    """The rows that a start reads besides the stream.

    :param found: the slot, and the server's WAL.
    :param ledger: the chunk ledger; ``None`` if the slot never had a snapshot.
    :param gap: the gap, if its rows are enough for some tables of the exported snapshot.
    """

    found: PreflightResult
    ledger: ChunkLedger | None = None
    rows: Rows = Rows.REST
    gap: Gap | None = None

    @property
    def loads(self) -> bool:
        """Whether this start reads the snapshot that its slot exported."""
        return self.rows is Rows.EXPORTED

    @property
    def position(self) -> Position:
        """The position at which consumers without a position of their own begin."""
        slot, ledger = self.found.position, self.ledger
        if ledger is None or ledger.initial is None or not ledger.plan:
            return slot
        return slot.at(ledger.initial.start)

    @property
    def replaces(self) -> bool:
        """Whether the exported snapshot begins with a truncate: of all tables, or with ``gap`` of the tables that are read as a whole."""
        ledger = self.ledger
        return self.loads and ledger is not None and ledger.initial is not None and ledger.initial.truncates

    def in_stream(self, position: Position) -> Position:
        """Return a consumer's position in the slot's stream: the beginning of the stream for a consumer in the initial snapshot."""
        if self.ledger is None:
            return position
        return replace(position, lsn=self.ledger.stream_position(position.lsn))

    def require_behind(self, holder: str, stored: Position) -> None:
        """Check that a consumer is not ahead of the exported snapshot.

        :raises SlotError: the consumer would skip the snapshot.
        """
        start = self.position.lsn
        if self.loads and self.ledger is not None and self.ledger.plan and stored.lsn > start:
            raise SlotError(
                f"{holder} has a position at {stored.lsn}, ahead of the initial snapshot at {start}, and would skip it: "
                "start again with an empty one"
            )

    def with_checked_gap(self, stored: Iterable[Position | None]) -> Beginning:
        """Return this, but with all tables read as a whole if a consumer may lack rows from before the gap.

        Such a consumer is empty, was restored from a copy, or has followed another server, perhaps this server before it was restored.

        :param stored: the positions of the consumers; ``None`` for a consumer that keeps no position.
        """
        if self.gap is None or self.ledger is None:
            return self
        begin, tables = self.position, self.ledger.plan.tables
        if all(
            position is None
            or (
                (position.timeline, position.history) == (begin.timeline, begin.history)
                and position.lsn < begin.lsn
                and self.gap.covers(position.lsn, self.found.started)
            )
            for position in stored
        ):
            narrowed = sum(table.since is not None for table in tables)
            _log.warning(
                "%d of %d tables are not truncated: only the rows of the gap are read from them",
                *(narrowed, len(tables)),
            )
            return self
        _log.warning(
            "all tables are read as a whole: a sink or the journal may lack rows from before the gap, or have rows that the server does not have"
        )
        whole = SnapshotPlan(tuple(replace(table, since=None) for table in tables))
        return replace(self, ledger=replace(self.ledger, plan=whole), gap=None)


def beginning_with_all(found: PreflightResult, *, truncates: bool) -> Beginning:
    """Begin with all tables, which are read while the stream runs.

    :param truncates: whether a truncate precedes the rows.
    """
    ledger = initial_ledger(found.position, SnapshotPlan(()), found.position.lsn, truncates=truncates)
    return Beginning(found, ledger, Rows.ALL)


def begin_without_export(
    found: PreflightResult,
    known: ChunkLedger | None,
    *,
    wanted: bool,
    intended: bool | None,
    empty_journal: bool,
    has_catalog: bool,
    location: str,
) -> Beginning:
    """Choose the rows of a start whose slot has exported no snapshot; parameters as for ``choose_rows``.

    :param known: the ledger from before this start.
    :param has_catalog: whether the source has tables that can be read.
    :param location: the ledger's location, for messages.
    :raises SlotError: rows are needed, and the source has no tables.
    """
    is_known = known is not None
    rows = choose_rows(
        exported=False, wanted=wanted, intended=intended, known=is_known, empty_journal=empty_journal
    )
    if rows is Rows.ALL:
        if intended is None and not has_catalog:
            raise SlotError(
                f"slot {found.position.slot!r} exists but the journal is empty, and the source has no tables that could be "
                "read: start without a snapshot"
            )
        return beginning_with_all(found, truncates=bool(intended))
    if rows is Rows.REST:
        return Beginning(found, known)
    # Logged once, because from now on there is a ledger.
    _log.warning(
        "slot %s exists, and there is no %s: the rows from before the slot are not read. If an earlier snapshot was not "
        "complete, start with resnapshot=True (--resnapshot), or request its tables",
        found.position.slot,
        location,
    )
    return Beginning(found, ChunkLedger(found.position.at(ZERO)))


@dataclass(frozen=True, slots=True)
class Start:
    """Where the consumers and the stream continue.

    :param beginning: the rows that are read besides the stream.
    :param positions: where each consumer continues; ``None`` for a consumer that keeps no position, and for an empty journal.
    :param durable: the LSN up to which each consumer has everything.
    :param after: the LSN after which the stream is requested.
    :param begin: the LSN that counts as durable until the consumers report.
    :param claims: the names of the consumers whose positions are compared with the stream.
    :param gaps: the gaps that were accepted.
    :param truncates: whether the first transaction that is delivered truncates tables.
    """

    beginning: Beginning
    positions: Mapping[str, Position | None]
    durable: Mapping[str, LSN]
    after: LSN
    begin: LSN
    claims: tuple[str, ...]
    gaps: tuple[AcceptedGap, ...]
    truncates: bool

    @property
    def rereads(self) -> bool:
        """Whether all tables have to be read while the stream runs.

        The ledger does not have them yet; or a consumer is before the truncate, perhaps because it was restored, so it may also lack chunks
        that are recorded as durable.
        """
        rows, ledger = self.beginning.rows, self.beginning.ledger
        return rows is Rows.ALL or (
            self.truncates and rows is not Rows.EXPORTED and ledger is not None and not ledger.plan
        )


def plan_start(
    beginning: Beginning,
    stored: Mapping[str, Position | None],
    gaps: GapPolicy,
    holder: Callable[[str], str] = "sink {}".format,
) -> Start:
    """Decide where the consumers and the stream continue.

    :param stored: the positions of all consumers, by name; ``None`` for a consumer that keeps no position, and for an empty journal.
    :param gaps: rejects gaps, or accepts and logs them.
    :param holder: returns a consumer's name in messages.
    :raises SlotError: the slot does not continue where a consumer is, or a consumer would skip the initial snapshot.
    """
    slot, accepted = beginning.found.position.lsn, len(gaps.accepted)
    beginning = beginning.with_checked_gap(stored.values())
    positions = {name: _resumed(beginning, holder(name), each, gaps) for name, each in stored.items()}
    ledger = beginning.ledger
    unknown = slot if ledger is None else ledger.durable_position(slot)
    durable = {name: unknown if each is None else each.lsn for name, each in positions.items()}
    after = min(slot if each is None else beginning.in_stream(each).lsn for each in positions.values())
    initial = None if ledger is None else ledger.initial
    return Start(
        beginning,
        positions,
        durable,
        after,
        beginning.position.lsn if beginning.loads else after,
        tuple(name for name, each in positions.items() if each is not None and each == stored[name]),
        tuple(gaps.accepted[accepted:]),
        beginning.replaces
        if beginning.loads
        else initial is not None and initial.truncates and min(durable.values()) < initial.base,
    )


def _resumed(beginning: Beginning, holder: str, stored: Position | None, gaps: GapPolicy) -> Position | None:
    """Return the position from which a consumer continues.

    :raises SlotError: as ``plan_start``.
    """
    if stored is None:
        return None
    beginning.require_behind(holder, stored)
    begin = beginning.position
    if beginning.replaces and stored.lsn <= begin.lsn:
        # The snapshot replaces all earlier rows, except those from before a gap. ``with_checked_gap`` has checked that the consumer has these.
        return begin
    found, in_stream = beginning.found, beginning.in_stream(stored)
    resumed = gaps.check(holder, in_stream, found.position, found.wal_end, found.upgrade)
    return stored if resumed == in_stream else resumed
