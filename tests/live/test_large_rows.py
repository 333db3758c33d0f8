"""How often three sinks have a large row in memory at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("large_row.py")
# TOAST compresses the first one, so the server sends it at once. It streams the other one, which is too large for
# logical_decoding_work_mem, and the spool keeps it until its commit.
PLAIN = "repeat(md5('x'), $1 / 32)"
STREAMED = "(SELECT string_agg(md5(n::text), '\"') FROM generate_series(1, $1 / 33) n)"


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory of a moment: Linux tells it"
)
@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize(
    ("column", "sinks", "most"),
    [
        # The message, and the buffer that it was received in.
        (PLAIN, "file,file,file", 3),
        (STREAMED, "file,file,file", 3),
        # The message, and the event of each sink that needs it whole.
        (PLAIN, "file,whole,whole", 4),
    ],
    ids=["files", "streamed", "events"],
)
def test_a_large_row(published, tmp_path, column, sinks, most, journal):
    """The sinks share the message, also if each has a reader of the journal, and files are written straight from it."""
    command = [sys.executable, WORKER, published.dsn, published.slot, tmp_path, column, sinks]
    if journal:
        command.append(tmp_path / "journal")
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert float(done.stdout) < most
