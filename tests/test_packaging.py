"""What is shipped: the wheel's contents and what it declares, and that the lock follows pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from email import message_from_bytes
from importlib.metadata import entry_points
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import aiorepl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by the backend that is installed: without an index."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    with ZipFile(path) as archive:
        yield archive


def test_top_level_names(wheel):
    """Two packages and what describes them: no bare ``sinks``, no tests, no scripts."""
    names = {name.partition("/")[0] for name in wheel.namelist()}

    assert {"aiorepl", "aiorepl_sinks", f"aiorepl-{aiorepl.__version__}.dist-info"} == names


def test_whole_and_typed(wheel):
    """Every file of both packages is in it, and nothing more; type checkers are told to trust both."""
    files = {
        path.relative_to(folder).as_posix()
        for folder, package in ((ROOT, "aiorepl"), (ROOT / "sinks", "aiorepl_sinks"))
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert files == {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {"aiorepl/py.typed", "aiorepl_sinks/py.typed"} <= files


def test_entry_points(wheel):
    """The command, and our sinks as a stranger's would be: each one names something that exists."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    declared = ConfigParser()
    declared.optionxform = str  # type: ignore[method-assign, assignment]
    declared.read_string(wheel.read(name).decode())

    assert {"aiorepl": "aiorepl.cli:main"} == dict(declared["console_scripts"])
    assert {"stdout", "jsonl"} <= set(declared["aiorepl.sinks"])
    sinks = [point for point in entry_points(group="aiorepl.sinks") if point.dist.name == "aiorepl"]
    assert set(declared["aiorepl.sinks"]) == {point.name for point in sinks}
    assert all(issubclass(point.load(), aiorepl.Sink) for point in sinks)


def test_metadata(wheel):
    """What an index shows and an installer obeys."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(wheel.read(name))

    assert "PostgreSQL logical replication" in metadata["Summary"]
    assert ">=3.11" == metadata["Requires-Python"]
    assert set(PROJECT["project"]["optional-dependencies"]) == set(metadata.get_all("Provides-Extra"))


def test_all_extras_is_all():
    """``aiorepl[all]`` leaves no extra out."""
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = (Requirement(line) for line in extras["all"])

    assert set(extras) - {"all"} == everything.extras


def test_lock_names_no_host_and_trusts_none():
    """Whoever installs uses the index configured there, and gets these very files."""
    pins = re.split(r"\n(?=[A-Za-z0-9])", LOCK.partition("\n#    make lock\n")[2].strip())

    assert "://" not in LOCK
    assert "index-url" not in LOCK
    assert len(pins) > 20
    assert [] == [pin.split()[0] for pin in pins if "==" not in pin or "--hash=sha256:" not in pin]


def test_lock_follows_pyproject():
    """Every requirement is pinned, to a version that it allows; else ``make lock`` was forgotten."""
    pinned = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)
    }
    lines = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    for group in (PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]):
        lines += [line for wanted in group.values() for line in wanted if isinstance(line, str)]
    requirements = [Requirement(line) for line in lines]

    assert [] == [
        str(wanted)
        for wanted in requirements
        if wanted.name != "aiorepl"
        and not wanted.specifier.contains(pinned.get(canonicalize_name(wanted.name), "0"))
    ]
