"""A value that cannot be decoded: everything before it is delivered, and the error names its change."""

from __future__ import annotations

import re

import pytest

from aiorepl import BatchPolicy, Selection, Sink, SinkContext
from aiorepl.errors import DataError
from aiorepl.testing.faults import MemorySink

BAD = b"\xff secret"
PROBLEM = "public.items.note: type text (oid 25) in text: these 8 bytes are not UTF-8, which SQL_ASCII databases allow"


class Reading(Sink):
    """Decodes every value, and records what is durable."""

    def __init__(self, *, concurrent=False, keeps_position=False):
        self.memory = MemorySink(keeps_position=keeps_position)
        self.concurrent = concurrent

    async def open(self, context):
        return await self.memory.open(context)

    async def write(self, batch):
        for change in batch.changes:
            dict(change.new)
        await self.memory.write(batch)

    async def flush(self):
        await self.memory.flush()

    @property
    def durable(self):
        """The ids of all durable changes."""
        return [change.new["id"] for batch in self.memory.durable_batches for change in batch.changes]


def commit(harness, *rows):
    """Commit a transaction with these rows, and return its end LSN."""
    return harness.receive(harness.stream.transaction(*(harness.table.insert(*row) for row in rows)))


@pytest.mark.parametrize("options", [{}, {"max_rows": 1}, {"max_bytes": 1}, {"linger": 1000.0}], ids=str)
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_what_stands_before_it_is_delivered(harness, options, concurrency):
    """All whole transactions before the value are durable and confirmed, whatever their batches; later ones are not."""
    sink = Reading(concurrent=concurrency > 1)
    harness = harness(sink, batches=BatchPolicy(flush_seconds=1000, **options), concurrency=concurrency)
    commit(harness, ("1", "a"))
    end = commit(harness, ("2", "b"), ("3", None))
    commit(harness, ("4", "c"), ("5", BAD), ("6", BAD))
    commit(harness, ("7", "d"))

    with pytest.raises(
        DataError, match=rf"^{re.escape(PROBLEM)}.*change 1 of transaction 703 at 0/"
    ) as caught:
        await harness.finish()
    assert "secret" not in str(caught.value)
    assert end == harness.ledger.flushed == harness.worker.statistics.durable
    assert {1, 2, 3} <= set(sink.durable)
    # Of batches that were written at once, others may be there, and come again.
    assert set(sink.durable) <= {1, 2, 3, 4, 7} - ({7} if concurrency == 1 else set())


async def test_a_mask_of_it(harness):
    """The same holds for a column that is masked."""
    sink = MemorySink()
    selection = Selection(mask=("public.items.note",), secret="s")
    harness = harness(sink, batches=BatchPolicy(flush_seconds=1000, linger=1000.0), selection=selection)
    end = commit(harness, ("1", "a"))
    commit(harness, ("2", BAD))
    commit(harness, ("3", "b"))

    with pytest.raises(DataError, match=r"public\.items\.note: .*transaction \d+ at "):
        await harness.finish()
    assert end == harness.ledger.flushed
    assert [1] == [change.new["id"] for change in sink.changes]


@pytest.mark.parametrize("keeps_position", [False, True])
async def test_it_is_put_aside(harness, keeps_position):
    """With ``dead_letter`` its transaction becomes a dead letter, and the sink gets the others."""
    sink, letters = Reading(keeps_position=keeps_position), MemorySink()
    harness = harness(sink, on_error="dead_letter", dead_letters=letters, keeps_position=keeps_position)
    await sink.open(SinkContext("s", harness.stream.position))
    commit(harness, ("1", "a"))
    commit(harness, ("2", BAD))
    end = commit(harness, ("3", "b"))
    await harness.finish()
    assert end == harness.ledger.flushed
    assert [1, 3] == sink.durable
    assert [2] == [change.new["id"] for change in letters.changes]
