"""How often three sinks have a large row in memory at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.by_day

WORKER = Path(__file__).with_name("large_row.py")
# TOAST compresses the value of PLAIN, so the server sends the row after the commit. The value of STREAMED exceeds
# logical_decoding_work_mem, so the server streams the row, and the spool keeps it until the commit.
PLAIN = "repeat(md5('x'), $1 / 32)"
STREAMED = "(SELECT string_agg(md5(n::text), '\"') FROM generate_series(1, $1 / 33) n)"


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory of a moment: Linux tells it"
)
@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize(
    ("column", "sinks", "most"),
    [
        # The message, and the read buffer.
        (PLAIN, "file,file,file", 3),
        (STREAMED, "file,file,file", 3),
        # The message, and an event for each sink that needs the event whole.
        (PLAIN, "file,whole,whole", 4),
        (PLAIN, "whole,whole,whole", 4.2),
    ],
    ids=["files", "streamed", "events", "only events"],
)
def test_a_large_row(published, tmp_path, column, sinks, most, journal):
    """The sinks share the message, even if each reads the journal by itself, and files are written straight from the message."""
    command = [sys.executable, WORKER, published.dsn, published.slot, tmp_path, column, sinks]
    if journal:
        command.append(tmp_path / "journal")
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert float(done.stdout) < most
