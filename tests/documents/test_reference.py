"""The generated pages of docs/reference/ are those that the code gives now, and have every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

import aiorepl

PACKAGES = ("formats", "history", "journal", "monitoring", "spark", "testing")


def test_the_pages_are_current(root):
    """``make reference`` would change nothing."""
    command = [sys.executable, "scripts/reference.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_public_name_is_there(root, package):
    """Each public name has a heading, and below it a text."""
    page = "python-packages.md" if package else "python.md"
    text = (root / "docs/reference" / page).read_text(encoding="utf-8")
    names = import_module(f"aiorepl.{package}").__all__ if package else aiorepl.__all__
    for name in names:
        section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE)
        assert section, name
        prose = re.sub(r"^```.*?^```|<!--.*?-->", "", section[1], flags=re.DOTALL | re.MULTILINE)
        assert re.search(r"[a-z]{3}", prose), name
