"""The base of all formats: changes in, events out, with events for the boundaries of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation
from aiorepl.transactions.changes import Change, Message, Truncate
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction, to_datetime

_CYCLE: Final = 146_097 * 86_400_000_000  # microseconds in 400 years
_DECISIONS: Final = (m.CommitPrepared, m.RollbackPrepared)


class Format:
    """Writes events. Override ``event``, and ``begin`` and ``end`` if there are boundaries.

    If events get their own keys, topics or headers, pass each change through ``split`` first::

        for change in batch.changes:
            for part in form.split(change):
                send(routing(part), form.event(part))

    :param boundaries: write events for the begin and the end of a transaction too.
    """

    content_type: str = "application/json"
    """The media type of an event."""

    supports_prepared: bool = False
    """Whether it has events for PREPARE and its decision, so that a transaction may be delivered at PREPARE."""

    def __init__(self, *, boundaries: bool = False) -> None:
        self.boundaries = boundaries

    def events(self, parts: Iterable[Slice]) -> Iterator[bytes]:
        """Yield the events of consecutive slices, in order, without line ends.

        :raises DataError: the bytes of a column do not match its type.
        """
        for part in parts:
            if (begin := self._before(part)) is not None:
                yield begin
            yield from map(self.event, self._changes(part))
            if (end := self._behind(part)) is not None:
                yield end

    def lines(self, parts: Iterable[Slice]) -> bytes | bytearray:
        """Return the events as one text with a line each."""
        return b"".join([event + b"\n" for event in self.events(parts)])

    def split(self, change: Change) -> tuple[Change, ...]:
        """Split a change into changes with one event each: usually itself, or none if the format has no event for it."""
        return (change,)

    def event(self, change: Change) -> bytes:
        """One change as an event; one of those that ``split`` gives.

        :raises DataError: when a column's bytes are not what its type says.
        """
        raise NotImplementedError(f"{type(self).__name__} must define event")

    def key(self, change: Change) -> bytes | None:
        """The key of a change's event, for those that keep it beside the event; ``None`` where there is none."""
        return None

    def _before(self, part: Slice) -> bytes | None:
        transaction = part.transaction
        if not self.boundaries or transaction is None or not part.first or is_empty(part) or decides(part):
            return None
        return self.begin(part, transaction)

    def _behind(self, part: Slice) -> bytes | None:
        transaction = part.transaction
        if not self.boundaries or transaction is None or not part.last or is_empty(part):
            return None
        return self.end(part, transaction)

    def _changes(self, part: Slice) -> Iterable[Change]:
        if type(self).split is Format.split:
            return part.changes
        return chain.from_iterable(map(self.split, part.changes))

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """The event where a transaction begins."""
        raise NotImplementedError(f"{type(self).__name__} must define begin")

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """The event where it has committed, or where it was prepared or decided: ``part.two_phase`` tells."""
        raise NotImplementedError(f"{type(self).__name__} must define end")


def by_table(change: Truncate) -> tuple[Truncate, ...]:
    """A truncate of each of its tables alone."""
    if len(change.relations) == 1:
        return (change,)
    return tuple(
        Truncate(change.transaction, change.ordinal, change.message._replace(relations=(relation,)))
        for relation in change.relations
    )


def only_table(change: Truncate) -> Relation:
    """The table of one that ``by_table`` gave.

    :raises ValueError: for several, of which all but one would be lost.
    """
    if len(change.relations) != 1:
        raise ValueError("a truncate of several tables has an event for each: take it through split")
    return change.relations[0]


def event_id(change: Change) -> str:
    """What names an event for good: ``"<commit LSN>-<ordinal>"``, the same after every restart and on every route.

    Unique within a slot. A schema change is named after the row behind it, ``"<commit LSN>-<ordinal>-schema"``. A message
    between transactions is ``"<LSN>-message"``: that LSN is where it ends, and a commit record may begin there. A transaction
    that is delivered when it is prepared has the LSN of the PREPARE.
    """
    if change.transaction is not None:
        identity = f"{change.transaction.commit_lsn}-{change.ordinal}"
        return f"{identity}-schema" if isinstance(change, SchemaChange) else identity
    if isinstance(change, Message):
        return f"{change.lsn}-message"
    raise TypeError("a row outside of a transaction")


def commit_lsn(change: Change) -> LSN:
    """The LSN that ``event_id`` begins with."""
    if change.transaction is not None:
        return change.transaction.commit_lsn
    if isinstance(change, Message):
        return change.lsn
    raise TypeError("a row outside of a transaction")


def iso_time(timestamp: int) -> str:
    """Microseconds since 2000-01-01 UTC as ISO 8601, always with six digits; years that have not four with a sign."""
    try:
        return f"{to_datetime(timestamp).isoformat(timespec='microseconds')[:26]}Z"
    except OverflowError:
        # The Gregorian calendar repeats itself every 400 years.
        cycles, place = divmod(timestamp, _CYCLE)
        moment = to_datetime(place)
        return f"{moment.year + 400 * cycles:+05d}{moment.isoformat(timespec='microseconds')[4:26]}Z"


def is_empty(part: Slice) -> bool:
    """Whether the slice is a whole transaction without changes. Some servers send such, others leave them out, and
    sinks are given them or not as it happens to batch, so they have no boundaries either.
    """
    return part.first and part.last and part.two_phase is None and not part.changes


def decides(part: Slice) -> bool:
    """Whether the slice tells how a transaction ended whose changes were delivered when it was prepared."""
    if part.transaction is None or not part.transaction.prepared:
        return False
    return isinstance(part.two_phase, _DECISIONS)
