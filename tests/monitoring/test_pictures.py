"""Pictures of the status page, for whoever reads the tests' output: build/pictures."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

import pytest

from tests.monitoring.conftest import CHROMIUM

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "pictures"


def size(picture: Path) -> tuple[int, int]:
    """The width and height of a PNG."""
    header = picture.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return struct.unpack(">II", header[16:])


@pytest.mark.server
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
async def test_pictures(record_property):
    """A real pipeline with troubles has pictures of its page in light, in dark, and as wide as a phone."""
    script = ROOT / "scripts" / "status_page.py"
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), str(FOLDER), "6")
    assert 0 == await process.wait()
    assert [1200, 1200, 390] == [
        size(FOLDER / f"status-{name}.png")[0] for name in ("light", "dark", "phone")
    ]
    record_property("pictures of the status page", str(FOLDER))
