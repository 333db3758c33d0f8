"""A time limit of the fault suite ends work that stands still, and no work that is slow."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.chaos.standstill import Budget, slowdown, standstill


def test_progress_begins_the_time_again():
    """Work that goes on never exceeds its limit, however long it takes."""
    budget = Budget(10)

    assert all(budget.spend(9, 1.0, sign) for sign in range(1000))
    assert budget.spend(9, 1.0, 999)
    assert not budget.spend(1, 1.0, 999)


def test_other_work_makes_the_time_longer():
    """With four times as much work as processors, 10 seconds are 40."""
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
def test_the_load_of_a_machine(load, expected):
    """Both the last minute and this moment tell of other work, and less work than processors makes nothing faster."""
    assert expected == slowdown(load, 2)


async def test_work_that_stands_still_is_ended():
    """A block that waits for an event that never comes ends with an error."""
    with pytest.raises(TimeoutError):
        async with standstill(0.02, pause=0.001):
            await asyncio.Event().wait()


async def test_work_that_goes_on_is_not_ended():
    """A block whose state changes at each look may take longer than its limit."""
    seen: list[int] = []
    done = asyncio.Event()

    def sign() -> int:
        seen.append(len(seen))
        if len(seen) > 100:
            done.set()
        return len(seen)

    async with standstill(0.004, sign, pause=0.001):
        await done.wait()


def test_no_other_limit_makes_a_violation():
    """The suite has no absolute limit: each file that gives up waits by standstill."""
    absolute = {
        path.name: len(re.findall(r"asyncio\.timeout\((?!None)|asyncio\.wait_for\(", path.read_text()))
        for path in Path(__file__).parent.glob("*.py")
        if not path.name.startswith("test_")
    }

    # Broker's reads that are tried again; the reading of tables that the writers do not outlast; a second pipeline's life; a slot's
    # synchronization, and a commit that may begin to wait: none of them is a violation.
    allowed = {"kafka_broker.py": 2, "rounds.py": 1, "starter.py": 1, "cluster.py": 1, "strikes.py": 1}
    assert allowed == {name: count for name, count in absolute.items() if count}
