"""A lake has the rows of the source, however its batches are interrupted and applied again; ``interruptions`` runs more seeds."""

from __future__ import annotations

import pytest

from .interruptions import Run

pytestmark = pytest.mark.by_day


@pytest.mark.parametrize("seed", [105, 111, 112, 113])
def test_interruptions(tmp_path, seed) -> None:
    """The rows are equal to those of the source, and to those of a mirror that applied the whole journal in one batch."""
    Run(tmp_path, seed, "delta").run()
