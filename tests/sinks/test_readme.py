"""The tables and quotations in sinks/README.md and docs/reference/sinks agree with the code."""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from aiorepl.sizes import parse_size
from aiorepl.testing.conformance import MirrorConformance, SinkConformance

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "sinks" / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXAMPLE = ROOT / "examples" / "aiorepl-sink-sqlite"
POINTS = [point for point in entry_points(group="aiorepl.sinks") if point.dist.name == "aiorepl"]
PAGES = {"stdout": "jsonl.md"}


def rows(heading):
    """The first cells of the table below a heading."""
    section = TEXT.partition(f"## {heading}")[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| `")]


def test_every_sink_is_listed():
    """The README's table has the names of all entry points."""
    assert {point.name for point in POINTS} == {name.strip("`") for name in rows("Built-in sinks")}


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_every_option_is_documented(point):
    """The page of a sink lists every option of its class, with its type, default and meaning."""
    page = (ROOT / "docs/reference/sinks" / PAGES.get(point.name, f"{point.name}.md")).read_text(
        encoding="utf-8"
    )
    page = page.partition("\n## stdout")[2 if point.name == "stdout" else 0]
    table = page.partition("| option | type | default | meaning |\n")[2].partition("\n\n")[0]
    documented = {}
    for line in table.splitlines()[1:]:
        names, kind, default, meaning = line.strip("| ").split(" | ", 3)
        assert kind
        assert meaning
        documented |= dict.fromkeys(
            re.findall(r"`(\w+)`", names) if "[" not in names else (), (kind, default)
        )
    parameters = inspect.signature(point.load()).parameters
    assert documented.keys() == parameters.keys()
    for name, parameter in parameters.items():
        kind, default = documented[name]
        value = parameter.default
        if kind == "size":
            assert name.endswith("_bytes")
            assert value == parse_size(default)
        elif default == "required":
            assert value is parameter.empty
        elif isinstance(value, bool):
            assert default == str(value).lower()
        elif isinstance(value, (int, float)):
            assert float(default) == value
        elif isinstance(value, str):
            assert default.strip("`") == value
        else:
            assert not value


def test_every_extra_is_there():
    """Every extra that the README names exists."""
    assert set(re.findall(r"aiorepl\[(\w+)\]", TEXT)) <= PROJECT["optional-dependencies"].keys()


def test_every_declaration_is_there():
    """Every declaration is an attribute of both classes, except the order, which only events have."""
    declared = [name for cell in rows("Certification") for name in re.findall(r"`(?:def )?(\w+)", cell)]
    assert {"exactly_once", "outage", "seconds"} <= set(declared)
    names = [name for name in declared if name not in ("table", "key", "none", "commit")]
    assert all(hasattr(SinkConformance, name) for name in names)
    assert all(hasattr(MirrorConformance, name) for name in names if name != "order")


@pytest.mark.parametrize("heading", ["Example", "Registration", "Certification"])
def test_what_is_quoted_of_the_example_is_in_it(heading):
    """To the letter."""
    section = TEXT.partition(f"## {heading}")[2].partition("\n## ")[0]
    files = "".join(path.read_text(encoding="utf-8") for path in sorted(EXAMPLE.iterdir()) if path.is_file())
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    quoted = [block for block in blocks if "[[sinks]]" not in block]
    assert quoted
    assert all(block in files for block in quoted)


def test_the_example_is_as_long_as_is_said():
    """To the line."""
    lines = (EXAMPLE / "aiorepl_sink_sqlite.py").read_text(encoding="utf-8").splitlines()
    assert f"exactly once, in {len(lines)} lines" in TEXT
