"""A timeout of the fault suite ends work that makes no progress, but not slow work."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.chaos.stall_timeout import Budget, slowdown, stall_timeout


def test_progress_restarts_the_timeout():
    """Work with progress never times out, however long it takes."""
    budget = Budget(10)

    assert all(budget.spend(9, 1.0, sign) for sign in range(1000))
    assert budget.spend(9, 1.0, 999)
    assert not budget.spend(1, 1.0, 999)


def test_load_extends_the_timeout():
    """With a load of four per processor, a timeout of 10 seconds becomes 40 seconds."""
    budget = Budget(10)

    assert all(budget.spend(1, 4.0, None) for _ in range(40))
    assert not budget.spend(1, 4.0, None)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("0.10 0.50 0.70 1/320 4711", 1.0),
        ("9.00 1.00 1.00 1/320 4711", 4.5),
        ("0.10 0.50 0.70 14/320 4711", 7.0),
    ],
)
def test_slowdown(load, expected):
    """The load average and the runnable threads both count, and a slowdown is at least 1."""
    assert expected == slowdown(load, 2)


async def test_stalled_work_is_cancelled():
    """A block that waits for an event that nobody sets raises TimeoutError."""
    with pytest.raises(TimeoutError):
        async with stall_timeout(0.02, pause=0.001):
            await asyncio.Event().wait()


async def test_work_with_progress_is_not_cancelled():
    """A block whose state changes at each check may take longer than its timeout."""
    seen: list[int] = []
    done = asyncio.Event()

    def sign() -> int:
        seen.append(len(seen))
        if len(seen) > 100:
            done.set()
        return len(seen)

    async with stall_timeout(0.004, sign, pause=0.001):
        await done.wait()


def test_no_absolute_timeout_makes_a_violation():
    """The suite reports violations only after ``stall_timeout``, never after an absolute timeout."""
    absolute = {
        path.name: len(re.findall(r"asyncio\.timeout\((?!None)|asyncio\.wait_for\(", path.read_text()))
        for path in Path(__file__).parent.glob("*.py")
        if not path.name.startswith("test_")
    }

    # Absolute timeouts that report no violation.
    allowed = {"rounds.py": 1, "starter.py": 1, "cluster.py": 1, "strikes.py": 1}
    assert allowed == {name: count for name, count in absolute.items() if count}
