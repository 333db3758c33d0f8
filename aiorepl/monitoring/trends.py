"""What the charts of a status page show: lags and rates of the last day, and when connections or queries began again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final

from aiorepl.monitoring.peaks import LEVELS, Peaks

MOST_MARKS: Final = 500
START: Final = "start"
RECONNECT: Final = "reconnect"
RESTART: Final = "restart"
_SERIES_IN_PART: Final = 8
_DAY: Final = max(step * count for step, count in LEVELS)


class Trends:
    """Observes a pipeline or a mirror about once a second."""

    def __init__(self) -> None:
        self._lags = Peaks()
        self._rates = Peaks()
        self._marks: deque[tuple[float, str]] = deque(maxlen=MOST_MARKS)
        self._counts: dict[str, int] = {}
        self._started = False

    def observe(
        self,
        now: float,
        lags: Mapping[str, int],
        rates: Mapping[str, float] | None = None,
        counts: Mapping[str, int] | None = None,
        uptime_seconds: float | None = None,
    ) -> None:
        """Record the present values.

        :param now: seconds since 1970, which never go back.
        :param lags: by name, in bytes.
        :param rates: by unit, per second; ``None`` if they are unknown.
        :param counts: by the kind of a mark, how often it has happened. If a count has grown, this moment gets a mark.
        :param uptime_seconds: the time since the start, which gets a mark; ``None`` before it.
        """
        self._lags.observe(now, lags)
        if rates is not None:
            self._rates.observe(now, {unit: ceil(rate) for unit, rate in rates.items()})
        if uptime_seconds is not None and not self._started:
            self._started = True
            self._marks.append((now - uptime_seconds, START))
        for kind, count in (counts or {}).items():
            if count > self._counts.get(kind, count):
                self._marks.append((now, kind))
            self._counts[kind] = count
        while self._marks and self._marks[0][0] < now - _DAY:
            self._marks.popleft()

    def recent_lags(self, name: str, count: int) -> list[int | None]:
        """Return the largest lags in the last ``count`` times ten seconds."""
        return self._lags.recent(name, count)

    def recent_rates(self, unit: str, count: int) -> list[int | None]:
        """Return the highest rates in the last ``count`` times ten seconds."""
        return self._rates.recent(unit, count)

    def marks(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Return the marks from this time on, in seconds since 1970."""
        return [{"time": at, "kind": kind} for at, kind in self._marks if at >= since]

    def parts(self) -> Iterator[dict[str, Any]]:
        """Yield all values in small parts, as ``Peaks.parts`` does. Each part has the kind ``lags`` or ``rates``."""
        for kind, peaks in (("lags", self._lags), ("rates", self._rates)):
            yield from ({"kind": kind, **part} for part in peaks.parts(_SERIES_IN_PART))

    def series(self, name: str) -> str:
        """Return the series that has the lags of this name."""
        return self._lags.stored(name)
