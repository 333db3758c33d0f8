"""The largest values of the last day. Pure."""

from __future__ import annotations

import random

from aiorepl.monitoring.peaks import LEVELS, LIMIT_BYTES, OTHERS, Peaks

NOON = 1_800_000_000
STEPS = [step for step, _ in LEVELS]
SPANS = [step * count for step, count in LEVELS]


def largest(peaks: Peaks, name: str, level: int) -> int:
    """The largest value that a level still has."""
    return max(value for value in peaks.describe()[level]["values"][name] if value is not None)


def test_levels():
    """There are five minutes in steps of a second, an hour in steps of ten, and a day in steps of two minutes."""
    assert [300, 3600, 86400] == SPANS
    peaks = Peaks()
    for second in range(90_000):
        peaks.observe(NOON + second, {"s": second})
    described = peaks.describe()
    assert [count for _, count in LEVELS] == [len(each["values"]["s"]) for each in described]
    end = 89_999
    for each, step in zip(described, STEPS, strict=True):
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
    values = peaks.describe()[0]["values"]
    assert 0 == values["sink 0"][-1]
    assert 999 == values[OTHERS][-1] == peaks.recent("sink 500", 1, level=0)[0]
    assert OTHERS in values
    assert "sink 999" not in values


def test_a_clock_that_is_set_back():
    """Nothing is in the future then, and no peak is lost."""
    peaks = Peaks()
    peaks.observe(NOON, {"s": 1})
    peaks.observe(NOON + 250, {"s": 7})
    peaks.observe(NOON + 130, {"s": 2})
    for each, step in zip(peaks.describe(), STEPS, strict=True):
        assert each["last"] == (NOON + 130) // step
        assert 7 == each["values"]["s"][-1]
    peaks.observe(NOON - 10**6, {"s": 3})
    assert [7, 7, 7] == [each["values"]["s"][-1] for each in peaks.describe()]


def test_a_pause():
    """Steps without an observation have no value; after a pause that is longer than a level, nothing of it is left."""
    peaks = Peaks()
    peaks.observe(NOON, {"s": 5})
    peaks.observe(NOON + 3, {"s": 6})
    assert [5, None, None, 6] == peaks.describe()[0]["values"]["s"]
    assert [None, 6] == peaks.recent("s", 2)
    assert [None] * 2 == peaks.recent("t", 2)
    peaks.observe(NOON + 10**6, {"s": 8})
    assert [[8]] * 3 == [each["values"]["s"] for each in peaks.describe()]


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
        for each, (step, count) in zip(peaks.describe(), LEVELS, strict=True):
            expected: dict[int, int] = {}
            for at, value in seen:
                expected[int(at // step)] = max(value, expected.get(int(at // step), 0))
            last = int(now // step)
            wanted = [expected.get(index) for index in range(last - count + 1, last + 1)]
            found = each["values"]["s"]
            assert wanted == [None] * (count - len(found)) + found
