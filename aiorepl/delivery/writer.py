"""Calls one sink: with retries, concurrently if configured, and with the sink's policy for rejected changes.

If ``on_error`` is ``dead_letter`` or ``skip``, rejected changes are diverted: they become dead letters or are skipped. These
are the changes that the sink has named, or else the transactions that fail when they are written one by one. Everything else
of the batch is written. The batch counts as accepted only then, so each change is in the sink, in its dead letters, or
counted as skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from aiorepl.cancellation import detect_unexpected_cancellation, uninterrupted
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.partitioning import stages
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink
from aiorepl.errors import AioreplError, DataError, PermanentError, SinkError, TransientError, raised
from aiorepl.formats.format import event_id
from aiorepl.loggers import logger
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy
from aiorepl.sink import Batch, Rejection, Sink, SinkContext
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.transactions.changes import Change
from aiorepl.transactions.resync import is_resync
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.function import Transformer, TransformFailed

_log = logger("aiorepl.sink")

T = TypeVar("T")

_CLOSE_SECONDS: Final = 5.0
# After this many failed writes, a failing piece is rejected as a whole and no longer halved, because the sink may accept no row
# at all.
_MOST_FAILURES: Final = 200


class SinkWriter:
    """Writes to an opened sink, and flushes it.

    :param keeps_position: whether the sink stores its position, and so needs to know where each batch ends.
    :param catalog: the catalog's information about the tables.
    """

    def __init__(
        self,
        name: str,
        delivery: ResolvedDelivery,
        statistics: SinkStatistics,
        *,
        keeps_position: bool,
        catalog: TableCatalog | None = None,
    ) -> None:
        self._catalog = TableCatalog() if catalog is None else catalog
        self._name = name
        self._delivery = delivery
        self._sink = delivery.sink
        self._statistics = statistics
        self._keeps_position = keeps_position
        self._dead_letters_lock = asyncio.Lock()
        transform = delivery.transform
        self._transformer = None if transform is None else Transformer(name, transform, delivery.retry)

    async def write(self, batch: Batch) -> None:
        """Transform and write a batch; divert rejected changes if the sink's policy says so.

        :raises AioreplError: the sink failed permanently, and its policy is ``halt`` or does not cover this error.
        """
        if self._transformer is not None:
            try:
                batch = await self._transformer.batch(batch)
            except TransformFailed as failure:
                if self._delivery.on_error == "halt":
                    raise failure.error  # noqa: B904 - it has its own cause
                await self._divert(self._select(batch, failure.rejected), failure.error, "transform")
                batch = failure.batch
        if self._delivery.concurrency == 1:
            await self._write(batch)
            return
        try:
            for stage in stages(batch, self._delivery.concurrency, self._delivery.order(self._catalog)):
                async with asyncio.TaskGroup() as group:
                    for part in stage:
                        attribute_to_sink(group.create_task(self._write(part)), self._statistics)
        except ExceptionGroup as errors:
            for is_kind in (wants_rewind, _is_data_error):
                if all(map(is_kind, errors.exceptions)):
                    raise errors.exceptions[0]  # noqa: B904 - all are of the same kind
            raise

    async def flush(self) -> None:
        """Flush the sink.

        :raises AioreplError: the flush failed permanently. ``on_error`` does not apply, because the accepted changes are no
            longer in memory.
        """
        await self._call("flush", self._sink.flush)

    async def reopen(self, context: SinkContext) -> Position | None:
        """Open the sink again after it has lost accepted data.

        :returns: the position that the sink returns.
        :raises AioreplError: the sink cannot be opened, or keeps a position now although it did not before, or vice versa.
        """
        stored = await self._call("open", lambda: self._sink.open(context), rewind=True)
        if self._keeps_position is (stored is None):
            raise SinkError(
                f"sink {self._name}: open has returned a position at one time and None at another: return the context's "
                "position if the target has none yet"
            )
        if stored is not None:
            stored.require_same_source(context.position, f"sink {self._name}")
        return stored

    async def _write(self, batch: Batch) -> None:
        try:
            await self._call("write", lambda: self._sink.write(batch))
        except AioreplError as error:
            if self._delivery.on_error == "halt" or wants_rewind(error):
                raise
            if isinstance(error, PermanentError) and error.fatal:
                raise
            await self._handle_rejection(batch, error)

    async def _handle_rejection(self, batch: Batch, error: AioreplError) -> None:
        if isinstance(error, PermanentError) and error.rejected:
            await self._divert(self._select(batch, error.rejected), error, "write")
            await self._move_position_past(batch)
            return
        transactions = list(batch.transactions())
        # After a TransientError whose retries are spent, each transaction would fail in the same way.
        if len(transactions) > 1 and not isinstance(error, TransientError):
            for slices in transactions:
                await self._write(Batch(slices))
            return
        for slices in transactions:
            if self._is_chunk(slices) and not isinstance(error, TransientError):
                await self._write_rows(slices, error)
                return
            self._require_whole(slices, error)
        await self._divert(batch.slices, error, "write")
        await self._move_position_past(batch)

    @staticmethod
    def _is_chunk(slices: Sequence[Slice]) -> bool:
        """Whether the slices are a chunk of a snapshot, or a part of one, with rows."""
        header = slices[0].transaction
        return header is not None and header.snapshot is not None and any(part.changes for part in slices)

    async def _write_rows(self, slices: Sequence[Slice], error: AioreplError) -> None:
        """Write a chunk, or a part of it, without the rows that the sink rejects, which are found by halving.

        The rows of a chunk do not belong together, as the changes of a transaction do.
        """
        header, end_lsn, first = slices[0].transaction, slices[-1].end_lsn, slices[0].first
        changes = [change for part in slices for change in part.changes]
        truncates = [change for change in changes if change.kind == "truncate"]
        left = _halved([change for change in changes if change.kind != "truncate"])
        left += [truncates] if truncates else []
        rejected: list[Change] = []
        failures = 1
        while left:
            piece = left.pop()
            size = sum(part.size for part in slices) * len(piece) // len(changes)
            batch = Batch((Slice(header, piece, first, None, size),))
            try:
                await self._call("write", lambda batch=batch: self._sink.write(batch))  # type: ignore[misc]
            except AioreplError as again:
                if isinstance(again, TransientError) or (isinstance(again, PermanentError) and again.fatal):
                    raise
                if piece is truncates:
                    # If the truncate were skipped, the rows after it would be in the sink twice.
                    raise
                failures, error = failures + 1, again
                if isinstance(again, PermanentError) and again.rejected:
                    # The sink has accepted all other changes.
                    first = False
                    rejected += [c for part in self._select(batch, again.rejected) for c in part.changes]
                elif len(piece) > 1 and failures < _MOST_FAILURES:
                    left += _halved(piece)
                else:
                    rejected += piece
            else:
                first = False
        if rejected:
            await self._divert([Slice(header, rejected, False, None, 0)], error, "write")
        if first or end_lsn is not None:
            end = Batch((Slice(header, (), first, end_lsn, 0),))
            await self._call("write", lambda: self._sink.write(end))

    async def _move_position_past(self, batch: Batch) -> None:
        """Make a sink that keeps its position move it past a batch whose rejected changes were diverted.

        The slot is confirmed past them, so the position must not stay before them.
        """
        if self._keeps_position and batch.end_lsn is not None:
            empty = Batch((Slice(None, (), True, batch.end_lsn, 0),))
            await self._call("write", lambda: self._sink.write(empty))

    def _require_whole(self, slices: Sequence[Slice], error: AioreplError) -> None:
        """Check that these slices are a whole transaction, so that none is diverted in part.

        :raises SinkError: the slices are part of a transaction, or of a prepared transaction that is undecided.
        """
        header = slices[0].transaction
        if header is None or self._sink.concurrent:
            return
        if header.prepared:
            raise SinkError(
                f"sink {self._name} rejects the transaction prepared at {header.commit_lsn}, which cannot be diverted "
                f"before it is committed or rolled back: {error}"
            ) from error
        if not (slices[0].first and slices[-1].last):
            raise SinkError(
                f"sink {self._name} rejects a part of the transaction at {header.commit_lsn}, which is larger than a batch "
                f"and cannot be diverted in parts: increase max_bytes and max_rows, or correct the cause: {error}"
            ) from error

    def _select(self, batch: Batch, rejected: Sequence[Change]) -> list[Slice]:
        """Return the slices reduced to the rejected changes; slices without any are left out.

        Changes are matched by event id, because spooled changes are new objects on each iteration.

        :raises SinkError: the sink named a change that is not in the batch, so a rejected change could be lost.
        """
        if not all(isinstance(change, Change) for change in rejected):
            raise SinkError(
                f"sink {self._name} rejects an object that is not a change: put the batch's own changes in rejected"
            )
        wanted = set(map(event_id, rejected))
        found: set[str] = set()
        parts = []
        for part in batch.slices:
            named = {identity: change for change in part.changes if (identity := event_id(change)) in wanted}
            if named:
                found |= named.keys()
                parts.append(replace(part, changes=list(named.values())))
        if missing := wanted - found:
            raise SinkError(
                f"sink {self._name} rejects {len(missing)} changes that are not in its batch, such as {min(missing)}: put the "
                "batch's own changes in rejected"
            )
        return parts

    async def _divert(self, parts: Sequence[Slice], error: AioreplError, stage: str) -> None:
        """Write these slices to the dead letters, or count them as skipped.

        :raises SinkError: the sink rejects a ``Resync``. If the ``Resync`` were skipped, the sink would keep outdated state.
        """
        if any(map(is_resync, parts)):
            raise SinkError(f"sink {self._name} rejects a Resync: {error}") from error
        count = sum(len(part.changes) for part in parts)
        first = next((part.transaction.commit_lsn for part in parts if part.transaction is not None), None)
        where = "" if first is None else f" from {first} on"
        dead_letters = self._delivery.dead_letters
        if dead_letters is None:
            self._statistics.skipped += count
            _log.warning("sink %s: %s changes%s are skipped: %s", self._name, count, where, error)
            return
        rejection = Rejection(self._name, type(error).__name__, str(error), stage, datetime.now(UTC))
        batch = Batch(tuple(parts), rejection)
        # Batches may be written concurrently, but the dead letters' sink takes one call at a time.
        async with self._dead_letters_lock:
            await self._call("write of its dead letters", lambda: dead_letters.write(batch))
            await self._call("flush of its dead letters", dead_letters.flush)
        self._statistics.dead_letters += count
        _log.warning("sink %s: %s changes%s are dead letters: %s", self._name, count, where, error)

    async def _call(self, name: str, call: Callable[[], Awaitable[T]], *, rewind: bool = False) -> T:
        return await call_sink(self._statistics, self._delivery.retry, name, call, rewind=rewind)


async def call_sink(
    sink: SinkStatistics, retry: RetryPolicy, name: str, call: Callable[[], Awaitable[T]], *, rewind: bool
) -> T:
    """Call a sink, with retries.

    :param sink: the sink's statistics; they get the retries and the duration.
    :param name: the name of the call.
    :param rewind: whether to retry after a ``TransientError`` with ``rewind`` as well.
    :raises AioreplError: the sink's own error after the last retry; a SinkError for other exceptions, without their text.
    """
    try:
        async for attempt in retry.sink(f"sink {sink.name}: {name}", rewind=rewind, waits=sink.waits):
            with attempt:
                if attempt.num > 1:
                    sink.retries += 1
                begin = time.perf_counter()
                try:
                    result = await detect_unexpected_cancellation(require_awaitable(sink.name, name, call()))
                except TransientError as error:
                    sink.retrying = str(error)
                    raise
                sink.called(name, time.perf_counter() - begin)
                return result
        raise AssertionError("the retries end by returning or raising")
    except AioreplError:
        raise
    except Exception as error:
        # The exception's text may quote row data or a password, so the message has only its type.
        raise SinkError(f"sink {sink.name}: {name} {raised(error)}") from error


def _halved(changes: list[Change]) -> list[list[Change]]:
    """Return the second half, then the first half; a single change is not divided."""
    middle = len(changes) // 2
    return [half for half in (changes[middle:], changes[:middle]) if half]


async def close(name: str, sink: Sink) -> None:
    """Close a sink. A cancellation interrupts the call only after 5 seconds, so that the client can close its connections."""

    async def call() -> None:
        await require_awaitable(name, "close", sink.close())

    await uninterrupted(call(), patience=_CLOSE_SECONDS)


def require_awaitable(sink: str, call: str, returned: Awaitable[T]) -> Awaitable[T]:
    """Return the result of a sink's method, if the result can be awaited.

    The method itself need not be a coroutine function: it may return another function's coroutine.

    :raises SinkError: the method is not async.
    """
    if isinstance(returned, Awaitable):
        return returned
    raise SinkError(f"sink {sink}: its {call} is not async: make it async, or derive from aiorepl.SyncSink")


def wants_rewind(error: BaseException) -> bool:
    """Whether the sink has lost data that it had accepted in earlier calls."""
    return isinstance(error, TransientError) and error.rewind


def _is_data_error(error: BaseException) -> bool:
    return isinstance(error, DataError)
