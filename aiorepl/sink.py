"""The contract between aiorepl and a sink: read this, write a class, register it, done.

A sink takes batches of committed changes to somewhere else. Everything hard is the engine's: order, batching,
retries, backpressure, acknowledging the slot, cancellation. A sink answers four calls, never two at once::

    position = await sink.open(context)     # before anything else; again if the sink asks to be sent again
    await sink.write(batch)                 # any number of times
    await sink.flush()                      # now and then, and before close
    await sink.close()                      # once, also after a failure

**write** returning means *accepted*: the batch may still sit in the sink's memory. **flush** returning means
*durable*: everything accepted so far would survive the loss of this process. Only then may the engine confirm the
slot, so a sink that reports early loses data. A sink that overrides ``write`` alone is taken at its word that a
batch is durable when ``write`` returns.

**Order.** Batches come in commit order, changes within a transaction in the order they were made, and
``(transaction.commit_lsn, ordinal)`` grows from change to change. Transactions are never interleaved.

**Duplicates.** Delivery is at least once: after a failure, what was not flushed comes again, the same changes with
the same identities, though perhaps cut into other batches. A sink that can keep ``context.position.at(batch.end_lsn)``
*in the same atomic step* as the data returns that position from ``open``, and gets every change exactly once; only of a
large transaction that broke off do its first slices come again. Keep all of it (``to_json``, ``from_json``). Ask the
context's position, not one that was read back: only the former knows the timeline of a standby that is promoted meanwhile,
and the last transaction, by which the next start finds out whether the server still has the same stream. A
``SchemaChange`` has the identity of the row behind it.

**Whole transactions.** A batch holds whole transactions, with one exception: a transaction larger than the batch
limit, or than the memory there is, comes as several batches of slices, of which only the last has ``slice.last``
set. A sink that must be atomic over transactions keeps such slices aside until that one. ``batch.end_lsn`` is the
end of the last whole transaction, ``None`` when the batch completes none.

**Empty batches.** A transaction without changes for us, and WAL without transactions, still move ``end_lsn``. A sink
that returned a position from ``open`` gets them, to keep its position up with what the slot is told; others do not.

**Prepared transactions.** Under two-phase commit a sink sees a transaction when it commits, unless it sets
``supports_prepared``, and every other sink of the pipeline does. Then it is given one when it is prepared: slices whose
transaction is marked ``prepared``, the last with a ``Prepare`` or ``StreamPrepare`` as its ``two_phase``; and later,
perhaps after a restart, a slice without changes whose ``two_phase`` says ``CommitPrepared`` or ``RollbackPrepared`` of
that ``gid``. Durable means more there: once a PREPARE is confirmed the server never sends its rows again.

**Unchanged columns.** ``UNCHANGED`` in ``change.new`` is a large value that the server did not send because it did
not change. It is not NULL. Leave the target's value alone, or say in the sink's documentation what you do instead.

**Raise** ``TransientError`` when the same batch may succeed later (``retry_after`` in seconds if the peer told
you), ``PermanentError`` when it never will; any other exception counts as permanent. After a transient error the
engine waits with growing pauses and calls again: ``write`` with the same batch, or ``flush``. So after an error a
sink must be as it was before the call, or its writes idempotent.

**Sent again.** A sink that has lost what it had accepted, as with its connection the target's open transaction that slices
were written in, raises ``TransientError(text, rewind=True)`` from ``write`` or ``flush``. Then it is opened again, with the
context of the first time, and gets everything behind the position that ``open`` returns: of a transaction that broke off
the first slice again. A sink without a position gets what it had not flushed. That position may lie before what was durable,
as after a failover of the target to a standby that was behind; where the slot or the journal has nothing of that age any
more, the sink stops. Other sinks do not get anything twice.

**Poison.** A batch that will never succeed stops the sink, unless the user has chosen dead letters or skipping for it.
Then the engine writes the batch again, one transaction at a time, and puts aside those that fail by themselves. A sink
that can tell the changes apart raises ``PermanentError(text, refused=changes)``: the target will never accept these, and
has accepted all others of the batch. The engine finds them in the batch by commit LSN and ordinal; an unknown one stops the
sink. A refused change must not be partly written. A sink that can accept nothing more, such as one whose receiver is
gone, sets ``fatal=True`` and stops; otherwise the whole stream would become dead letters.

**Position and poison.** A sink that returned a position from ``open`` must not move it past a change that it refuses. With
``halt`` the next start reads from that position: it would neither deliver the change nor report it. So refuse the whole
batch, without ``refused``, and leave data and position as they were before the call. A sink that names changes all the same
keeps its position before the first transaction with a refused change, and recognises the changes that it has taken when
they come again. Once the refused changes are dead letters, or skipped, the engine writes a batch without changes whose
``end_lsn`` moves the position past them.

**Replay.** ``aiorepl dlq replay`` gives dead letters to ``replay``, after later changes were written and while no pipeline
runs. A sink without a position need not define it: the batch goes to ``write``. A sink that returns a position from ``open``
overrides it: ``replay`` writes the changes although they lie before the position, and leaves the position where it is. If
it does not, its dead letters cannot be replayed, and are kept. A replay is delivered at least once.

**Concurrency.** Calls come one at a time, unless the sink sets ``concurrent`` and the user asks for it. Then ``write``
is called several times at once, with batches that share no key (or no table): order holds where it can be seen. Every
other call still comes alone.

**Cancellation** may strike at any await, when the pipeline stops before its shutdown timeout would let the call finish.
``close`` still comes; a cancellation interrupts it only after five seconds. Nothing of the interrupted batch counts as
delivered.

**Shutdown** is flush, then close. After a permanent error it is close alone.

**Blocking** the event loop stalls every other sink. A sink whose client is synchronous derives from ``SyncSink``: the
same four calls without ``async``, made in worker threads.

A sink never logs or raises the contents of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.transactions.changes import Change
from aiorepl.transactions.transaction import Slice

RoutingKey = Callable[[Change], tuple[str, ...]]
"""Where a change belongs, as the user wants it: one key, or of a truncate one for each table."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is told when it is opened.

    :param name: the sink's name within its pipeline, unique there and the same at every start.
    :param position: the source, and where the stream will begin unless the sink returns a position of its own.
    :param routing_key: the user's choice of a key for each change, instead of the sink's own (a topic's partition key, a
        subject, a header); ``None`` where there is no such choice.
    """

    name: str
    position: Position
    routing_key: RoutingKey | None = None

    @property
    def database(self) -> str | None:
        """The source's database; ``None`` where nobody knows it. System identifier and slot are the position's."""
        return self.position.database


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a batch is a dead letter.

    :param sink: the name of the sink that would not take it.
    :param kind: the error's type.
    :param error: its text, which quotes no row.
    :param stage: ``"write"``, or ``"transform"`` when it did not even get that far: then the changes are untransformed.
    :param at: when, aware, UTC.
    """

    sink: str
    kind: str
    error: str
    stage: str
    at: datetime


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Consecutive slices of transactions; see the module's text for what may be relied on.

    :param rejection: in a sink that takes the dead letters of another, why they are; else ``None``.
    """

    slices: Sequence[Slice] = field(repr=False)
    rejection: Rejection | None = None

    @property
    def changes(self) -> Iterator[Change]:
        """All changes, in order."""
        return chain.from_iterable(part.changes for part in self.slices)

    @property
    def end_lsn(self) -> LSN | None:
        """The end LSN of the last transaction that is complete with this batch, or ``None``."""
        for part in reversed(self.slices):
            if part.end_lsn is not None:
                return part.end_lsn
        return None

    @property
    def size(self) -> int:
        """The bytes of its messages, as the budgets count them."""
        return sum(part.size for part in self.slices)

    def __len__(self) -> int:
        return sum(len(part.changes) for part in self.slices)


class Sink:
    """The base class of every sink. Override ``write``; the rest as the sink needs it."""

    supports_prepared: bool = False
    """Whether it keeps prepared transactions until they are decided."""

    concurrent: bool = False
    """Whether ``write`` may be called again while calls are under way."""

    flush_seconds: float | None = None
    """How long accepted data may stay unflushed, for targets where each flush makes files; the user's choice for this
    sink comes first. ``None``: as in the whole pipeline."""

    flush_bytes: int | None = None
    """How much may be accepted before a flush; as ``flush_seconds``."""

    @property
    def durable_on_write(self) -> bool:
        """Whether a batch is durable when ``write`` returns, since ``flush`` was left as it is."""
        return type(self).flush is Sink.flush

    @property
    def replays(self) -> bool:
        """Whether a sink that keeps a position can be given dead letters again, since ``replay`` was overridden."""
        return type(self).replay is not Sink.replay

    async def open(self, context: SinkContext) -> Position | None:
        """Get ready. Return the position the target holds with its data, the context's where it holds none yet; ``None``
        from a sink that keeps no position.

        Called again after an error with ``rewind``, on the same sink: whatever was left over from before is void.

        :raises PermanentError: when the sink cannot work as configured.
        :raises TransientError: when the target is not there just now.
        """
        return None

    async def write(self, batch: Batch) -> None:
        """Accept a batch.

        :raises TransientError: the same batch may succeed later.
        :raises PermanentError: it never will.
        """
        raise NotImplementedError(f"{type(self).__name__} must define write")

    async def replay(self, batch: Batch) -> None:
        """Accept a dead letter that is written again: changes of one transaction, perhaps not all of them.

        :raises TransientError: the same batch may succeed later.
        :raises PermanentError: it is refused again.
        """
        await self.write(batch)

    async def flush(self) -> None:
        """Make everything accepted durable. The default is for sinks whose ``write`` already did.

        :raises TransientError: flushing again may succeed.
        :raises PermanentError: what was accepted cannot be made durable.
        """

    async def close(self) -> None:
        """Let go of everything. Also called after a failure, and when ``open`` did not finish."""


class SyncSink:
    """A sink whose calls block; see ``Sink``, whose contract it keeps. They run in worker threads."""

    supports_prepared: bool = False
    concurrent: bool = False
    flush_seconds: float | None = None
    flush_bytes: int | None = None

    @property
    def durable_on_write(self) -> bool:
        """As for ``Sink``."""
        return type(self).flush is SyncSink.flush

    @property
    def replays(self) -> bool:
        """As for ``Sink``."""
        return type(self).replay is not SyncSink.replay

    def open(self, context: SinkContext) -> Position | None:
        """Get ready."""
        return None

    def write(self, batch: Batch) -> None:
        """Accept a batch."""
        raise NotImplementedError(f"{type(self).__name__} must define write")

    def replay(self, batch: Batch) -> None:
        """Accept a dead letter that is written again."""
        self.write(batch)

    def flush(self) -> None:
        """Make everything accepted durable."""

    def close(self) -> None:
        """Let go of everything."""
