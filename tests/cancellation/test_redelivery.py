"""Replay of dead letters, cancelled at any await: each letter is delivered, or kept."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from aiorepl import BatchPolicy, DeadLetters, Delivery, PermanentError, Pipeline
from aiorepl.delivery.redelivery import redeliver
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from tests.today import of_today

ROWS = 4


class Refusing(MemorySink):
    """Rejects everything."""

    async def write(self, batch):
        raise PermanentError("not this one", rejected=list(batch.changes))


async def test_redelivering(tmp_path, watched, cancelling):
    """The second call delivers the letters that the first one has not."""
    # One thread, so that letters are counted after a discard that a cancelled call has begun.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    for number in of_today(count(1)):
        stream, folder = Stream(), tmp_path / str(number)
        table = stream.table("items", column("id", 23, key=True))
        for row in range(ROWS):
            stream.transaction(table.insert(str(row)))
        refusing = Delivery(Refusing(), on_error="dead_letter", dead_letters=folder)
        source = MemorySource(stream=stream)
        await Pipeline(source, {"s": refusing}, until=stream.lsn, batches=BatchPolicy(max_rows=1)).run()
        letters, sink = DeadLetters(folder), MemorySink()
        assert ROWS == len(list(letters.letters()))

        attempt = cancelling(number, everywhere=True)
        await attempt.run(redeliver("s", Delivery(sink), letters))
        await watched.nothing_left()
        sink.crash()
        left = await asyncio.to_thread(lambda letters=letters: len(list(letters.letters())))
        assert left == await redeliver("s", Delivery(sink), letters)
        assert {*range(ROWS)} == {
            change.new["id"] for batch in sink.durable_batches for change in batch.changes
        }
        if not attempt.cancelled:
            break
    assert number > ROWS
