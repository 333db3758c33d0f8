"""How often three sinks have a large row in memory at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aiorepl import compiled

WORKER = Path(__file__).with_name("large_row.py")


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory of a moment: Linux tells it"
)
@pytest.mark.parametrize(("journal", "most"), [(False, 5.6), (True, 7.6)])
def test_a_large_row(published, tmp_path, journal, most):
    """The message, its columns while they are encoded, and the lines of each sink; with a journal, each sink reads its own message."""
    command = [sys.executable, WORKER, published.dsn, published.slot, tmp_path]
    if journal:
        command.append(tmp_path / "journal")
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    # Plain Python keeps about half a copy more.
    assert float(done.stdout) < most + (0 if compiled.ACTIVE else 0.8)
