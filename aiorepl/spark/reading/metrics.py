"""The metrics of streaming queries, for Prometheus and OpenTelemetry, and their lag. Pure.

Spark does not ask Python data sources for metrics, but reports their latest offset. So that offset contains the lag, under the
names that Spark's other sources use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from aiorepl.journal.chain import Chain
from aiorepl.lsn import LSN
from aiorepl.metrics import Metric, Sample


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """The state of a query, as of its last batch.

    :param name: the query's name in Spark, or else its id.
    :param position: the position up to which it has read; ``None`` before its first batch.
    :param end: the journal's end at the time of the last batch.
    :param batch: the number of the query's last batch.
    :param rows: the rows that this run has read.
    :param rows_per_second: the rate of the last batch.
    :param bytes_behind: the bytes of the segments after ``position``.
    :param seconds_behind: the age of the first of these segments.
    :param seconds: the duration of the last batch.
    :param running: whether the query is running.
    :param error: the error that ended the query, in one line.
    """

    name: str
    position: LSN | None = None
    end: LSN | None = None
    batch: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    bytes_behind: int = 0
    seconds_behind: float = 0.0
    seconds: float = 0.0
    running: bool = True
    error: str | None = None


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"aiorepl_spark_query_{name}", "gauge", text, ("query", *labels))


UP: Final = _gauge("up", "1 while the streaming query runs, 0 once it has ended.")
LSNS: Final = _gauge(
    "lsn", "Positions in the WAL: the end of the journal, and the end of the query's last batch.", "position"
)
LAG_BYTES: Final = _gauge("lag_bytes", "Bytes of the journal's segments that the query has not planned yet.")
LAG_SECONDS: Final = _gauge("lag_seconds", "The age of the first of these segments.")
BATCH: Final = _gauge("batch", "The number of the query's last batch.")
BATCH_SECONDS: Final = _gauge("batch_seconds", "The duration of the query's last batch.")
ROWS: Final = Metric(
    "aiorepl_spark_query_rows_total", "counter", "Rows that this run of the query has read.", ("query",)
)
METRICS: Final = (UP, LSNS, LAG_BYTES, LAG_SECONDS, BATCH, BATCH_SECONDS, ROWS)
"""The metrics of each streaming query."""


def samples(queries: Iterable[QueryStatistics]) -> Iterator[Sample]:
    """Convert statistics to samples. If several queries share a name, only a running one is included, or else the last."""
    by_name: dict[str, QueryStatistics] = {}
    for query in queries:
        if query.name not in by_name or query.running or not by_name[query.name].running:
            by_name[query.name] = query
    for name, query in by_name.items():
        yield UP, (name,), float(query.running)
        yield ROWS, (name,), float(query.rows)
        if query.position is None or query.end is None or query.batch is None:
            continue
        yield LSNS, (name, "journal"), float(query.end)
        yield LSNS, (name, "read"), float(query.position)
        yield LAG_BYTES, (name,), float(query.bytes_behind)
        yield LAG_SECONDS, (name,), query.seconds_behind
        yield BATCH, (name,), float(query.batch)
        yield BATCH_SECONDS, (name,), query.seconds


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
