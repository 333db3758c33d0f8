"""A mirror that ends at a named point, and whose checkpoint then lacks a part, has the rows of the source after a restart."""

from __future__ import annotations

import pytest

from .kill_points import Round

pytestmark = pytest.mark.xdist_group("spark")


def test_a_short_round(spark, tmp_path) -> None:
    """One of the points; ``python -m tests.spark.kill_points`` has all of them."""
    here = Round(spark, tmp_path, 3)
    here.strike("between two tables' commits", "commits and offsets")
