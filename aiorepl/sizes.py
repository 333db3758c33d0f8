"""Sizes in bytes as text: ``1048576``, ``16MiB``, ``16m``, ``2GB``; every unit is a power of 1024. Pure."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"(\d{1,18})\s*(?:([kmg])i?)?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_NAMES: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def parse_size(text: str) -> int | None:
    """Return the number of bytes; ``None`` if the text is not a size."""
    match = _SIZE.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS[(match[2] or "").lower()]


def format_size(size: int) -> str:
    """Return a number of bytes for people, such as ``1.5 GiB``."""
    if size < 1024:
        return f"{size} bytes"
    amount, name = size / 1024, 0
    while amount >= 1024 and name < len(_NAMES) - 1:
        amount, name = amount / 1024, name + 1
    return f"{amount:,.1f} {_NAMES[name]}"
