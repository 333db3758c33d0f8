"""Durations: a number of seconds, a ``timedelta``, or text such as ``10s``, ``5m`` and ``7d``. Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from aiorepl.errors import ConfigurationError, shown

Duration = float | str | timedelta
"""A duration as an option: seconds, text with a unit, or a ``timedelta``."""

_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> float | None:
    """Return the number of seconds; ``None`` if the text is not a duration."""
    match = _DURATION.fullmatch(text.strip())
    unit = None if match is None else _SECONDS.get(match[2].lower())
    return None if match is None or unit is None else float(match[1]) * unit


def seconds_of(name: str, value: Duration) -> float:
    """Return the seconds of the option ``name``.

    :raises ConfigurationError: the value is not a duration.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    seconds = parse_duration(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ConfigurationError(
            f'{name} is {shown(value)}, but must be a number of seconds, text like "10s" or "5m", or a timedelta'
        )
    return seconds
