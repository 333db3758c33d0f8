"""Checks of sinks and folders for ``aiorepl check``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aiorepl import BatchPolicy, Delivery, PermanentError, RetryPolicy, Source, SyncSink
from aiorepl.delivery.config import resolve
from aiorepl.delivery.diagnose import check_folder, check_sinks
from aiorepl.testing import MemorySink

LINE = next(
    number
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    if line.endswith("raise self.error")
)


class Checked(SyncSink):
    """Raises the given error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[str] = []

    def check(self, tables):
        self.calls.append("check")
        if self.error is not None:
            raise self.error

    def write(self, batch):
        raise AssertionError

    def close(self):
        self.calls.append("close")


async def test_each_sink(tmp_path):
    """An error concerns its own sink only, text that may quote a secret is left out, and each sink is closed."""
    sinks = {
        "good": Checked(),
        "bad": Delivery(
            Checked(PermanentError("bad: no such bucket")), on_error="dead_letter", dead_letters=tmp_path
        ),
        "broken": Checked(ValueError("s3cret")),
        "unknown": MemorySink(),
    }
    resolved = resolve(sinks, BatchPolicy(), RetryPolicy())
    found = await check_sinks(resolved, None, Source("postgresql://h/d", slot="s", publication="p"))
    assert [
        ("ok", "good: its target can be used", 0),
        ("error", "bad: no such bucket", 4),
        ("ok", "bad: its store of dead letters can be used", 0),
        ("error", f"broken: check raised ValueError (test_diagnose.py, line {LINE})", 4),
        ("ok", "unknown: its target is not checked, because its class has no check", 0),
    ] == [(each.level, each.text, each.exit_code) for each in found]
    assert ["check", "close"] == sinks["good"].calls == sinks["broken"].calls


def test_folders(tmp_path):
    """A missing folder is accepted if it can be created; a file in its place is an error. Nothing is created."""
    assert "ok" == check_folder("out", tmp_path / "a" / "b").level
    assert [] == list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    found = check_folder("out", tmp_path / "file" / "b")
    assert ("error", 2) == (found.level, found.exit_code)
    assert "Not a directory" in found.text


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_system_without_new_files():
    """A folder in which the kernel creates no files is an error, also for root."""
    for path in ("/proc", "/proc/aiorepl/journal"):
        found = check_folder("out", Path(path))
        assert ("error", f"out {path}: Operation not permitted") == (
            found.level,
            found.text.rpartition(": ")[0],
        )
