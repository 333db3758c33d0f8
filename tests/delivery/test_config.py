"""Defaults of a delivery's options, and which of them the user overrides."""

from __future__ import annotations

from aiorepl import BatchPolicy, Delivery, RetryPolicy, Sink
from aiorepl.delivery.config import resolve
from aiorepl.testing import MemorySink
from aiorepl_sinks.jsonl import JsonLinesSink


class Filing(Sink):
    """A sink for which each flush creates a file."""

    flush_seconds = 60.0

    async def write(self, batch):
        pass


def test_a_sink_says_how_often_it_wants_to_be_flushed():
    """A sink's own flush limits replace the pipeline's."""
    (delivery,) = resolve(
        [Filing()], BatchPolicy(max_bytes=7, flush_bytes=8, flush_seconds=1.0), RetryPolicy()
    ).values()

    assert BatchPolicy(max_bytes=7, flush_bytes=8, flush_seconds=60.0) == delivery.batches


def test_the_users_word_for_a_sink_comes_first():
    """The batch policy of a delivery is used unchanged."""
    wanted = BatchPolicy(flush_seconds=2.0)
    (delivery,) = resolve([Delivery(Filing(), batches=wanted)], BatchPolicy(), RetryPolicy()).values()

    assert wanted == delivery.batches


class OrdersSink(Filing):
    """A sink of a user, whose positions are kept under the whole name of the class."""


def test_names(tmp_path):
    """A sink is named after its class; only this project's sinks lose the suffix."""
    sinks = [Filing(), OrdersSink(), OrdersSink(), MemorySink(), JsonLinesSink(tmp_path)]

    assert ["filing", "orderssink", "orderssink-2", "memory", "jsonlines"] == list(
        resolve(sinks, BatchPolicy(), RetryPolicy())
    )
