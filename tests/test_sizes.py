"""Sizes and durations: as options, and for people."""

from __future__ import annotations

from datetime import timedelta

import pytest

from aiorepl import BatchPolicy, ConfigurationError, RetryPolicy
from aiorepl.durations import seconds_of
from aiorepl.sizes import format_size, size_of


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1048575, "1.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes(size, text):
    """A size has the largest unit that leaves at least one of it."""
    assert text == format_size(size)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (5, 5),
        ("1048576", 1048576),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("2tb", 2 * 10**12),
        ("1kB", 1000),
        ("1 KiB", 1024),
        ("7 B", 7),
    ],
)
def test_sizes_as_options(given, size):
    """KB is 1,000 bytes and KiB 1,024; a number of bytes needs no unit."""
    assert size == size_of("o", given)


@pytest.mark.parametrize("given", ["", "64m", "1.5", "-1MB", "MiB", "1 000", "٣MB", 1.5, True, None])
def test_what_is_no_size(given):
    """Anything else is refused: a single letter could be minutes, and there are no parts of bytes."""
    with pytest.raises(ConfigurationError, match=r"o is .*64MiB"):
        size_of("o", given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (2, 2),
        (0.5, 0.5),
        ("30", 30),
        ("10s", 10),
        ("250ms", 0.25),
        ("5m", 300),
        ("5 min", 300),
        ("1.5h", 5400),
        ("7D", 604_800),
        (timedelta(minutes=1), 60),
    ],
)
def test_durations_as_options(given, seconds):
    """A number counts seconds; text has a unit; a timedelta is one."""
    assert seconds == seconds_of("o", given)


@pytest.mark.parametrize("given", ["", "soon", "-1s", "1h30m", "1e3", True, None])
def test_what_is_no_duration(given):
    """Anything else is refused."""
    with pytest.raises(ConfigurationError, match=r"o is .*10s"):
        seconds_of("o", given)


def test_options_with_units():
    """Options are read as numbers, whatever form they were given in."""
    policy = BatchPolicy(max_bytes="1MiB", flush_seconds="5s")

    assert policy == BatchPolicy(max_bytes=1 << 20, flush_seconds=timedelta(seconds=5))
    assert 1 << 20 == policy.max_bytes
    assert RetryPolicy(timeout=None).timeout is None
    assert 300 == RetryPolicy(timeout="5m").timeout == RetryPolicy.timeout
    with pytest.raises(ConfigurationError, match="max_bytes is '1MX'"):
        BatchPolicy(max_bytes="1MX")
