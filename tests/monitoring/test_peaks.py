"""The largest values of the last day. Pure."""

from __future__ import annotations

import random
from typing import Any

from aiorepl.monitoring.peaks import LEVELS, LIMIT_BYTES, OTHERS, Peaks

NOON = 1_800_000_000
STEPS = [step for step, _ in LEVELS]
SPANS = [step * count for step, count in LEVELS]


def described(peaks: Peaks) -> list[dict[str, Any]]:
    """All levels."""
    return list(peaks.parts(10**6))


def largest(peaks: Peaks, name: str, level: int) -> int:
    """The largest value that a level still has."""
    return max(value for value in described(peaks)[level]["values"][name] if value is not None)


def test_levels():
    """There are five minutes in steps of a second, an hour in steps of ten, and a day in steps of two minutes."""
    assert [300, 3600, 86400] == SPANS
    peaks = Peaks()
    for second in range(90_000):
        peaks.observe(NOON + second, {"s": second})
    levels = described(peaks)
    assert [count for _, count in LEVELS] == [len(each["values"]["s"]) for each in levels]
    end = 89_999
    for each, step in zip(levels, STEPS, strict=True):
        assert each["last"] == (NOON + end) // step
        # The last value of each complete step is its largest one.
        starts = [(each["last"] - back) * step - NOON for back in range(1, 10)]
        assert [start + step - 1 for start in starts] == each["values"]["s"][-2:-11:-1]


def test_a_peak_of_one_second():
    """A peak is on each level until the level's time is over, and then on the next one."""
    peaks = Peaks()
    peaks.observe(NOON, {"s": 1_000_000})
    passed = 1
    for level, span in enumerate(SPANS):
        while passed < span - STEPS[level]:
            peaks.observe(NOON + passed, {"s": 1})
            assert 1_000_000 == largest(peaks, "s", level)
            passed += 30
        while passed <= span + STEPS[level]:
            peaks.observe(NOON + passed, {"s": 1})
            passed += 1
        assert 1 == largest(peaks, "s", level)


def test_bounded_in_bytes():
    """More series than there is room for share one, which has the largest of their values."""
    peaks = Peaks()
    names = [f"sink {number}" for number in range(1000)]
    for second in range(0, 2 * 86400, 600):
        peaks.observe(NOON + second, {name: number for number, name in enumerate(names)})
        assert peaks.bytes <= LIMIT_BYTES
    assert peaks.bytes > LIMIT_BYTES * 0.9
    values = described(peaks)[0]["values"]
    assert 0 == values["sink 0"][-1]
    assert 999 == values[OTHERS][-1] == peaks.recent("sink 500", 1, level=0)[0]
    assert OTHERS in values
    assert "sink 999" not in values


def test_parts():
    """A part has a few series of one level; together they have everything."""
    peaks = Peaks()
    peaks.observe(NOON, {f"s{number}": number for number in range(20)})
    parts = list(peaks.parts(8))
    assert [(level, size) for level in range(3) for size in (8, 8, 4)] == [
        (part["level"], len(part["values"])) for part in parts
    ]
    assert {f"s{number}": [number] for number in range(20)} == {
        name: values for part in parts[:3] for name, values in part["values"].items()
    }
    assert 3 == len(list(Peaks().parts(8)))


def test_a_pause():
    """Steps without an observation have no value; after a pause that is longer than a level, nothing of it is left."""
    peaks = Peaks()
    peaks.observe(NOON, {"s": 5})
    peaks.observe(NOON + 3, {"s": 6})
    assert [5, None, None, 6] == described(peaks)[0]["values"]["s"]
    assert [None, 6] == peaks.recent("s", 2)
    assert [None] * 2 == peaks.recent("t", 2)
    peaks.observe(NOON + 10**6, {"s": 8})
    assert [[8]] * 3 == [each["values"]["s"] for each in described(peaks)]


def test_against_a_list():
    """Whatever the clock does except going back, each level has the largest values of a list of all observations."""
    for seed in range(20):
        chance = random.Random(seed)
        peaks, seen, now = Peaks(), [], float(NOON)
        for _ in range(chance.randrange(1, 400)):
            now += chance.choice([0.2, 1.0, 1.0, 1.01, 3.0, 400.0, 5000.0])
            value = chance.randrange(2**40)
            peaks.observe(now, {"s": value})
            seen.append((now, value))
        for each, (step, count) in zip(described(peaks), LEVELS, strict=True):
            expected: dict[int, int] = {}
            for at, value in seen:
                expected[int(at // step)] = max(value, expected.get(int(at // step), 0))
            last = int(now // step)
            wanted = [expected.get(index) for index in range(last - count + 1, last + 1)]
            found = each["values"]["s"]
            assert wanted == [None] * (count - len(found)) + found
