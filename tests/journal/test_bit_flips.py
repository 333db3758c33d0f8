"""A sample of the single-bit flips and truncations of a small journal; ``bit_flips.py`` as a program tries all of them."""

from __future__ import annotations

import runpy
from pathlib import Path

PROGRAM = runpy.run_path(str(Path(__file__).with_name("bit_flips.py")))


def test_a_sample(tmp_path) -> None:
    """Each damage is found by a reader that names the file; no reader gives other data, or another error than aiorepl's."""
    done, wrong = PROGRAM["run"](tmp_path / "journal", every=300, seed=1)
    assert wrong == []
    # Every kind of file was damaged.
    kinds = {Path(name).suffix for name in done}
    assert {
        ".segment",
        ".manifest",
        ".prepared",
        ".json",
        ".parquet",
        ".snapshot",
        ".snapshot-intent",
    } == kinds
