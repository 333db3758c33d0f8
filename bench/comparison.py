"""Compares the results of two commits that were measured alternately. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# The probability that all rounds agree by chance is 2 ** (1 - rounds) for each metric: 1.6 % for seven rounds.
ROUNDS: Final = 7
_OF_CONTESTANT: Final = {"of_limit": "time", "cpu_microseconds_per_row": "CPU", "peak_mib": "memory"}


@dataclass(frozen=True)
class Difference:
    """A metric of the second commit relative to the first, in each round.

    :param where: the workload and the contestant.
    :param metric: ``time``, ``CPU``, ``memory`` or a latency. For each metric, less is better.
    :param ratios: the second commit's value divided by the first's, for each round.
    """

    where: str
    metric: str
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def beyond_noise(self) -> bool:
        """Whether the ratio is above 1 in every round, or below 1 in every round."""
        return min(self.ratios) > 1 or max(self.ratios) < 1


def differences(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:
    """Yield a difference for each metric that all results have.

    :param first: the results of the suite for the first commit, one for each round.
    :param second: the results of the suite for the second commit, in the same order.
    """
    pairs = [
        (dict(_metrics(ours)), dict(_metrics(theirs))) for ours, theirs in zip(first, second, strict=True)
    ]
    for where, metric in pairs[0][0]:
        key = where, metric
        if all(key in each and each[key] > 0 for pair in pairs for each in pair):
            yield Difference(where, metric, tuple(theirs[key] / ours[key] for ours, theirs in pairs))


def _metrics(results: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    for workload, found in results["workloads"].items():
        for name, each in found["contestants"].items():
            for key, metric in _OF_CONTESTANT.items():
                value = each[key]
                yield (
                    (f"{workload}, {name}", metric),
                    statistics.median(value) if isinstance(value, list) else value,
                )
    for rate, readers in results.get("latency", {}).items():
        for part in ("p50", "p99"):
            # The machine's noise affects both readers, so the metric is the ratio of aiorepl's latency to pg_recvlogical's.
            ratio = readers["aiorepl"][part] / readers["pg_recvlogical"][part]
            yield (f"{int(rate):,} rows/s", f"latency, {part}"), ratio


def table(found: Sequence[Difference]) -> str:
    """Return all differences as a Markdown table. Differences beyond the noise come first, each group in order of size."""
    ordered = sorted(found, key=lambda each: (not each.beyond_noise, -abs(each.ratio - 1)))
    lines = [
        "| where | metric | B / A | rounds from | to | beyond the noise |",
        "|---|---|---:|---:|---:|---|",
    ]
    for each in ordered:
        verdict = ("more" if each.ratio > 1 else "less") if each.beyond_noise else ""
        numbers = " | ".join(f"{ratio:.3f}" for ratio in (each.ratio, min(each.ratios), max(each.ratios)))
        lines.append(f"| {each.where} | {each.metric} | {numbers} | {verdict} |")
    return "\n".join(lines)
