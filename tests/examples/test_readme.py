"""README.md and CONTRIBUTING.md name sinks, extras, files and targets that exist. Their blocks have tests of their own."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def section(heading: str) -> str:
    """The text below a heading."""
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_sink_is_listed():
    """The table of sinks has the names of the entry points."""
    ours = {point.name for point in entry_points(group="aiorepl.sinks") if point.dist.name == "aiorepl"}

    assert ours == set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| \[(.*?)\]", section("Sinks"), re.MULTILINE)))
    )


def test_every_extra_and_version_is_there():
    """Every extra and version that README names exists."""
    named = ",".join(re.findall(r"(?:aiorepl|\.)\[([\w,]+)\]", TEXT)).split(",")
    assert set(named) <= PROJECT["optional-dependencies"].keys()
    assert PROJECT["requires-python"].removeprefix(">=") in section("Install")


def test_nothing_is_installed_from_an_index():
    """Until there is a release, documents and examples install the clone, and the page that begins with that says so."""
    assert "is not on PyPI yet" in section("Install"), (
        "a release: documents may now install aiorepl by its name"
    )
    generated = {"docs/reference/cli.md", "docs/reference/python-packages.md", "docs/reference/python.md"}
    files = [ROOT / "README.md", ROOT / "sinks/README.md", ROOT / "bench/README.md"]
    files += [
        *(ROOT / "docs").rglob("*.md"),
        *(path for path in (ROOT / "examples").rglob("*") if path.is_file()),
    ]
    found = []
    for path in files:
        text = path.read_bytes().decode(errors="replace")
        if str(path.relative_to(ROOT)) not in generated:
            found += [
                f"{path}: {line}"
                for line in re.findall(
                    r"pip install[^\n`]*\baiorepl(?:\[|['\" ]|$)[^\n]*", text, re.MULTILINE
                )
            ]
        if path.suffix == ".md" and re.search(r"pip install '?\.", text):
            assert "clone" in text, f"{path} does not say where to run pip"
    assert found == []


def test_every_make_target_is_there():
    """``make`` has each target that is named."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", TEXT + CONTRIBUTING)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_folder_is_in_the_layout():
    """The layout in CONTRIBUTING.md names every folder of the package."""
    listed = re.findall(r"^\| `aiorepl/(\w+)(?:/|\.py)`", CONTRIBUTING, re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "aiorepl").glob("*/__init__.py")}

    assert folders == set(listed) - {"sink"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_variable_is_documented(path):
    """A program's docstring names the environment variables that it needs."""
    text = path.read_text(encoding="utf-8")
    head = ast.get_docstring(ast.parse(text))
    assert {name for name in re.findall(r'environ\["(\w+)"\]', text) if name not in head} == set()
