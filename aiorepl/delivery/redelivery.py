"""Replays dead letters: writes each one again to the sink that rejected it, and deletes it once it is durable there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.config import Delivery, resolve
from aiorepl.delivery.dead_letters import DeadLetters, Letter
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.writer import SinkWriter, close
from aiorepl.errors import ConfigurationError, DataError, SinkError
from aiorepl.pgoutput.relations import Relation
from aiorepl.retry import RetryPolicy
from aiorepl.sink import Batch, Sink, SinkContext
from aiorepl.transactions.changes import Change, RowChange
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.masking import Rewriting
from aiorepl.transforms.rules import DROPPED, KEPT
from aiorepl.transforms.selection import Selection


async def redeliver(name: str, delivery: Delivery, letters: DeadLetters) -> int:
    """Write every dead letter of a sink again, in order, and delete each once it is durable.

    Changes that the sink rejected are written unchanged, except for columns that the selection hides since then: they are dropped or
    masked, by the patterns that match the table's own name. Changes for which the transform failed are transformed first. The
    sink's position does not move. No pipeline may write to the sink at the same time.

    :param name: the sink's name.
    :param delivery: the sink's options in the pipeline.
    :returns: the number of letters that were delivered.
    :raises ConfigurationError: a file is not a dead letter, or belongs to another sink; or the sink keeps a position and
        does not support replay.
    :raises PermanentError: a column cannot be masked.
    :raises SinkError: a letter was rejected again; it and all later ones are kept.
    """
    waiting = await asyncio.to_thread(lambda: list(letters.letters()))
    for letter in waiting:
        _require_own(name, letter)
    if not waiting:
        return 0
    halting = replace(delivery, on_error="halt", dead_letters=None, concurrency=1)
    (resolved,) = resolve({name: halting}, BatchPolicy(), RetryPolicy()).values()
    sink, source = resolved.sink, waiting[0].source
    if source is None:
        raise ConfigurationError(
            f"{waiting[0].file} does not name the slot of its changes, so it cannot be replayed"
        )
    resolved = replace(resolved, sink=_ReplayAdapter(sink))
    delivered = 0
    try:
        stored = await sink.open(SinkContext(name, source, resolved.routing_key))
        if stored is not None and not sink.replays:
            raise ConfigurationError(
                f"sink {name!r} keeps a position and does not support replay (it does not override replay): print the "
                "letters with aiorepl dlq show, write their rows by hand, and delete them with aiorepl dlq drop"
            )
        statistics, keeps_position = SinkStatistics(name), stored is not None
        writers = {
            "transform": SinkWriter(name, resolved, statistics, keeps_position=keeps_position),
            "write": SinkWriter(
                name, replace(resolved, transform=None), statistics, keeps_position=keeps_position
            ),
        }
        hides = _Hides(delivery.selection or Selection())
        for letter in waiting:
            rejection = letter.batch.rejection
            writer = writers["write" if rejection is None else rejection.stage]
            try:
                await writer.write(Batch(tuple(map(hides.apply, letter.batch.slices))))
                await writer.flush()
            except (SinkError, DataError) as error:
                raise SinkError(f"{letter.file} is rejected again: {error}") from error
            await asyncio.to_thread(letter.discard)
            delivered += 1
    finally:
        await close(name, sink)
    return delivered


class _Hides:
    """Drops and masks columns of letters that are older than the selection. Columns that were masked before stay as they are."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._rewritings: dict[Relation, Rewriting | None] = {}

    def apply(self, part: Slice) -> Slice:
        return replace(part, changes=[self._change(change) for change in part.changes])

    def _change(self, change: Change) -> Change:
        if not isinstance(change, RowChange):
            return change
        relation = change.layout.relation
        if relation not in self._rewritings:
            own = [(relation.schema, relation.name)]
            found = [self._selection.rules.action(own, column) for column in relation.names]
            actions = [
                KEPT if column.masked and action is not DROPPED else action
                for column, action in zip(relation.columns, found, strict=True)
            ]
            hides = any(action is not KEPT for action in actions)
            self._rewritings[relation] = (
                Rewriting(relation, actions, self._selection.masks) if hides else None
            )
        rewriting = self._rewritings[relation]
        return change if rewriting is None else rewriting.change(change)


class _ReplayAdapter(Sink):
    """Passes batches to the ``replay`` of another sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    async def write(self, batch: Batch) -> None:
        await self._sink.replay(batch)

    async def flush(self) -> None:
        await self._sink.flush()


def _require_own(name: str, letter: Letter) -> None:
    rejection = letter.batch.rejection
    if rejection is not None and rejection.sink != name:
        raise ConfigurationError(f"{letter.file} was rejected by sink {rejection.sink!r}, not by {name!r}")
