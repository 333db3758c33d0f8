"""Dead letters written again to the sink that refused them, once what was wrong is mended."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.dead_letters import DeadLetters, Letter
from aiorepl.delivery.delivery import Delivery, served
from aiorepl.delivery.retry import RetryPolicy
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.writing import SinkWriter
from aiorepl.errors import ConfigurationError, DataError, SinkError
from aiorepl.sink import SinkContext


async def redeliver(name: str, delivery: Delivery, letters: DeadLetters) -> int:
    """Write every letter of a sink again, in order, and delete each once it is durable.

    What was refused by the sink goes there as it is; what the transform could not do is transformed first. A sink that
    keeps its position keeps the one it has. No pipeline may be writing to the sink meanwhile.

    :returns: how many letters were delivered.
    :raises ConfigurationError: there is a file that is no letter, or one of another sink.
    :raises SinkError: one was refused again; it and those behind it are still there.
    """
    waiting = await asyncio.to_thread(lambda: list(letters.letters()))
    for letter in waiting:
        _require_own(name, letter)
    if not waiting:
        return 0
    halting = replace(delivery, on_error="halt", dead_letters=None, concurrency=1)
    (serve,) = served({name: halting}, BatchPolicy(), RetryPolicy()).values()
    source = waiting[0].source
    if source is None:
        raise ConfigurationError(f"{waiting[0].file} does not say which slot it came through")
    delivered = 0
    try:
        held = await serve.sink.open(SinkContext(name, source, serve.routing_key))
        statistics = SinkStatistics(name)
        writers = {
            "transform": SinkWriter(name, serve, statistics, keeps_position=held is not None),
            "write": SinkWriter(
                name, replace(serve, transform=None), statistics, keeps_position=held is not None
            ),
        }
        for letter in waiting:
            refusal = letter.batch.refusal
            writer = writers["write" if refusal is None else refusal.stage]
            try:
                await writer.write(letter.redelivered(held))
                await writer.flush()
            except (SinkError, DataError) as error:
                raise SinkError(f"{letter.file} is refused again: {error}") from error
            await asyncio.to_thread(letter.discard)
            delivered += 1
    finally:
        await serve.sink.close()
    return delivered


def _require_own(name: str, letter: Letter) -> None:
    refusal = letter.batch.refusal
    if refusal is not None and refusal.sink != name:
        raise ConfigurationError(f"{letter.file} was refused by sink {refusal.sink!r}, not by {name!r}")
