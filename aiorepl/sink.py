"""The contract between aiorepl and a sink.

A sink writes batches of committed changes to a target. The engine takes care of order, batching, retries, backpressure,
confirming the slot, and cancellation. The engine calls a sink as follows, and makes no two calls at the same time::

    position = await sink.open(context)     # first; again after an error with rewind=True
    await sink.write(batch)                 # any number of times
    await sink.flush()                      # periodically, and before an orderly close
    await sink.close()                      # once, also after a failure

**Guarantees.** When ``write`` returns, the batch is *accepted*: it may still be in the sink's memory. When ``flush``
returns, everything accepted so far is *durable*: it survives the loss of this process. Only then does the engine confirm
the slot (or move the sink's cursor in a journal), so a sink that returns from ``flush`` too early loses data. If a sink
does not override ``flush``, a batch must be durable when ``write`` returns.

**Order.** Transactions arrive in commit order, and the changes of a transaction in the order in which they were made.
``(transaction.commit_lsn, ordinal)`` increases from change to change. Transactions are never interleaved.

**Beside the stream.** A sink with ``publication_changes`` also gets ``PublicationChange`` objects, between transactions, in batches of
their own with ``transaction`` ``None`` and an ``end_lsn`` that was accepted before. They are delivered again until a flush has succeeded.

**Resync.** A sink with ``takes_resync`` gets a ``Resync`` at the beginning of a temporary slot's stream, and after each lost connection,
because changes are missing there. The ``Resync`` comes in a slice of its own, whose ``transaction`` is ``None``, and the sink loads its
state again. If the last slice of a transaction has not arrived before the ``Resync``, the transaction is void: the rest never comes. LSNs
after a ``Resync`` may be lower than before. A sink with ``takes_resync`` keeps no position.

**Duplicates.** Delivery is at least once. After a failure the engine delivers all unflushed changes again, and possibly the last
flushed changes. The changes have the same identities, but the batches may be cut differently. A ``SchemaChange`` has the identity
of the row change that follows it.

**Exactly once.** A sink gets every change exactly once if it stores ``context.position.at(batch.end_lsn)`` in the same
atomic step as the data, and returns the stored position from ``open``. There is one exception: the first slices of a large
transaction are delivered again if the transaction was not complete. Store the whole position (``to_json``, ``from_json``).
Compute it from the context's position, not from a stored one. Only the context's position follows a promotion of the source
to a new timeline, and it records the last transaction, by which the next start verifies that the server still has the same
stream.

**Whole transactions.** A batch contains whole transactions. The exception is a transaction that exceeds the limits of a
batch or the available memory: it arrives in several batches, and only its last slice has ``slice.last`` set. A sink that
must apply transactions atomically keeps such slices back until the last one arrives. ``batch.end_lsn`` is the end LSN of
the last transaction that is complete with this batch; ``None`` if the batch completes none.

**Empty batches.** Transactions without selected changes, and WAL without transactions, move ``end_lsn`` too. A sink that
returned a position from ``open`` gets batches without changes for them, so that its position keeps up with the slot. Other
sinks do not get them.

**Prepared transactions.** With two-phase commit, a sink gets a transaction when it commits. If this sink and all other
sinks of the pipeline set ``supports_prepared``, it gets the transaction when it is prepared: slices whose transaction has
``prepared`` set, the last one with a ``Prepare`` or ``StreamPrepare`` as its ``two_phase``. Later, perhaps after a restart,
it gets a slice without changes whose ``two_phase`` is the ``CommitPrepared`` or ``RollbackPrepared`` of that ``gid``. Such
a sink must make prepared transactions durable in ``flush`` too: once a PREPARE is confirmed, the server need not send
its rows again.

**Snapshots.** Rows that existed before the stream are changes of the kind ``read``, a kind of insert. They arrive as
transactions whose header has ``snapshot`` set, one for each chunk of a table. The target may have such a row already: replace
it. The last slice of a chunk is delivered even without changes, because it may complete the table (``last_of_table``) or the
snapshot (``last``).

**Unchanged columns.** ``UNCHANGED`` in ``change.new`` is a large (TOASTed) value that PostgreSQL did not send because it
did not change. It is not NULL. Keep the target's value, or document what the sink does instead.

**Errors.** Raise ``TransientError`` if the same call may succeed later; set ``retry_after``, in seconds, if the peer asks
for a delay. Raise ``PermanentError`` if the call can never succeed. Any other exception counts as permanent. After a
``TransientError`` the engine waits with exponential back-off and repeats the call: ``write`` with the same batch, or
``flush``. So a failed call must leave the sink as it was, or writes must be idempotent.

**Rewind.** A sink raises ``TransientError(text, rewind=True)`` from ``write`` or ``flush`` if it has lost accepted data. For
example, a broken connection rolls back the target's open transaction with the slices written so far. The engine then calls
``open`` again with the same context, and delivers everything after the position that ``open`` returns; an unfinished
transaction starts again with its first slice. If the sink keeps no position, the engine delivers everything after the last
flush. The position may be older than data that was already durable, for example after a failover of the target to a standby
that lagged. If the slot or the journal no longer has that data, the sink stops. Other sinks get no duplicates.

**Rejected changes.** A batch that can never succeed stops the sink, unless the user has configured dead letters or skipping for
it. In that case the engine writes the batch again, one transaction at a time, and diverts the transactions that fail. Rows of a
snapshot do not belong together: a chunk that fails is written again in ever smaller slices, and only the rows that fail are
diverted. So a rejected slice must not change the slices before it; a sink that cannot guarantee that sets ``fatal``. A sink that
knows which changes are rejected raises ``PermanentError(text, rejected=changes)``: the target rejects these changes, and has
accepted all others of the batch. The engine identifies them by commit LSN and ordinal; an unknown change stops the sink. A
rejected change must not be partly written. A sink that can accept nothing more, for example because its receiver no longer
exists, sets ``fatal=True``. This stops the sink; otherwise the whole stream would become dead letters.

**Positions and rejected changes.** A sink that returned a position from ``open`` must not move it past a change that it
rejects. With ``on_error="halt"``, the next start would read from that position, and neither deliver nor report the change.
So such a sink rejects the whole batch, without ``rejected``, and leaves data and position unchanged. If it names changes
nevertheless, it must keep its position before the first transaction with a rejected change, and ignore the accepted changes
when they are delivered again. After the rejected changes became dead letters or were skipped, the engine writes a batch
without changes whose ``end_lsn`` moves the position past them.

**Replay.** ``aiorepl dlq replay`` passes dead letters to ``replay``, after later changes were written and while no pipeline
runs. A sink without a position need not override it: the default calls ``write``. A sink that returns a position from
``open`` must override it: ``replay`` writes the changes although they are before the position, and leaves the position
unchanged. Without the override, the dead letters of such a sink cannot be replayed, and are kept. Replay is at least once.

**Concurrency.** The engine makes one call at a time, unless the sink sets ``concurrent`` and the user configures a
concurrency. Then it calls ``write`` several times at once, with batches that share no key (or no table, or no routing key),
so that changes of one key stay in order. All other calls are still made alone.

**Cancellation.** If the pipeline is cancelled, or the shutdown timeout expires, any ``await`` of a call can raise
``CancelledError``. Nothing of an interrupted batch counts as delivered. ``close`` is still called, and is cancelled only
after five more seconds.

**Shutdown.** An orderly shutdown calls ``flush``, then ``close``. After a permanent error, only ``close`` is called.

**Check.** ``aiorepl check`` calls ``check`` and then ``close``, and nothing else.

**Blocking.** A call that blocks the event loop stalls every other sink and the status updates to the server. If the client
library is synchronous, derive from ``SyncSink``: it has the same calls without ``async``, made in worker threads.

A sink must never log row data or put it into exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Any, overload

from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.transactions.changes import Change
from aiorepl.transactions.slices import Slice

RoutingKey = Callable[[Change], tuple[str, ...]]
"""Returns the routing keys of a change: one key, or one for each table of a TRUNCATE."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The argument of a sink's ``open``.

    :param name: the sink's name, unique within its pipeline and the same at every start.
    :param position: identifies the source, and is where the stream begins unless the sink returns its own position.
    :param routing_key: the user's function from a change to its routing key (a partition key, a subject, a header), which
        replaces the sink's default; ``None`` if the user configured none.
    """

    name: str
    position: Position
    routing_key: RoutingKey | None = None

    @property
    def database(self) -> str | None:
        """The name of the source's database; ``None`` if it is unknown."""
        return self.position.database


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why changes became dead letters.

    :param sink: the name of the sink that rejected the changes.
    :param kind: the name of the exception's class.
    :param error: the exception's text, without row data.
    :param stage: ``"write"``; or ``"transform"`` if the transform failed, and the changes are therefore untransformed.
    :param at: the time of the rejection, an aware datetime in UTC.
    """

    sink: str
    kind: str
    error: str
    stage: str
    at: datetime


class _Changes(Sequence[Change]):
    """The changes of several slices."""

    __slots__ = ("_slices",)

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._slices = slices

    def __len__(self) -> int:
        return sum(len(part.changes) for part in self._slices)

    def __iter__(self) -> Iterator[Change]:
        return chain.from_iterable(part.changes for part in self._slices)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or index < 0:
            return list(self)[index]
        for change in islice(self, index, None):
            return change
        raise IndexError("change index out of range")

    def __repr__(self) -> str:
        return f"<{len(self)} changes>"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Consecutive slices of transactions. The module's docstring has the guarantees.

    :param slices: the slices in stream order.
    :param rejection: the reason for the rejection, in a sink that receives dead letters; ``None`` in any other sink.
    """

    slices: Sequence[Slice] = field(repr=False)
    rejection: Rejection | None = None

    @property
    def changes(self) -> Sequence[Change]:
        """All changes, in order: a view, which can be iterated any number of times."""
        return _Changes(self.slices)

    @property
    def end_lsn(self) -> LSN | None:
        """The end LSN of the last transaction that is complete with this batch; ``None`` if it completes none."""
        for part in reversed(self.slices):
            if part.end_lsn is not None:
                return part.end_lsn
        return None

    @property
    def size(self) -> int:
        """The size of the messages in bytes, as it counts against the limits of batches and buffers."""
        return sum(part.size for part in self.slices)

    def transactions(self) -> Iterator[list[Slice]]:
        """Return the slices grouped by transaction; a slice outside any transaction is a group of its own.

        The first and the last group may be part of a transaction that continues in another batch.
        """
        group: list[Slice] = []
        for part in self.slices:
            if group and not _is_same_transaction(group[-1], part):
                yield group
                group = []
            group.append(part)
        if group:
            yield group

    def __len__(self) -> int:
        return len(self.changes)


def _is_same_transaction(part: Slice, following: Slice) -> bool:
    # After a reconnect, the remaining slices of a transaction have a new header object.
    return (
        part.transaction is not None
        and following.transaction is not None
        and part.transaction.commit_lsn == following.transaction.commit_lsn
    )


class Sink:
    """Base class of all sinks. Override ``write``, and the other methods as needed."""

    supports_prepared: bool = False
    """Whether the sink keeps prepared transactions until they are committed or rolled back."""

    concurrent: bool = False
    """Whether ``write`` may be called while other calls of ``write`` are in progress."""

    needs_attributes: bool = False
    """Whether the sink needs the ``attributes`` of the rows' relations. The source then looks up attributes in its catalog, but not every
    relation has them."""

    takes_publication_changes: bool = True
    """Whether the sink can be configured with ``publication_changes``. Their LSNs do not ascend with those of the rows."""

    takes_resync: bool = False
    """Whether the sink loads its state again after a ``Resync``. A temporary slot needs such sinks."""

    flush_seconds: float | None = None
    """How long accepted data may stay unflushed, in seconds, for targets where each flush creates files. The user's batch
    policy for this sink takes precedence. ``None``: use the pipeline's policy."""

    flush_bytes: int | None = None
    """How many bytes to accept before a flush. Precedence as for ``flush_seconds``."""

    waiting_for: str | None = None
    """What a call waits for in the target, such as a lock, and what to do; ``None``: nothing. The pipeline's status shows it."""

    @property
    def durable_on_write(self) -> bool:
        """Whether a batch is durable when ``write`` returns: true unless ``flush`` is overridden."""
        return type(self).flush is Sink.flush

    @property
    def replays(self) -> bool:
        """Whether a sink that keeps a position supports replay: true if ``replay`` is overridden."""
        return type(self).replay is not Sink.replay

    @property
    def checks(self) -> bool:
        """Whether the sink can be checked: true if ``check`` is overridden."""
        return type(self).check is not Sink.check

    async def open(self, context: SinkContext) -> Position | None:
        """Connect to the target and prepare for writing.

        The engine calls this again after an error with ``rewind=True``. Discard everything that was accepted before.

        :returns: the position that the target holds with its data; ``context.position`` if the target holds none yet;
            ``None`` if the sink keeps no position.
        :raises PermanentError: the sink cannot work as configured.
        :raises TransientError: the target is not available now.
        """
        return None

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Find out for ``aiorepl check`` whether ``open`` and ``write`` are likely to succeed, without writing anything.

        Reach the target, log in, and look for what the sink needs there. ``close`` follows, and no other call. The default
        does nothing.

        :param tables: schema and name of each table whose changes the sink is going to receive.
        :raises PermanentError: the sink cannot work; the message says why, and what to do.
        :raises TransientError: the target is not available now.
        """

    async def write(self, batch: Batch) -> None:
        """Accept a batch.

        :raises TransientError: the same batch may succeed later.
        :raises PermanentError: the batch can never succeed.
        """
        raise NotImplementedError(f"{type(self).__name__} must define write")

    async def replay(self, batch: Batch) -> None:
        """Accept a dead letter: changes of one transaction, possibly not all of them.

        :raises TransientError: the same batch may succeed later.
        :raises PermanentError: the changes are rejected again.
        """
        await self.write(batch)

    async def flush(self) -> None:
        """Make everything durable that was accepted. The default does nothing, for sinks whose ``write`` is durable.

        :raises TransientError: another flush may succeed.
        :raises PermanentError: the accepted data cannot be made durable.
        """

    async def close(self) -> None:
        """Release all resources. Also called after a failure, and after an ``open`` that did not complete."""


class SyncSink:
    """Base class of sinks whose calls block. The contract is that of ``Sink``; calls are made in worker threads."""

    supports_prepared: bool = False
    concurrent: bool = False
    needs_attributes: bool = False
    takes_publication_changes: bool = True
    takes_resync: bool = False
    flush_seconds: float | None = None
    flush_bytes: int | None = None
    waiting_for: str | None = None

    @property
    def durable_on_write(self) -> bool:
        """See ``Sink.durable_on_write``."""
        return type(self).flush is SyncSink.flush

    @property
    def replays(self) -> bool:
        """See ``Sink.replays``."""
        return type(self).replay is not SyncSink.replay

    @property
    def checks(self) -> bool:
        """See ``Sink.checks``."""
        return type(self).check is not SyncSink.check

    def open(self, context: SinkContext) -> Position | None:
        """Connect to the target and prepare for writing; see ``Sink.open``."""
        return None

    def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Find out whether the sink is likely to work, without writing anything; see ``Sink.check``."""

    def write(self, batch: Batch) -> None:
        """Accept a batch; see ``Sink.write``."""
        raise NotImplementedError(f"{type(self).__name__} must define write")

    def replay(self, batch: Batch) -> None:
        """Accept a dead letter; see ``Sink.replay``."""
        self.write(batch)

    def flush(self) -> None:
        """Make everything durable that was accepted; see ``Sink.flush``."""

    def close(self) -> None:
        """Release all resources; see ``Sink.close``."""
