"""The counters and positions of one sink, as ``Pipeline.statistics`` returns them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from aiorepl.lsn import LSN


@dataclass(slots=True)
class SinkStatistics:
    """The counters and positions of one sink. Counters start at 0 with the pipeline.

    :param name: the sink's name within its pipeline.
    :param changes: changes that were delivered, including dead letters and skipped changes.
    :param batches: batches that were written.
    :param flushes: flushes that succeeded.
    :param write_seconds: time in writes that succeeded; ``batches`` is their number.
    :param flush_seconds: time in flushes that succeeded.
    :param retries: calls that were repeated after a ``TransientError``.
    :param rewinds: how often the sink had lost accepted data, and got it again; ``changes`` and ``batches`` count it again.
    :param dead_letters: rejected changes that became dead letters.
    :param skipped: rejected changes that were skipped.
    :param blocked: how often a call of the sink blocked the event loop for a second or more.
    :param accepted: the end LSN of the last transaction that the sink has accepted.
    :param durable: the end LSN of the last transaction that is durable in the sink.
    :param committed: when the last durable transaction was committed on the source, an aware datetime; ``None`` before the
        first one.
    :param retrying: the error after which a call is repeated now; ``None`` if the last call has succeeded.
    :param failed: the error that stopped the sink; ``None`` while it works.
    """

    name: str
    changes: int = 0
    batches: int = 0
    flushes: int = 0
    write_seconds: float = 0.0
    flush_seconds: float = 0.0
    retries: int = 0
    rewinds: int = 0
    dead_letters: int = 0
    skipped: int = 0
    blocked: int = 0
    accepted: LSN = LSN(0)  # noqa: RUF009 - immutable
    durable: LSN = LSN(0)  # noqa: RUF009
    committed: datetime | None = None
    retrying: str | None = None
    failed: str | None = None

    def called(self, name: str, seconds: float) -> None:
        """Count the time of a call that has succeeded; nothing is repeated any more."""
        self.retrying = None
        if name == "write":
            self.write_seconds += seconds
        elif name == "flush":
            self.flush_seconds += seconds
