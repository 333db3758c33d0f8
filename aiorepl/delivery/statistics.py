"""The counters and positions of one sink, as ``Pipeline.statistics`` returns them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from aiorepl.histogram import Histogram
from aiorepl.lsn import LSN

_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class SinkStatistics:
    """The counters and positions of one sink. Counters start at 0 with the pipeline.

    :param name: the sink's name within its pipeline.
    :param changes: delivered changes, including dead letters and skipped changes.
    :param batches: batches that were written.
    :param flushes: flushes that succeeded.
    :param write_seconds: the durations of successful writes, in seconds.
    :param flush_seconds: the durations of successful flushes, in seconds.
    :param retries: calls that were repeated after a ``TransientError``.
    :param rewinds: how often the sink had lost accepted data, and got it again; ``changes`` and ``batches`` count it again.
    :param dead_letters: rejected changes that became dead letters.
    :param skipped: rejected changes that were skipped.
    :param reselected: rows whose unchanged large values were read from the table.
    :param not_reselected: rows that still lack values: the row or column was not found, or the transaction is prepared.
    :param blocked: how often a call of the sink blocked the event loop for a second or more.
    :param accepted: the end LSN of the last transaction that the sink has accepted.
    :param durable: the end LSN of the last transaction that is durable in the sink.
    :param committed: when the last durable transaction was committed on the source, an aware datetime; ``None`` before the
        first one.
    :param began: the commit time of the first transaction that the sink has received, an aware datetime; ``None`` before it.
    :param retrying: the error after which a call is repeated now; ``None`` if the last call has succeeded.
    :param next_attempt: the approximate time of the next attempt, as of ``time.monotonic``; ``None`` while ``retrying`` is ``None``.
    :param failed: the error that stopped the sink; ``None`` while it works.
    :param paused: whether the sink is paused.
    :param waiting_for: what a call of the sink waits for in its target, such as a lock; ``None`` if it does not wait, or does not say.
    """

    name: str
    changes: int = 0
    batches: int = 0
    flushes: int = 0
    write_seconds: Histogram = field(default_factory=partial(Histogram, _SECONDS))
    flush_seconds: Histogram = field(default_factory=partial(Histogram, _SECONDS))
    retries: int = 0
    rewinds: int = 0
    dead_letters: int = 0
    skipped: int = 0
    reselected: int = 0
    not_reselected: int = 0
    blocked: int = 0
    accepted: LSN = LSN(0)  # noqa: RUF009 - immutable
    durable: LSN = LSN(0)  # noqa: RUF009
    committed: datetime | None = None
    began: datetime | None = None
    retrying: str | None = None
    next_attempt: float | None = None
    failed: str | None = None
    waiting_for: str | None = None
    paused: bool = False

    def waits(self, seconds: float) -> None:
        """Record how long a repeated call waits."""
        self.next_attempt = time.monotonic() + seconds

    def called(self, name: str, seconds: float) -> None:
        """Record the duration of a call that has succeeded, and clear the error that it was repeated after."""
        self.retrying = self.next_attempt = None
        if name == "write":
            self.write_seconds.observe(seconds)
        elif name == "flush":
            self.flush_seconds.observe(seconds)
