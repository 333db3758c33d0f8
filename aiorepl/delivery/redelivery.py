"""Replay of dead letters: each is written again to the sink that refused it, and deleted once it is durable there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.config import Delivery, resolve
from aiorepl.delivery.dead_letters import DeadLetters, Letter
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.writer import SinkWriter, close
from aiorepl.errors import ConfigurationError, DataError, SinkError
from aiorepl.retry import RetryPolicy
from aiorepl.sink import Batch, Sink, SinkContext


async def redeliver(name: str, delivery: Delivery, letters: DeadLetters) -> int:
    """Write every letter of a sink again, in order, and delete each once it is durable.

    Changes that the sink refused are written as they are; changes that the transform refused are transformed first. The
    sink's position stays where it is. No pipeline may be writing to the sink meanwhile.

    :returns: how many letters were delivered.
    :raises ConfigurationError: a file is not a letter, or is a letter of another sink; or the sink keeps a position and
        cannot replay.
    :raises SinkError: a letter was refused again; it and those behind it are still there.
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
        raise ConfigurationError(f"{waiting[0].file} does not say which slot it came through")
    resolved = replace(resolved, sink=_Replaying(sink))
    delivered = 0
    try:
        held = await sink.open(SinkContext(name, source, resolved.routing_key))
        if held is not None and not sink.replays:
            raise ConfigurationError(
                f"sink {name!r} keeps a position and does not support replay (it does not override replay): print the "
                "letters with aiorepl dlq show, write their rows by hand, and delete them with aiorepl dlq drop"
            )
        statistics, keeps_position = SinkStatistics(name), held is not None
        writers = {
            "transform": SinkWriter(name, resolved, statistics, keeps_position=keeps_position),
            "write": SinkWriter(
                name, replace(resolved, transform=None), statistics, keeps_position=keeps_position
            ),
        }
        for letter in waiting:
            rejection = letter.batch.rejection
            writer = writers["write" if rejection is None else rejection.stage]
            try:
                await writer.write(Batch(letter.batch.slices))
                await writer.flush()
            except (SinkError, DataError) as error:
                raise SinkError(f"{letter.file} is refused again: {error}") from error
            await asyncio.to_thread(letter.discard)
            delivered += 1
    finally:
        await close(name, sink)
    return delivered


class _Replaying(Sink):
    """A sink that passes its batches to another sink's ``replay``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    async def write(self, batch: Batch) -> None:
        await self._sink.replay(batch)

    async def flush(self) -> None:
        await self._sink.flush()


def _require_own(name: str, letter: Letter) -> None:
    rejection = letter.batch.rejection
    if rejection is not None and rejection.sink != name:
        raise ConfigurationError(f"{letter.file} was refused by sink {rejection.sink!r}, not by {name!r}")
