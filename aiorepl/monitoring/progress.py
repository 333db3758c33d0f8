"""Decides whether a pipeline is alive, and whether it is ready, which means that it makes progress. Pure."""

from __future__ import annotations

from typing import Final

from aiorepl.lsn import LSN
from aiorepl.monitoring.watch import SlotStatus
from aiorepl.pipeline.statistics import PipelineState, PipelineStatistics

STALLED_SECONDS: Final = 60.0
_ENDANGERED: Final = (
    "the server's next checkpoint removes WAL that the slot still needs, and then the slot is lost: raise max_slot_wal_keep_size on the "
    "server, or make the sinks catch up before it"
)
_LOST: Final = "the slot is lost: the server has removed WAL that it needs; start with a new slot and resnapshot=True (--resnapshot)"


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
        for name in self._lagging.keys() - statistics.lags.keys():
            del self._lagging[name]
        for name, lag in statistics.lags.items():
            durable = statistics.sinks[name].durable
            if not lag.durable or statistics.sinks[name].paused:
                self._lagging.pop(name, None)
            elif name not in self._lagging or self._lagging[name][0] != durable:
                self._lagging[name] = durable, now

    def problems(
        self, statistics: PipelineStatistics, now: float, slot: SlotStatus | None = None
    ) -> list[str]:
        """List the reasons why the pipeline is not ready; empty if it is ready."""
        lost = [_LOST] if slot is not None and slot.wal_status == "lost" else []
        if statistics.state not in (PipelineState.RUNNING, PipelineState.DEGRADED):
            waits = "" if statistics.waiting_for is None else f", and waits for {statistics.waiting_for}"
            return [f"the pipeline is {statistics.state.value}{waits}", *lost]
        problems = []
        if statistics.last_error is not None:
            problems.append(f"no connection to the source: {statistics.last_error}")
        for name, sink in statistics.sinks.items():
            if sink.failed is not None:
                problems.append(f"sink {name} has stopped: {sink.failed}")
        for name, (_, since) in self._lagging.items():
            if (
                name in statistics.sinks
                and statistics.sinks[name].failed is None
                and now - since >= self._stalled_seconds
            ):
                problems.append(f"nothing has become durable in sink {name} for {now - since:.0f} s")
        return problems + lost

    def warnings(
        self, statistics: PipelineStatistics, now: float, slot: SlotStatus | None = None
    ) -> list[str]:
        """List what may become a problem: calls that are repeated or wait, and a slot that is about to be lost."""
        found = [_ENDANGERED] if slot is not None and slot.wal_status == "unreserved" else []
        if statistics.slot_losses:
            found.append(
                f"losses of the slot within the last 24 hours, after which all tables were read again: {statistics.slot_losses}"
            )
        if not alive(statistics.state):
            return found
        for name, sink in statistics.sinks.items():
            if sink.retrying is not None and sink.failed is None:
                seconds = 0.0 if sink.next_attempt is None else sink.next_attempt - now
                when = (
                    f"the next attempt is in {seconds:.0f} s" if seconds >= 1 else "the next attempt begins"
                )
                found.append(f"sink {name} repeats a call, and {when}: {sink.retrying}")
            elif sink.waiting_for is not None:
                found.append(f"sink {name} waits for {sink.waiting_for}")
        return found
