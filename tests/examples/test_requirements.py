"""Each example says in its own text what to install for it."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# The program of spark-submit, and a distribution, whose pyproject.toml says it.
PROGRAMS = [
    path
    for path in sorted(EXAMPLES.rglob("*.py"))
    if path.parent.name not in {"spark_cluster", "aiorepl-sink-sqlite"}
]


def requirement_of(word: str) -> Requirement:
    """A word after ``pip install``; a path is that of the clone, from its root or from an example's folder."""
    return Requirement(re.sub(r"^\.[./]*(?=\[|$)", "aiorepl", word))


def stated(text: str) -> set[str]:
    """The distributions that a text installs, each in lower case, those of an extra included."""
    found = {"aiorepl"}
    waiting = [Requirement(line) for line in PROJECT["dependencies"]]
    for line in re.findall(r"pip install ([^#\n]+)", text):
        waiting += map(requirement_of, shlex.split(line))
    while waiting:
        requirement = waiting.pop()
        found.add(canonicalize_name(requirement.name))
        if requirement.name == "aiorepl":
            waiting += [Requirement(line) for extra in requirement.extras for line in EXTRAS[extra]]
    return found


def imported(text: str) -> set[str]:
    """The distributions of which a program imports something."""
    distributions = {"aiorepl_sinks": ["aiorepl"], **packages_distributions()}
    modules = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                modules |= {each.name.partition(".")[0] for each in node.names}
            case ast.ImportFrom(module=str(name), level=0):
                modules.add(name.partition(".")[0])
    return {
        canonicalize_name(distributions.get(name, [name])[0]) for name in modules - sys.stdlib_module_names
    }


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs(path):
    """A program installs what it imports."""
    text = path.read_text(encoding="utf-8")

    assert imported(text) <= stated(text)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_pipelines(path):
    """A pipeline's file installs the extras of its sinks, which have the sinks' names."""
    text = path.read_text(encoding="utf-8")
    sinks = {sink["type"] for sink in tomllib.loads(text).get("sinks", [])}

    assert [] == [name for name in sinks & EXTRAS.keys() if f"'.[{name}]'" not in text]


def test_cluster():
    """The environment of a cluster has what the extra has, except for pyspark, which is Spark's own there."""
    packed = (EXAMPLES / "spark_cluster" / "pack.sh").read_text(encoding="utf-8")
    (line,) = re.findall(r'bin/pip install --quiet "\$\{@:-(\S+)\}" (.*)$', packed, re.MULTILINE)
    needed = {each for each in map(Requirement, EXTRAS["spark"]) if each.name != "pyspark"}

    assert needed == {Requirement(word) for word in shlex.split(line[1])}
    assert requirement_of(line[0]).extras <= EXTRAS.keys()
