"""The public names as pyright sees them; tests/documents has the same for mypy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "typing_example.py"


def test_pyright(tmp_path):
    """Correct user code passes, and every marked mistake is reported, if pyright is installed."""
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    config = tmp_path / "pyrightconfig.json"
    options = {
        "include": [str(EXAMPLE)],
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
        "extraPaths": [str(ROOT), str(ROOT / "sinks")],
    }
    config.write_text(json.dumps(options), encoding="utf-8")
    command = [pyright, "-p", str(config), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
