"""Numbers of bytes as people write them: ``1048576``, ``16m``, ``2GB``. Pure."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"(\d{1,18})\s*([kmg]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def parse_size(text: str) -> int | None:
    """The number of bytes; ``None`` for a text that is none."""
    match = _SIZE.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS[match[2].lower()]
