"""Calls of one sink: insisted on while that may help, several at once where order allows, and what becomes of a rejection.

A rejection is settled as the sink's policy has it. The changes that the sink named, or else the transactions that fail by
themselves, are put aside (dead letters) or passed over (skip); everything else of the batch is written. Only then does
the batch count as accepted, so a change is either with the sink, or with its dead letters, or counted as skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from aiorepl.cancellation import uninterrupted
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.partitioning import stages
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink
from aiorepl.errors import AioreplError, DataError, PermanentError, SinkError, TransientError
from aiorepl.formats.format import event_id
from aiorepl.position import Position
from aiorepl.sink import Batch, Rejection, Sink, SinkContext
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.transactions.changes import Change
from aiorepl.transactions.transaction import Slice
from aiorepl.transforms.function import Transformer, Untransformed

_log = logging.getLogger("aiorepl.sink")

T = TypeVar("T")

_CLOSE_SECONDS: Final = 5.0


class SinkWriter:
    """Writes to an opened sink, and flushes it.

    :param keeps_position: whether the sink keeps its position itself, and so has to hear where a batch ends.
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
        self._letters_lock = asyncio.Lock()
        transform = delivery.transform
        self._transformer = None if transform is None else Transformer(name, transform, delivery.retry)

    async def write(self, batch: Batch) -> None:
        """Have the batch accepted, or settled as the policy has it.

        :raises AioreplError: the sink failed for good, and its policy is to halt, or cannot help here.
        """
        if self._transformer is not None:
            try:
                batch = await self._transformer.batch(batch)
            except Untransformed as rest:
                if self._delivery.on_error == "halt":
                    raise rest.error  # noqa: B904 - it has its own cause
                await self._dead_letter(self._only(batch, rest.refused), rest.error, "transform")
                batch = rest.batch
        if self._delivery.concurrency == 1:
            await self._write_or_reject(batch)
            return
        try:
            for stage in stages(batch, self._delivery.concurrency, self._delivery.order(self._catalog)):
                async with asyncio.TaskGroup() as group:
                    for part in stage:
                        attribute_to_sink(group.create_task(self._write_or_reject(part)), self._statistics)
        except ExceptionGroup as errors:
            for alike in (wants_rewind, _is_unreadable):
                if all(map(alike, errors.exceptions)):
                    raise errors.exceptions[0]  # noqa: B904 - the others say the same
            raise

    async def flush(self) -> None:
        """Have everything accepted made durable.

        :raises AioreplError: it cannot be. No policy helps: what was accepted is not known here any more.
        """
        await self._retry("flush", self._sink.flush)

    async def reopen(self, context: SinkContext) -> Position | None:
        """Open the sink again, which has lost what it had accepted; gives the position that it returns.

        :raises AioreplError: it cannot be opened, or does not go on as what it was.
        """
        held = await self._retry("open", lambda: self._sink.open(context), rewind=True)
        if self._keeps_position is (held is None):
            raise SinkError(
                f"sink {self._name}: open has returned a position at one time and none at another: where the target "
                "holds none yet, it is the context's"
            )
        if held is not None:
            held.require_same_source(context.position, f"sink {self._name}")
        return held

    async def _write_or_reject(self, batch: Batch) -> None:
        try:
            await self._retry("write", lambda: self._sink.write(batch))
        except AioreplError as error:
            if self._delivery.on_error == "halt" or wants_rewind(error):
                raise
            if isinstance(error, PermanentError) and error.fatal:
                raise
            await self._reject(batch, error)

    async def _reject(self, batch: Batch, error: AioreplError) -> None:
        if isinstance(error, PermanentError) and error.refused:
            await self._dead_letter(self._only(batch, error.refused), error, "write")
            await self._move_position_past(batch)
            return
        units = list(transactions(batch))
        if len(units) > 1 and not isinstance(error, TransientError):
            for unit in units:
                await self._write_or_reject(Batch(unit))
            return
        # Nobody is there (and would not be for each of them), or it is this one.
        for unit in units:
            self._require_separable(unit, error)
        await self._dead_letter(batch.slices, error, "write")
        await self._move_position_past(batch)

    async def _move_position_past(self, batch: Batch) -> None:
        """Make a sink that keeps its position move it past a batch whose refused changes were put aside.

        The slot is confirmed past them, so the position must not stay before them.
        """
        if self._keeps_position and batch.end_lsn is not None:
            passed = Batch((Slice(None, (), True, batch.end_lsn, 0),))
            await self._retry("write", lambda: self._sink.write(passed))

    def _require_separable(self, unit: Sequence[Slice], error: AioreplError) -> None:
        """Check that a transaction can be put aside whole, so that none is left half with the sink."""
        header = unit[0].transaction
        if header is None or self._sink.concurrent:
            return
        if header.prepared:
            raise SinkError(
                f"sink {self._name} refuses the transaction prepared at {header.commit_lsn}, which cannot be put aside "
                f"before it is decided: {error}"
            ) from error
        if not (unit[0].first and unit[-1].last):
            raise SinkError(
                f"sink {self._name} refuses a part of the transaction at {header.commit_lsn}, which is larger than a batch "
                f"and cannot be put aside in parts: let batches hold more bytes, or mend the cause: {error}"
            ) from error

    def _only(self, batch: Batch, refused: Sequence[Change]) -> list[Slice]:
        """The slices reduced to the refused changes; slices without any are left out.

        Changes are matched by event id, because spooled changes are new objects on each iteration.

        :raises SinkError: the sink named a change that is not in the batch, so a refused change could be lost.
        """
        if not all(isinstance(change, Change) for change in refused):
            raise SinkError(
                f"sink {self._name} refuses an object that is not a change: put the batch's own changes in refused"
            )
        wanted = set(map(event_id, refused))
        found: set[str] = set()
        parts = []
        for part in batch.slices:
            named = {identity: change for change in part.changes if (identity := event_id(change)) in wanted}
            if named:
                found |= named.keys()
                parts.append(replace(part, changes=list(named.values())))
        if missing := wanted - found:
            raise SinkError(
                f"sink {self._name} refuses {len(missing)} changes that are not in the batch it was given, such as "
                f"{min(missing)}: name the batch's own changes in refused"
            )
        return parts

    async def _dead_letter(self, parts: Sequence[Slice], error: AioreplError, stage: str) -> None:
        count = sum(len(part.changes) for part in parts)
        where = next((part.transaction.commit_lsn for part in parts if part.transaction is not None), None)
        at = "" if where is None else f" from {where} on"
        letters = self._delivery.dead_letters
        if letters is None:
            self._statistics.skipped += count
            _log.warning("sink %s: %s changes%s are skipped: %s", self._name, count, at, error)
            return
        rejection = Rejection(self._name, type(error).__name__, str(error), stage, datetime.now(UTC))
        batch = Batch(tuple(parts), rejection)
        # Batches may be written concurrently, but the dead letters' sink takes one call at a time.
        async with self._letters_lock:
            await self._retry("its dead letters' write", lambda: letters.write(batch))
            await self._retry("its dead letters' flush", letters.flush)
        self._statistics.dead_letters += count
        _log.warning("sink %s: %s changes%s are dead letters: %s", self._name, count, at, error)

    async def _retry(self, call: str, make: Callable[[], Awaitable[T]], *, rewind: bool = False) -> T:
        try:
            async for attempt in self._delivery.retry.sink(f"sink {self._name}: {call}", rewind=rewind):
                with attempt:
                    if attempt.num > 1:
                        self._statistics.retries += 1
                    return await awaitable(self._name, call, make())
            raise AssertionError("the retries end by returning or raising")
        except AioreplError:
            raise
        except Exception as error:
            # The exception's own text may quote what was written, so only its type is told.
            raise SinkError(f"sink {self._name}: {call} raised {type(error).__name__}") from error


async def close(name: str, sink: Sink) -> None:
    """Close a sink. A cancellation interrupts this only after a while, so that the client can close its connections."""

    async def closed() -> None:
        await awaitable(name, "close", sink.close())

    await uninterrupted(closed(), patience=_CLOSE_SECONDS)


def awaitable(name: str, call: str, made: Awaitable[T]) -> Awaitable[T]:
    """What a sink's method returned; whether it is async is known only then, for it may hand on another's."""
    if isinstance(made, Awaitable):
        return made
    raise SinkError(
        f"sink {name}: its {call} is not async: make it so, or derive the sink from aiorepl.SyncSink"
    )


def wants_rewind(error: BaseException) -> bool:
    """Whether the sink has lost more than the call that raised this."""
    return isinstance(error, TransientError) and error.rewind


def _is_unreadable(error: BaseException) -> bool:
    return isinstance(error, DataError)


def transactions(batch: Batch) -> Iterator[tuple[Slice, ...]]:
    """The batch by transactions; what stands between them by itself."""
    unit: list[Slice] = []
    for part in batch.slices:
        if unit and not _same_transaction(unit[-1], part):
            yield tuple(unit)
            unit = []
        unit.append(part)
    if unit:
        yield tuple(unit)


def _same_transaction(one: Slice, other: Slice) -> bool:
    # After a reconnect, the rest of a transaction has a new header object.
    return (
        one.transaction is not None
        and other.transaction is not None
        and one.transaction.commit_lsn == other.transaction.commit_lsn
    )
