"""How a sink is served when the user says nothing, or something."""

from __future__ import annotations

from aiorepl import BatchPolicy, Delivery, RetryPolicy, Sink
from aiorepl.delivery.config import resolve


class Filing(Sink):
    """A sink for which each flush makes a file."""

    flush_seconds = 60.0

    async def write(self, batch):
        pass


def test_a_sink_says_how_often_it_wants_to_be_flushed():
    """What it does not say is as in the pipeline."""
    (delivery,) = resolve(
        [Filing()], BatchPolicy(max_bytes=7, flush_bytes=8, flush_seconds=1.0), RetryPolicy()
    ).values()

    assert BatchPolicy(max_bytes=7, flush_bytes=8, flush_seconds=60.0) == delivery.batches


def test_the_users_word_for_a_sink_comes_first():
    """Batches that were given with the sink are taken as they are."""
    wanted = BatchPolicy(flush_seconds=2.0)
    (delivery,) = resolve([Delivery(Filing(), batches=wanted)], BatchPolicy(), RetryPolicy()).values()

    assert wanted == delivery.batches
