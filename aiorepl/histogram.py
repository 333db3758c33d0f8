"""Counts values in ranges, as Prometheus' histograms do. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """The number of observed values up to each bound, and their sum. It starts empty and only grows.

    :param bounds: the upper bounds of the ranges, inclusive and in increasing order; the last range has no bound.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound with the number of values up to it; the last bound is infinity."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), list(self._counts), strict=True):
            total += count
            yield bound, total

    def __repr__(self) -> str:
        return f"<Histogram of {self.count} values, sum {self.sum:g}>"
