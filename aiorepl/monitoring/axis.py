"""The time axis of the charts: it never goes back, although the machine's clock may be set back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Axis:
    """A clock in seconds since 1970 that never goes back.

    If the machine's clock is set forward, the axis follows, also after the machine has slept. If the machine's clock is set back, the
    axis continues, and ``skew`` is the difference.

    :param monotonic: a clock that is never set.
    :param wall: the machine's clock.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._offset = -math.inf

    def now(self) -> float:
        """Return the present time of the axis."""
        monotonic = self._monotonic()
        self._offset = max(self._offset, self._wall() - monotonic)
        return monotonic + self._offset

    def skew(self) -> float:
        """Return the seconds to add to a time of the axis for the time of day; 0 or negative."""
        now = self.now()
        return min(self._wall() - now, 0.0)
