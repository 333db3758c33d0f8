"""Progress of long commands: a line that changes in a terminal, log lines elsewhere."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from aiorepl.cli import progress
from aiorepl.cli.log import Log


@pytest.fixture
def log():
    """A log of JSON lines, which is undone after the test."""
    yield Log()
    for name in ("aiorepl", "aiorepl.progress"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def shown(monkeypatch, log: Log, seconds: float) -> list[str]:
    """Run a body that ends after two descriptions, or at once, and return the descriptions that were asked for."""
    monkeypatch.setattr(progress, "_QUIET_SECONDS", seconds)
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.01)
    asked, enough = [], threading.Event()

    def describe() -> str:
        asked.append(f"{len(asked)} done")
        if len(asked) == 2:
            enough.set()
        return asked[-1]

    with progress.progress(log, describe):
        if not seconds:
            assert enough.wait(60)
    return asked


def test_lines(monkeypatch, caplog, log):
    """Without a terminal, what takes longer than a moment is logged again and again."""
    caplog.set_level("INFO", "aiorepl.progress")
    asked = shown(monkeypatch, log, 0)

    assert asked == caplog.messages
    assert len(asked) >= 2


def test_quick_commands(monkeypatch, caplog, log):
    """What takes a moment only says nothing."""
    caplog.set_level("INFO", "aiorepl.progress")

    assert [] == shown(monkeypatch, log, 60)
    assert [] == caplog.messages


async def test_json(run, tmp_path, monkeypatch, log):
    """With ``--log-format json``, a terminal does not change the lines either."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert log.has_bars
    assert not Log(as_json=True).has_bars
    failed = await run("--log-format", "json", "journal", "verify", str(tmp_path / "none"))
    assert all(json.loads(line) for line in failed.err.splitlines())
