"""Decides whether a pipeline is alive, and whether it is ready, which means that it makes progress. Pure."""

from __future__ import annotations

from typing import Final

from aiorepl.lsn import LSN
from aiorepl.pipeline.statistics import PipelineState, PipelineStatistics

STALLED_SECONDS: Final = 60.0


def alive(state: PipelineState) -> bool:
    """Whether the pipeline has not ended; otherwise the process should be restarted."""
    return state not in (PipelineState.FAILED, PipelineState.STOPPED)


class Readiness:
    """Observes a pipeline, and lists the reasons why it is not ready.

    :param stalled_seconds: a lagging sink is stalled if it has made nothing durable for this time.
    """

    def __init__(self, stalled_seconds: float = STALLED_SECONDS) -> None:
        self._stalled_seconds = stalled_seconds
        # For each sink that lags: its durable position, and the time at which it reached this position.
        self._lagging: dict[str, tuple[LSN, float]] = {}

    def observe(self, statistics: PipelineStatistics, now: float) -> None:
        """Record the sinks' durable positions.

        :param now: seconds of a monotonic clock.
        """
        for name, lag in statistics.lags.items():
            durable = statistics.sinks[name].durable
            if not lag.durable:
                self._lagging.pop(name, None)
            elif name not in self._lagging or self._lagging[name][0] != durable:
                self._lagging[name] = durable, now

    def problems(self, statistics: PipelineStatistics, now: float) -> list[str]:
        """List the reasons why the pipeline is not ready; empty if it is ready."""
        if statistics.state not in (PipelineState.RUNNING, PipelineState.DEGRADED):
            waits = "" if statistics.waiting_for is None else f", and waits for {statistics.waiting_for}"
            return [f"the pipeline is {statistics.state.value}{waits}"]
        problems = []
        if statistics.last_error is not None:
            problems.append(f"no connection to the source: {statistics.last_error}")
        for name, sink in statistics.sinks.items():
            if sink.failed is not None:
                problems.append(f"sink {name} has stopped: {sink.failed}")
        for name, (_, since) in self._lagging.items():
            if statistics.sinks[name].failed is None and now - since >= self._stalled_seconds:
                problems.append(f"nothing has become durable in sink {name} for {now - since:.0f} s")
        return problems
