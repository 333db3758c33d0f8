"""What a sink has done so far: kept up by those who call it, read by ``Pipeline.statistics``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from aiorepl.lsn import LSN


@dataclass(slots=True)
class SinkStatistics:
    """What one sink has done.

    :param retries: calls that were made again.
    :param rewinds: how often it had lost what it had accepted, and was sent it again; changes and batches count again.
    :param dead_letters: changes that the sink refused and its dead letters took.
    :param skipped: changes that the sink refused and that are lost to it, as its policy has it.
    :param committed: when the last transaction that is durable with it was committed on the source.
    :param blocked: how often a call of it held the event loop for a second or more.
    :param failed: why it stopped, if it has.
    """

    name: str
    changes: int = 0
    batches: int = 0
    flushes: int = 0
    retries: int = 0
    rewinds: int = 0
    dead_letters: int = 0
    skipped: int = 0
    blocked: int = 0
    accepted: LSN = LSN(0)  # noqa: RUF009 - immutable
    durable: LSN = LSN(0)  # noqa: RUF009
    committed: datetime | None = None
    failed: str | None = None
