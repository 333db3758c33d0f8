"""``QueryListener``: the state of each streaming query of a session, for metrics and for programs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.metrics import Sample
from aiorepl.spark.reading.metrics import BYTES, METRICS, MILLISECONDS, QueryStatistics, samples

# Spark passes on the errors of the planning process as text.
_RAISED: Final = re.compile(r"aiorepl\.errors\.(\w+: .*)")
_CONDITION: Final = re.compile(r"\s*\[([A-Z][A-Z0-9_.]*)\]")

_log = logger("aiorepl.spark")


class QueryListener(StreamingQueryListener):
    """Collects the statistics of the queries that read journals: ``spark.streams.addListener(listener)``.

    ``aiorepl.monitoring.PrometheusCollector(listener)`` and ``aiorepl.monitoring.observe(meter, listener)`` export them.
    """

    metrics = METRICS

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryStatistics] = {}

    def statistics(self) -> Mapping[str, QueryStatistics]:
        """Return the state of each query, by its id. Thread-safe."""
        with self._lock:
            return dict(self._queries)

    def samples(self) -> Iterator[Sample]:
        """Return the metrics of the queries, as exporters read them. Thread-safe."""
        return samples(self.statistics().values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - pyspark's names
        """Record the start of a new run."""
        query = str(event.id)
        with self._lock:
            self._queries[query] = QueryStatistics(event.name or query)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Record the report of a batch."""
        progress = event.progress
        sources = [
            found for source in progress.sources if (found := _source(source.endOffset, source.latestOffset))
        ]
        query = str(progress.id)
        with self._lock:
            known = self._queries.get(query, QueryStatistics(progress.name or query))
            read = min(sources, key=lambda each: each["position"], default=None)
            self._queries[query] = replace(
                known,
                batch=progress.batchId,
                rows=known.rows + progress.numInputRows,
                rows_per_second=progress.processedRowsPerSecond,
                seconds=progress.batchDuration / 1000,
                **(read or {}),
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Record that a query has read everything."""
        with self._lock:
            if (known := self._queries.get(str(event.id))) is not None:
                self._queries[str(event.id)] = replace(known, bytes_behind=0, seconds_behind=0.0)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Record why a query has ended."""
        query = str(event.id)
        error = None if event.exception is None else _reason(event.exception)
        with self._lock:
            known = self._queries.get(query, QueryStatistics(query))
            self._queries[query] = replace(known, running=False, error=error)
        if error is not None:
            _log.warning("the query %s has ended: %s", known.name, error)


def _reason(text: str) -> str:
    """Return the text of aiorepl's error. Other errors may quote values: return their class and Spark's error condition."""
    found = _RAISED.search(text)
    if found:
        return found[1].strip()
    kind, _, rest = text.strip().partition(":")
    condition = _CONDITION.match(rest)
    return f"{kind.partition(chr(10))[0]}: {condition[1]}" if condition else kind.partition("\n")[0]


def _source(end: str | None, latest: str | None) -> dict[str, Any] | None:
    """Parse a source's offsets; ``None`` if the source is not a journal."""
    try:
        reached, newest = json.loads(end or ""), json.loads(latest or "")
        return {
            "position": LSN.parse(reached["lsn"]),
            "end": LSN.parse(newest["lsn"]),
            "bytes_behind": int(newest[BYTES]),
            "seconds_behind": newest[MILLISECONDS] / 1000,
        }
    except (ValueError, KeyError, TypeError):
        return None
