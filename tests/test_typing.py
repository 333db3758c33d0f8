"""The public names as pyright sees them; tests/documents has the same for mypy."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aiorepl.source.source import Source, SourceOptions
from aiorepl.spark.mirroring.mirror import Mirror, MirrorOptions, mirror

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


def given(options: type, own: set[str]) -> dict[str, str]:
    """Return what the fields of a class accept, as written, without those that a function has itself."""
    return {
        field.name: re.sub(
            r"Seconds\[float(.*)\]", r"Duration\1", re.sub(r"Bytes\[int(.*)\]", r"Size\1", field.type)
        )
        for field in dataclasses.fields(options)
        if field.name not in own
    }


def written(table: type) -> dict[str, str]:
    """Return the annotations of a TypedDict as written."""
    return {name: hint.__forward_arg__ for name, hint in table.__annotations__.items()}


def test_options_of_connect():
    """``connect`` passes on exactly the options of ``Source`` that it does not have itself, with the same types."""
    assert given(Source, {"dsn", "slot", "publication"}) == written(SourceOptions)


def test_options_of_mirror():
    """``mirror`` passes on exactly the options of ``Mirror`` that it does not have itself, with the same types."""
    assert given(Mirror, set(inspect.signature(mirror).parameters)) == written(MirrorOptions)
