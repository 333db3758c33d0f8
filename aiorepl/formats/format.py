"""The base of all formats: changes in, events out, with events for the boundaries of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from aiorepl.formats.pieces import Piece
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation
from aiorepl.position import Position
from aiorepl.transactions.changes import Change, Message, Truncate
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction, to_datetime

_CYCLE: Final = 146_097 * 86_400_000_000  # microseconds in 400 years
# A larger event is written by itself, because joining it with others would copy it.
_LARGE_EVENT: Final = 1024 * 1024
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_DECISIONS: Final = (m.CommitPrepared, m.RollbackPrepared)


class Format:
    """Writes events. Override ``event``, and ``begin`` and ``end`` if there are boundaries.

    A format is found by its name among the entry points of the group ``aiorepl.formats``. Its options are the keyword
    arguments of its class. Sinks that store each event by itself use ``aiorepl.formats.events.Events``, which makes these
    calls for a change::

        for part in form.split(change):
            bound = form.to(destination)
            await bound.prepare(part)  # the only call that may do I/O
            bound.key(part), bound.event(part), bound.headers(part)

    :param boundaries: write events for the begin and the end of a transaction too.
    """

    content_type: str = "application/json"
    """The media type of an event."""

    is_text: bool = True
    """Whether events can be lines of a file: text without line ends that needs neither ``prepare`` nor ``to``."""

    text_only: bool = False
    """Whether every value is PostgreSQL's text, so that ``values = text`` changes nothing."""

    supports_prepared: bool = False
    """Whether the format has events for PREPARE and for the decision, so that a transaction may be delivered at PREPARE."""

    has_resync: bool = False
    """Whether the format has an event for a ``Resync``."""

    @classmethod
    def defaults(cls, position: Position) -> dict[str, Any]:
        """Return defaults of the options that name the source. Options that the user sets replace them."""
        return {}

    def __init__(self, *, boundaries: bool = False) -> None:
        self.boundaries = boundaries

    def events(self, parts: Iterable[Slice]) -> Iterator[bytes]:
        """Yield the events of consecutive slices, in order, without line ends.

        :raises DataError: the bytes of a column do not match its type.
        """
        for part in parts:
            if (begin := self._begin_event(part)) is not None:
                yield begin
            yield from map(self.event, self._changes(part))
            if (end := self._end_event(part)) is not None:
                yield end

    def lines(self, parts: Iterable[Slice]) -> bytes | bytearray:
        """Return the events as one text with a line each."""
        return b"".join(self._with_line_ends(parts))

    def pieces(self, parts: Iterable[Slice]) -> Iterable[Piece]:
        """Return the text of ``lines`` in pieces, so that a sink that writes files does not copy a large row.

        The pieces can be iterated over more than once. They are valid until the sink's call returns.
        """
        texts = self._with_line_ends(parts)
        return texts if any(len(text) > _LARGE_EVENT for text in texts) else (b"".join(texts),)

    def _with_line_ends(self, parts: Iterable[Slice]) -> list[bytes]:
        return [text for event in self.events(parts) for text in (event, b"\n")]

    def split(self, change: Change) -> tuple[Change, ...]:
        """Split a change into changes with one event each: usually itself, or none if the format has no event for it."""
        return (change,)

    def to(self, destination: str) -> Format:
        """Return the format of the events for a topic, subject or stream: itself, unless the bytes depend on the destination."""
        return self

    async def prepare(self, change: Change) -> None:
        """Do the I/O that ``event``, ``key`` and ``headers`` need for a change that ``split`` returned, such as registering a schema.

        Sinks call it before ``event`` for every change, so return at once if nothing is new. The other methods do no I/O.

        :raises TransientError: the same call may succeed later.
        :raises PermanentError: the change has no event, for example because the registry refuses its schema.
        """

    def event(self, change: Change) -> bytes:
        """Return the event of a change that ``split`` returned.

        :raises DataError: the bytes of a column do not match its type.
        """
        raise NotImplementedError(f"{type(self).__name__} must define event")

    def key(self, change: Change) -> bytes | None:
        """Return the key of a change's event, for targets with message keys; ``None`` without a key."""
        return None

    def headers(self, change: Change) -> Mapping[str, str]:
        """Return the headers of a change's event, for targets that have headers."""
        return NO_HEADERS

    def _begin_event(self, part: Slice) -> bytes | None:
        transaction = part.transaction
        if not self.boundaries or transaction is None or not part.first or is_empty(part) or decides(part):
            return None
        return self.begin(part, transaction)

    def _end_event(self, part: Slice) -> bytes | None:
        transaction = part.transaction
        if not self.boundaries or transaction is None or not part.last or is_empty(part):
            return None
        return self.end(part, transaction)

    def _changes(self, part: Slice) -> Iterable[Change]:
        if type(self).split is Format.split:
            return part.changes
        return chain.from_iterable(map(self.split, part.changes))

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the event for the begin of a transaction."""
        raise NotImplementedError(f"{type(self).__name__} must define begin")

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the event for a commit or, if ``part.two_phase`` is set, for a PREPARE or its decision."""
        raise NotImplementedError(f"{type(self).__name__} must define end")


def by_table(change: Truncate) -> tuple[Truncate, ...]:
    """Split a truncate into one truncate per table."""
    if len(change.relations) == 1:
        return (change,)
    return tuple(
        Truncate(change.transaction, change.ordinal, change.message._replace(relations=(relation,)))
        for relation in change.relations
    )


def only_table(change: Truncate) -> Relation:
    """Return the table of a truncate that ``by_table`` returned.

    :raises ValueError: the truncate has several tables; all but one would be lost.
    """
    if len(change.relations) != 1:
        raise ValueError("a truncate of several tables has one event per table: pass it through split first")
    return change.relations[0]


def event_id(change: Change) -> str:
    """Return the permanent id of an event: ``"<commit LSN>-<ordinal>"``, the same after every restart and for every sink.

    It is unique within a slot. A schema change has the ordinal of the row after it: ``"<commit LSN>-<ordinal>-schema"``. A
    message between transactions has ``"<LSN>-message"``, with the LSN of its end, at which a commit record may begin. A
    transaction that is delivered at PREPARE has the LSN of the PREPARE. A change of a publication has
    ``"<LSN>-<ordinal>-publication"``, with the LSN at which it was noticed. A ``Resync`` has ``"<LSN>-resync"``.
    """
    if change.transaction is not None:
        identity = f"{change.transaction.commit_lsn}-{change.ordinal}"
        return f"{identity}-schema" if isinstance(change, SchemaChange) else identity
    if isinstance(change, Message):
        return f"{change.lsn}-message"
    if isinstance(change, PublicationChange):
        return f"{change.lsn}-{change.ordinal}-publication"
    if isinstance(change, Resync):
        return f"{change.lsn}-resync"
    raise TypeError("a row change outside a transaction")


def commit_lsn(change: Change) -> LSN:
    """Return the LSN with which ``event_id`` begins."""
    if change.transaction is not None:
        return change.transaction.commit_lsn
    if isinstance(change, (Message, PublicationChange, Resync)):
        return change.lsn
    raise TypeError("a row change outside a transaction")


def iso_time(timestamp: int) -> str:
    """Format microseconds since 2000-01-01 UTC as ISO 8601, with six decimals; years without four digits get a sign."""
    try:
        return f"{to_datetime(timestamp).isoformat(timespec='microseconds')[:26]}Z"
    except OverflowError:
        # The Gregorian calendar repeats every 400 years.
        cycles, within = divmod(timestamp, _CYCLE)
        moment = to_datetime(within)
        return f"{moment.year + 400 * cycles:+05d}{moment.isoformat(timespec='microseconds')[4:26]}Z"


def is_empty(part: Slice) -> bool:
    """Whether the slice is a whole transaction without changes.

    Some servers omit empty transactions, and batching may drop them, so they get no boundary events. A chunk of a snapshot is
    always delivered, because it may complete its table.
    """
    if part.changes or not (part.first and part.last) or part.two_phase is not None:
        return False
    return part.transaction is None or part.transaction.snapshot is None


def decides(part: Slice) -> bool:
    """Whether the slice is the decision on a transaction whose changes were delivered at PREPARE."""
    if part.transaction is None or not part.transaction.prepared:
        return False
    return isinstance(part.two_phase, _DECISIONS)
