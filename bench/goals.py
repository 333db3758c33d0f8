"""The goals, and whether a run of the suite has reached them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# Ratios to pg_recvlogical's time from the beginning of the stream, by contestant.
TIMES: Final = {"typed": 1.05, "tail": 1.15, "jsonl": 1.15, "journal": 1.05}
CPU_OF_WALSENDER: Final = 0.5
# A walsender that is read in large portions needs up to half as much CPU: so both its CPU for pg_recvlogical and its own.
_WALSENDERS: Final = {
    "the walsender's under the limit": "cpu_of_limits_walsender",
    "its own walsender's": "cpu_of_walsender",
}
PEAK_MIB: Final = 130.0
LATENCY_ADDED_MS: Final = 20.0
QUIET_PERCENT: Final = 5.0
QUIET_PIPELINES: Final = 200


@dataclass(frozen=True)
class Goal:
    """A number and its upper limit."""

    name: str
    where: str
    found: float
    most: float

    @property
    def reached(self) -> bool:
        """Whether the number is within the limit."""
        return self.found <= self.most


def goals(results: Mapping[str, Any]) -> list[Goal]:
    """Yield the goals that these results cover."""
    found: list[Goal] = []
    for workload, each in results["workloads"].items():
        found += _of_workload(workload, each["contestants"])
    for rate, readers in results.get("latency", {}).items():
        added = readers["aiorepl"]["p99"] - readers["pg_recvlogical"]["p99"]
        found.append(
            Goal("p99 from commit to sink, ms more", f"{int(rate):,} rows/s", added, LATENCY_ADDED_MS)
        )
    if (standing := results.get("standing")) is not None:
        quiet = standing["idle_cpu_percent"] * QUIET_PIPELINES / standing["pipelines"]
        found.append(Goal("quiet pipelines, % of a core", f"{QUIET_PIPELINES}", quiet, QUIET_PERCENT))
    return found


def _of_workload(workload: str, contestants: Mapping[str, Any]) -> Iterator[Goal]:
    for name, most in TIMES.items():
        if name in contestants:
            ratio = statistics.median(contestants[name]["of_limit"])
            yield Goal(f"{name}, time of the limit's", workload, ratio, most)
    if (typed := contestants.get("typed")) is not None:
        for name, key in _WALSENDERS.items():
            if shares := typed[key]:
                yield Goal(f"typed, CPU of {name}", workload, statistics.median(shares), CPU_OF_WALSENDER)
    peaks = [contestants[name]["peak_mib"] for name in ("null", *TIMES) if name in contestants]
    if peaks:
        yield Goal("memory at its peak, MiB", workload, max(peaks), PEAK_MIB)
