"""Sizes for people."""

from __future__ import annotations

import pytest

from aiorepl.sizes import format_size


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes(size, text):
    """A size has the largest unit that leaves at least one of it."""
    assert text == format_size(size)
