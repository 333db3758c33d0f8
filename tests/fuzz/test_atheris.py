"""The fuzz target under atheris, guided by coverage, for a few seconds from the kept corpus."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 8
# What libFuzzer takes for its memory is the peak that the kernel knows, and that begins with what the process was forked
# from: here pytest's hundreds of megabytes, of the shell next to nothing.
IN_SMALL_PROCESS = ["sh", "-c", '"$@"; exit $?', "sh"]


@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no atheris wheel for this Python")
def test_a_few_seconds_find_nothing(tmp_path):
    """Bytes that atheris thinks up give messages or ProtocolError, each in no time and within half a gigabyte."""
    limits = [f"-max_total_time={SECONDS}", "-timeout=60", "-rss_limit_mb=512", "-max_len=4096"]
    found = subprocess.run(
        [
            *IN_SMALL_PROCESS,
            sys.executable,
            HERE / "decoder.py",
            *limits,
            f"-artifact_prefix={tmp_path}/",
            tmp_path,
            HERE / "corpus",
        ],
        capture_output=True,
        text=True,
        timeout=1000,
        env=os.environ | {"AIOREPL_PURE_PYTHON": "1"},  # only of Python code does atheris know what it covers
        check=False,
    )
    assert (0, []) == (found.returncode, list(tmp_path.glob("crash-*"))), found.stderr[-2000:]
    assert "DONE" in found.stderr
