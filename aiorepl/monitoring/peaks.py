"""The largest values of some series over the last day, in a bounded number of bytes. Pure.

There are three levels, with steps of a second, ten seconds and two minutes. Each keeps the largest value of each step for its own time, so
a coarser level never loses a peak that a finer one had.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

LEVELS: Final = ((1, 300), (10, 360), (120, 720))
"""For each level: its step in seconds, and its number of steps. Together: five minutes, an hour and a day."""
LIMIT_BYTES: Final = 1024 * 1024
OTHERS: Final = "others"
"""The series with the largest value of all series that had no room."""
_UNKNOWN: Final = -1
_MOST: Final = 2**63 - 1


class Peaks:
    """Observes named values about once a second.

    :param limit_bytes: the limit of the stored values. Once the room for another series is gone, new names share the series ``others``.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._levels = [_Level(step, count) for step, count in LEVELS]
        self._most_series = max(limit_bytes // sum(8 * count for _, count in LEVELS), 1)
        self._names: set[str] = set()

    @property
    def bytes(self) -> int:
        """The size of the stored values."""
        return sum(8 * level.count * len(level.series) for level in self._levels)

    def observe(self, now: float, values: Mapping[str, int]) -> None:
        """Record values, none of which is negative.

        :param now: seconds since 1970, which never go back.
        """
        kept: dict[str, int] = {}
        for name, value in values.items():
            stored = self._store(name)
            kept[stored] = max(kept.get(stored, 0), min(value, _MOST))
        for level in self._levels:
            level.observe(int(now // level.step), kept)

    def recent(self, name: str, count: int, level: int = 1) -> list[int | None]:
        """Return the largest values of the last ``count`` steps of a level, the oldest first; ``None`` where nothing was observed."""
        found, stored = self._levels[level], self.stored(name)
        return found.read(stored, count) if stored in found.series else [None] * count

    def parts(self, most: int) -> Iterator[dict[str, Any]]:
        """Yield the levels in parts of at most ``most`` series. A part has the number of the level, its step in seconds, its number of
        steps, the number of its last step, and the values by series.

        Step ``n`` begins ``n * step`` seconds after 1970. The last value of a series is that of the last step.
        """
        for number, level in enumerate(self._levels):
            names = list(level.series)
            for begin in range(0, max(len(names), 1), most):
                yield {"level": number, **level.describe(names[begin : begin + most])}

    def stored(self, name: str) -> str:
        """Return the series that has the values of a name: its own, or ``others``."""
        return name if name in self._names else OTHERS

    def _store(self, name: str) -> str:
        if name in self._names:
            return name
        # The last series is ``others``, for all further names.
        if len(self._names) >= self._most_series - 1:
            name = OTHERS
        self._names.add(name)
        return name


class _Level:
    """Rings of the largest values of each step. The value of step n has the index n modulo ``count``."""

    def __init__(self, step: int, count: int) -> None:
        self.step = step
        self.count = count
        self.series: dict[str, array[int]] = {}
        self._last: int | None = None

    def observe(self, index: int, values: Mapping[str, int]) -> None:
        last = index if self._last is None else self._last
        self._forget(range(max(last + 1, index - self.count + 1), index + 1))
        self._last = index
        for name, value in values.items():
            ring = self.series.setdefault(name, array("q", [_UNKNOWN]) * self.count)
            ring[index % self.count] = max(ring[index % self.count], value)

    def read(self, name: str, count: int) -> list[int | None]:
        ring, last = self.series[name], self._last or 0
        found = (ring[each % self.count] for each in range(last - count + 1, last + 1))
        return [None if value == _UNKNOWN else value for value in found]

    def describe(self, names: Iterable[str]) -> dict[str, Any]:
        values = {name: self.read(name, self.count) for name in names}
        known = max((_known(each) for each in values.values()), default=0)
        return {
            "step": self.step,
            "count": self.count,
            "last": self._last,
            "values": {name: each[len(each) - known :] for name, each in values.items()},
        }

    def _forget(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            for ring in self.series.values():
                ring[index % self.count] = _UNKNOWN


def _known(values: list[int | None]) -> int:
    """Return how many values there are from the first known one on."""
    return next((len(values) - index for index, value in enumerate(values) if value is not None), 0)
