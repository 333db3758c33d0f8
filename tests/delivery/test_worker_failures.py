"""Sinks that fail: retries, permanent failures, and what must not appear in logs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiorepl import BatchPolicy, PermanentError, RetryPolicy, SinkError, TransientError
from aiorepl.testing.faults import FailAfterWrite, FaultySink, Hang, Reject, Slow


async def test_a_transient_error_brings_the_same_batch_again(harness, ids):
    """A failed write is repeated with the same batch, even if more has arrived."""
    sink = FaultySink(write=[Reject(TransientError("later")), FailAfterWrite(TransientError("lost"))])
    harness = harness(sink)
    end = harness.commit(1)
    harness.start()
    harness.commit(2)
    await harness.finish()
    assert [[1, 2], [1, 2]] == ids(sink.inner)
    assert sink.inner.batches[0] is sink.inner.batches[1]
    assert 2 == harness.worker.statistics.retries
    assert end < harness.ledger.flushed


async def test_a_flush_is_tried_again(harness):
    """A flush is repeated until it succeeds; nothing is durable before, and no batch is written again."""
    sink = FaultySink(flush=[Reject(TransientError("later")), FailAfterWrite(TransientError("lost")), None])
    harness = harness(sink)
    end = harness.commit(1)
    await harness.finish()
    assert ["write", "flush", "flush", "flush"] == sink.calls
    assert end == harness.ledger.flushed


@pytest.mark.parametrize("call", ["write", "flush"])
async def test_a_permanent_error_ends_it(harness, call):
    """A permanent error is raised at once and unchanged, and nothing is confirmed."""
    error = PermanentError("never")
    sink = FaultySink(**{call: [Reject(error)]})
    harness = harness(sink)
    begin = harness.ledger.flushed
    harness.commit(1)
    with pytest.raises(PermanentError) as raised:
        await harness.finish()
    assert raised.value is error
    assert (1, begin) == (sink.calls.count(call), harness.ledger.flushed)


@pytest.mark.parametrize("call", ["write", "flush"])
async def test_spent_retries_end_it(harness, call):
    """When retries are spent, the last error is raised."""
    sink = FaultySink(**{call: [Reject(TransientError(f"try {number}")) for number in (1, 2, 3)]})
    harness = harness(sink, retry=RetryPolicy(attempts=3, wait_initial=0.001))
    begin = harness.ledger.flushed
    harness.commit(1)
    with pytest.raises(TransientError, match="try 3"):
        await harness.finish()
    assert (3, begin) == (sink.calls.count(call), harness.ledger.flushed)


async def test_retry_after_is_waited_for(harness):
    """The pause follows the peer's Retry-After."""
    sink = FaultySink(write=[Reject(TransientError("busy", retry_after=0.15))])
    harness = harness(sink)
    harness.commit(1)
    clock = asyncio.get_running_loop().time
    begin = clock()
    await harness.finish()
    assert clock() - begin >= 0.15
    assert 2 == sink.calls.count("write")


async def test_rows_are_in_no_message(harness, caplog):
    """Logs and errors do not contain the text of a sink's own exception."""
    caplog.set_level(logging.DEBUG)
    faults = [Reject(TransientError("later")), Reject(ValueError("cannot write 'secret 1' with password"))]
    sink = FaultySink(write=faults)
    harness = harness(sink)
    harness.commit(1)
    with pytest.raises(SinkError) as raised:
        await harness.finish()
    told = str(raised.value) + "".join(
        f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.exc_info is None
    )
    assert "ValueError" in told
    assert "secret" not in told
    assert "password" not in told


async def test_cancelled_at_every_await(harness, ids):
    """Wherever a call is interrupted, nothing more counts as accepted or durable than the sink has confirmed."""
    # No pauses: they would be thousands of steps.
    at_once = RetryPolicy(attempts=3, wait_initial=0, wait_max=0)

    async def run(steps):
        sink = FaultySink(
            write=[Slow(0), Reject(TransientError("later")), None] * 5,
            flush=[Slow(0), Reject(TransientError("later")), None] * 5,
        )
        made = harness(
            sink, batches=BatchPolicy(max_bytes=700, flush_bytes=900, flush_seconds=0), retry=at_once
        )
        for number in range(12):
            made.commit(number, at_once=2)
        made.buffer.close()
        task = made.start()
        while steps and not task.done():
            await asyncio.sleep(0)
            steps -= 1
        finished = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return finished, sink.inner, made

    steps, finished = 0, False
    while not finished:
        finished, memory, made = await run(steps)
        begin = made.stream.position.lsn
        accepted = max([begin, *(batch.end_lsn for batch in memory.batches if batch.end_lsn is not None)])
        assert made.ledger.flushed <= max(begin, memory.durable)
        assert made.ledger.flushed <= made.ledger.accepted <= accepted
        seen = [number for batch in ids(memory) for number in batch]
        assert list(range(len(set(seen)))) == sorted(set(seen))
        steps += 1
    assert made.ledger.flushed == made.ledger.end
    assert steps > 20


async def test_cancelled_while_it_hangs(harness):
    """An interrupted ``write`` accepts nothing, an interrupted ``flush`` makes nothing durable."""
    for call in ("write", "flush"):
        hang = Hang()
        made = harness(FaultySink(**{call: [hang]}))
        begin = made.ledger.flushed
        end = made.commit(1)
        task = made.start()
        await hang.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        accepted = begin if call == "write" else end
        assert (accepted, begin) == (made.ledger.accepted, made.ledger.flushed)
