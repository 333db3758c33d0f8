"""Misuse by a program: early and clear errors, without row data or DSNs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiorepl import (
    BatchPolicy,
    ConfigurationError,
    Delivery,
    PermanentError,
    Pipeline,
    RetryPolicy,
    Sink,
    SinkError,
    Source,
    connect,
)
from aiorepl.testing import FaultySink, MemorySink, MemorySource, Stream
from aiorepl.testing.faults import Hang, Reject
from aiorepl.testing.messages import column

AT_ONCE = BatchPolicy(flush_seconds=0.01)


class Writeless(Sink):
    """A sink that accepts nothing."""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"sinks": [MemorySink]}, r"create a sink with MemorySink\(…\)"),
        ({"sinks": MemorySink()}, "sinks must be a list"),
        ({"sinks": [object()]}, "object is not a sink: derive it from aiorepl.Sink"),
        ({"sinks": [Writeless()]}, "Writeless must define write"),
        ({"source": "postgresql://u:s3cret@h/d"}, "not str"),
        ({"shutdown_timeout": -1.0}, "shutdown_timeout is"),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout is"),
        ({"buffer_bytes": 0}, "buffer_bytes is"),
    ],
)
def test_what_is_no_pipeline(given, reason):
    """Invalid arguments of a pipeline are rejected at once."""
    with pytest.raises(ConfigurationError, match=reason) as refused:
        Pipeline(**{"source": MemorySource(), "sinks": [MemorySink()]} | given)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"slot": None}, "name a replication slot"),
        ({"slot": 5}, "name a replication slot"),
        ({"slot": "Orders"}, "is not a slot name"),
        ({"slot": "s" * 64}, "is not a slot name"),
        ({"publication": None}, "publication is None, but must be text or a list of text"),
        ({"publication": []}, "name at least one publication"),
        ({"heartbeat_interval": float("nan")}, "heartbeat_interval is nan, but must be"),
        ({"heartbeat_interval": float("inf")}, "heartbeat_interval is inf, but must be"),
        ({"receive_timeout": float("nan")}, "receive_timeout is nan, but must be"),
    ],
)
def test_what_is_no_source(given, reason):
    """Invalid arguments of a source are rejected at once."""
    with pytest.raises(ConfigurationError, match=reason):
        Source(**{"dsn": None, "slot": "s", "publication": "p"} | given)


def test_dead_letters_are_for_a_sink_as_well():
    """Dead letters must be a sink object, not a class."""
    with pytest.raises(ConfigurationError, match="is a class: create"):
        Delivery(MemorySink(), on_error="dead_letter", dead_letters=MemorySink)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"timeout": -1}, {"wait_initial": -1}, {"wait_max": float("nan")}]
)
def test_what_is_no_retry_policy(wrong):
    """The policy rejects the value and names the option."""
    with pytest.raises(ConfigurationError, match=f"retry: {next(iter(wrong))} is .*, but must be "):
        RetryPolicy(**wrong)


async def test_a_pipeline_runs_once():
    """A second run of a pipeline is refused."""
    pipeline = Pipeline(MemorySource(), [MemorySink()])
    async with pipeline:
        with pytest.raises(RuntimeError, match="runs only once"):
            await pipeline.run()
    with pytest.raises(RuntimeError, match="runs only once"):
        async with pipeline:
            pass


async def test_a_pipeline_that_never_starts():
    """``started`` raises the error of a pipeline that never starts."""
    failing = FaultySink(open=[Reject(PermanentError("no"))])
    pipeline = Pipeline(MemorySource(), [failing])
    run = asyncio.create_task(pipeline.run())
    with pytest.raises(PermanentError) as told:
        await asyncio.wait_for(pipeline.started(), 60)
    with pytest.raises(PermanentError) as raised:
        await run
    assert raised.value is told.value

    pipeline = Pipeline(MemorySource(), [FaultySink(open=[Hang()])], shutdown_timeout=0)
    run = asyncio.create_task(pipeline.run())
    pipeline.stop()
    with pytest.raises(RuntimeError, match="before its stream started"):
        await asyncio.wait_for(pipeline.started(), 60)
    await run


@pytest.mark.parametrize("call", ["open", "write", "flush", "close"])
async def test_a_call_that_is_not_async(call):
    """A sink whose calls are not async is named, with the right base class."""
    stream = Stream()
    sink = type("Forgetful", (MemorySink,), {call: lambda *_: None})()
    pipeline = Pipeline(MemorySource(stream=stream), {"s": sink}, until="now", batches=AT_ONCE)
    stream.transaction(stream.table("items", column("id", 23, key=True)).insert("1"))

    with pytest.raises(SinkError, match=f"sink s: its {call} is not async.*aiorepl.SyncSink"):
        await asyncio.wait_for(pipeline.run(), 60)


async def test_the_sink_that_ends_a_pipeline_is_named(caplog):
    """The log names the sink that ends a pipeline of several sinks."""
    stream = Stream()
    sinks = {"good": MemorySink(), "bad": FaultySink(write=[Reject(PermanentError("no"))])}
    pipeline = Pipeline(MemorySource(stream=stream), sinks, batches=AT_ONCE)
    stream.transaction(stream.table("items", column("id", 23, key=True)).insert("1"))

    with caplog.at_level(logging.ERROR, "aiorepl"), pytest.raises(PermanentError, match="no"):
        await asyncio.wait_for(pipeline.run(), 60)
    assert [
        "sink bad stops, and so do all other sinks: no",
        "pipeline memory has failed: no",
    ] == caplog.messages
    assert {"good": None, "bad": "no"} == {
        name: sink.failed for name, sink in pipeline.statistics().sinks.items()
    }


async def test_another_event_loop():
    """On another event loop than asyncio's, a ConfigurationError says so."""
    source = Source("postgresql://h/d", slot="s", publication="p")
    for call in (
        Pipeline(source, [MemorySink()]).run(),
        Pipeline(source, [MemorySink()]).__aenter__(),
        connect(source).__aenter__(),
    ):

        def step(call=call):
            call.send(None)

        # A thread has no event loop.
        with pytest.raises(ConfigurationError, match="aiorepl needs asyncio"):
            await asyncio.to_thread(step)
