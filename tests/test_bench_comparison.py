"""The comparison of two commits: which differences exceed the noise."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.fixture(scope="module")
def comparison():
    spec = importlib.util.spec_from_file_location("bench_comparison", BENCH / "comparison.py")
    module = sys.modules["bench_comparison"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bench_comparison"]


def result(time=1.0, cpu=0.5, memory=50.0, **more):
    contestant = {"of_limit": [time], "cpu_microseconds_per_row": cpu, "peak_mib": memory}
    return {"workloads": {"narrow": {"contestants": {"typed": contestant}}}} | more


def compared(comparison, first, second):
    return {(each.where, each.metric): each for each in comparison.differences(first, second)}


def test_a_difference_in_every_round_is_larger_than_the_noise(comparison):
    found = compared(
        comparison, [result(1.0), result(1.4), result(1.2)], [result(1.1), result(1.5), result(1.3)]
    )
    time = found["narrow, typed", "time"]
    assert time.beyond_noise
    assert pytest.approx(1.3 / 1.2) == time.ratio
    assert not found["narrow, typed", "CPU"].beyond_noise


def test_rounds_that_disagree_are_noise(comparison):
    """The median is 10 % more, but one round has less."""
    found = compared(comparison, [result(1.0)] * 3, [result(1.1), result(1.1), result(0.99)])
    time = found["narrow, typed", "time"]
    assert (pytest.approx(1.1), False) == (time.ratio, time.beyond_noise)


def test_latency_is_relative_to_the_round_s_own_limit(comparison):
    def latency(ours, theirs):
        readers = {"aiorepl": {"p50": ours, "p99": ours}, "pg_recvlogical": {"p50": theirs, "p99": theirs}}
        return result(latency={"1000": readers})

    found = compared(
        comparison, [latency(2.0, 1.0), latency(4.0, 2.0)], [latency(3.0, 3.0), latency(5.0, 5.0)]
    )
    p50 = found["1,000 rows/s", "latency, p50"]
    assert ((0.5, 0.5), True) == (p50.ratios, p50.beyond_noise)


def test_a_workload_of_one_commit_only_is_left_out(comparison):
    found = compared(comparison, [result()] * 2, [result(), {"workloads": {}}])
    assert {} == found


def test_the_table_begins_with_the_largest_difference(comparison):
    lines = comparison.table(
        list(comparison.differences([result()] * 2, [result(1.01, 1.0), result(1.02, 1.1)]))
    ).splitlines()
    assert "| narrow, typed | CPU | 2.100 | 2.000 | 2.200 | more |" == lines[2]
    assert lines[3].startswith("| narrow, typed | time | 1.015")
    assert lines[4].endswith("|  |")
