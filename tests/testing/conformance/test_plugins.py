"""The author of a sink gets the same messages, whatever pytest plugins run."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.by_day


@pytest.mark.parametrize(
    "plugins",
    [
        "-p no:asyncio -p no:anyio",
        "-p no:asyncio -p anyio",
        "-p no:anyio -o asyncio_mode=strict",
        "-p no:anyio -o asyncio_mode=auto",
    ],
)
def test_a_failure_as_its_author_sees_it(tmp_path, plugins):
    """Which test, what was found, and what the contract says."""
    program = """
from aiorepl import Sink
from aiorepl.testing.conformance import SinkConformance

class Nowhere(Sink):
    async def write(self, batch):
        pass

class TestNowhere(SinkConformance):
    def make_sink(self):
        return Nowhere()

    async def read(self):
        return []
"""
    (tmp_path / "test_nowhere.py").write_text(program)
    options = "-m pytest -q -p no:cacheprovider -k survives_a_crash"
    done = subprocess.run(
        [sys.executable, *options.split(), *plugins.split(), "test_nowhere.py"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert 1 == done.returncode
    assert "after a flush and a crash, 5 of 5 changes that were flushed are not in the target" in done.stdout
    assert "the contract: flush returning means durable" in done.stdout
