"""Decides whether a pipeline is alive, and whether it is ready: whether it makes progress. Pure."""

from __future__ import annotations

from typing import Final

from aiorepl.lsn import LSN
from aiorepl.pipeline.statistics import PipelineState, PipelineStatistics

STALLED_SECONDS: Final = 60.0


def alive(state: PipelineState) -> bool:
    """Whether a restart of the process would not help."""
    return state not in (PipelineState.FAILED, PipelineState.STOPPED)


class Readiness:
    """Observes a pipeline, and says why it is not ready.

    :param stalled_seconds: a sink that lags is stalled if nothing more has become durable in it for so long.
    """

    def __init__(self, stalled_seconds: float = STALLED_SECONDS) -> None:
        self._stalled_seconds = stalled_seconds
        # For each sink that lags: what was durable, and since when it was that.
        self._lagging: dict[str, tuple[LSN, float]] = {}

    def observe(self, statistics: PipelineStatistics, now: float) -> None:
        """Remember how far the sinks are.

        :param now: seconds of a clock that is never set back.
        """
        for name, lag in statistics.lags.items():
            durable = statistics.sinks[name].durable
            if not lag.durable:
                self._lagging.pop(name, None)
            elif name not in self._lagging or self._lagging[name][0] != durable:
                self._lagging[name] = durable, now

    def problems(self, statistics: PipelineStatistics, now: float) -> list[str]:
        """List why the pipeline is not ready; empty if it is."""
        if statistics.state not in (PipelineState.RUNNING, PipelineState.DEGRADED):
            return [f"the pipeline is {statistics.state.value}"]
        problems = []
        if statistics.last_error is not None:
            problems.append(f"no connection to the source: {statistics.last_error}")
        for name, sink in statistics.sinks.items():
            if sink.failed is not None:
                problems.append(f"sink {name} has stopped: {sink.failed}")
        for name, (_, since) in self._lagging.items():
            if now - since >= self._stalled_seconds:
                problems.append(f"nothing has become durable in sink {name} for {now - since:.0f} s")
        return problems
