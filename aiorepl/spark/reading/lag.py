"""How far a query is behind the journal, for Spark's progress report. Pure.

Spark does not ask Python data sources for metrics, but reports their latest offset. So that offset contains the metrics, under
the names that Spark's other sources use.
"""

from __future__ import annotations

from typing import Final

from aiorepl.journal.chain import Chain
from aiorepl.lsn import LSN

BYTES: Final = "numBytesOutstanding"
MILLISECONDS: Final = "maxMsBehindLatest"


def lag(chain: Chain, reached: LSN, now: float) -> dict[str, int]:
    """Return the bytes of the segments after a position, and the age of the first of them.

    :param now: the time in seconds since 1970.
    :raises JournalError: the journal is damaged.
    """
    following = next(chain.walk(reached), None)
    age = 0.0 if following is None else max(now - following.published, 0.0)
    return {BYTES: chain.size_after(reached), MILLISECONDS: int(age * 1000)}
