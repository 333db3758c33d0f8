"""Rows and bytes per second, the age of the last change, and when snapshots end, from observations of a pipeline. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from aiorepl.pipeline.statistics import PipelineStatistics

_NOW_SECONDS: Final = 5.0
_MINUTE: Final = 60.0


class _Seen(NamedTuple):
    """The counters at one time."""

    at: float
    rows: int
    bytes: int
    done: float


class Rates:
    """Observes a pipeline's counters about once a second. Rows of snapshots count, too."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque()
        self._changed: float | None = None

    def observe(self, statistics: PipelineStatistics, now: float) -> None:
        """Record the counters.

        :param now: seconds of a monotonic clock.
        """
        snapshot = statistics.snapshot
        kinds = [kind for table in statistics.tables for kind in table.kinds()]
        seen = _Seen(
            now,
            sum(rows for _, rows, _ in kinds) + (snapshot.rows if snapshot is not None else 0),
            sum(size for _, _, size in kinds) + (snapshot.bytes if snapshot is not None else 0),
            snapshot.done if snapshot is not None and snapshot.active else 1.0,
        )
        # What came before the first observation has no known time.
        if self._seen and seen.rows != self._seen[-1].rows:
            self._changed = now
        self._seen.append(seen)
        while len(self._seen) > 2 and self._seen[1].at <= now - _MINUTE:
            self._seen.popleft()

    def describe(self, now: float) -> dict[str, Any]:
        """Return the rates over the last seconds and the last minute, the age of the last change, and the rest of snapshots in seconds.

        A value is ``None`` while it is unknown.
        """
        return {
            "now": self._rate(now - _NOW_SECONDS),
            "minute": self._rate(now - _MINUTE),
            "change_seconds": None if self._changed is None else max(now - self._changed, 0.0),
            "snapshot_seconds": self._remaining(),
        }

    def _rate(self, since: float) -> dict[str, float] | None:
        if len(self._seen) < 2:
            return None
        last = self._seen[-1]
        if last.at < since:
            return None  # nothing is observed any more, as after the pipeline's end
        first = next((seen for seen in self._seen if seen.at >= since), last)
        if first is last:
            first = self._seen[-2]
        seconds = last.at - first.at
        # Each snapshot resets its counters, so a difference may be negative.
        return {
            "rows": max(last.rows - first.rows, 0) / seconds,
            "bytes": max(last.bytes - first.bytes, 0) / seconds,
        }

    def _remaining(self) -> float | None:
        """The seconds until all tables are read, if they go on as in the last minute."""
        if len(self._seen) < 2 or self._seen[-1].done >= 1.0:
            return None
        first = next((seen for seen in self._seen if seen.done < 1.0), self._seen[-1])
        last = self._seen[-1]
        progress = last.done - first.done
        return (1.0 - last.done) * (last.at - first.at) / progress if progress > 0 else None
