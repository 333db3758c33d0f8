"""Ranges of keys: rows of one key are in one range, and ranges have about equal numbers of rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from aiorepl.spark.mirroring.shuffle import Ranges, sample

COUNT, ROWS = 8, 20_000


def placed(values: pa.Array) -> list[tuple[int, int]]:
    """Divide a column that two files have, and return for each value its first and its last range."""
    half = len(values) // 2
    first, count = Ranges.of(map(sample, [values[:half], values[half:]]), COUNT).places(values)
    return [(one, one + more - 1) for one, more in zip(first.to_pylist(), count.to_pylist(), strict=True)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.decimal128(38, 0)])
def test_ranges_are_ordered_and_even(kind) -> None:
    """A range has the values between two bounds, and about as many rows as each of the others."""
    values = pa.array(random.Random(1).sample(range(100_000, 100_000 + 3 * ROWS), ROWS)).cast(kind)
    found = placed(values)

    by_value = [place for _, place in sorted(zip(values.to_pylist(), found, strict=True))]
    assert by_value == sorted(by_value)
    sizes = [sum(first == number for first, _ in found) for number in range(COUNT)]
    assert max(sizes) < 1.3 * ROWS / COUNT


def test_a_frequent_value_has_several_ranges() -> None:
    """A value with half of the rows is divided among half of the ranges, and the others keep theirs."""
    values = [7] * (ROWS // 2) + [8 + number for number in range(ROWS // 2)]
    random.Random(1).shuffle(values)
    found = dict(zip(values, placed(pa.array(values)), strict=True))

    assert found[7][0] == 0
    assert found[7][1] in (COUNT // 2 - 1, COUNT // 2)
    assert found[8 + ROWS // 2 - 1] == (COUNT - 1, COUNT - 1)


@pytest.mark.parametrize("kind", [pa.int32(), pa.list_(pa.int32()), pa.month_day_nano_interval()])
def test_without_an_order(kind) -> None:
    """A column without values, or of a type without an order, has one range."""
    assert set(placed(pa.nulls(10, kind))) == {(0, 0)}
