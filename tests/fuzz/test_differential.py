"""A short round of differential fuzzing; ``differential.py`` runs longer as a program."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from aiorepl import compiled

pytestmark = pytest.mark.by_day

PROGRAM = runpy.run_path(str(Path(__file__).with_name("differential.py")))


@pytest.mark.timeout(600)
@pytest.mark.skipif(not compiled.is_fresh(), reason="the hot path is not compiled")
def test_both_forms_do_the_same():
    """Values, rows, frames, streams, blocks and copied rows: both forms give the same results and the same errors."""
    done, different = PROGRAM["compare"](1, 10_000)

    assert [] == different
    assert set(PROGRAM["TARGETS"]) == set(done)
