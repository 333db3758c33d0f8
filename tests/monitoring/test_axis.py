"""The time axis of the charts. Pure."""

from __future__ import annotations

from aiorepl.monitoring.axis import Axis

NOON = 1_800_000_000


class Clocks:
    """The two clocks of a machine."""

    monotonic, wall = 50.0, float(NOON)

    def axis(self) -> Axis:
        """An axis of these clocks."""
        return Axis(lambda: self.monotonic, lambda: self.wall)

    def run(self, seconds: float, jump: float = 0.0) -> None:
        """Let time pass; the machine's clock also jumps."""
        self.monotonic += seconds
        self.wall += seconds + jump


def test_a_clock_that_is_set():
    """Set forward, or after a sleep, the axis follows; set back, it goes on, and the skew has the difference."""
    clocks = Clocks()
    axis = clocks.axis()
    assert (NOON, 0.0) == (axis.now(), axis.skew())
    clocks.run(10, jump=-3600)
    assert (NOON + 10, -3600.0) == (axis.now(), axis.skew())
    clocks.run(10, jump=600)
    assert (NOON + 20, -3000.0) == (axis.now(), axis.skew())
    clocks.run(10, jump=4000)
    assert (NOON + 1030, 0.0) == (axis.now(), axis.skew())
