"""Sizes in bytes: a number, or text such as ``16MiB`` and ``1.5GB``. kB is 1,000 bytes and KiB 1,024. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from aiorepl.errors import ConfigurationError, shown

Size = int | str
"""A size as an option: a number of bytes, or text with a unit."""

_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_PREFIXES: Final = "kmgtp"
_UNITS: Final = {"": 1, "b": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate(_PREFIXES, 1)
    for unit, base in (("b", 1000), ("ib", 1024))
}
_NAMES: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def parse_size(text: str) -> int | None:
    """Return the number of bytes; ``None`` if the text is not a size."""
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None or (unit == 1 and "." in match[1]):
        return None
    return int(Decimal(match[1]) * unit)


def size_of(name: str, value: Size) -> int:
    """Return the bytes of the option ``name``.

    :raises ConfigurationError: the value is not a size.
    """
    size = parse_size(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not isinstance(size, int):
        raise ConfigurationError(
            f'{name} is {shown(value)}, but must be a number of bytes, or text like "64MiB"'
        )
    return size


def format_size(size: int) -> str:
    """Return a number of bytes for people, such as ``1.5 GiB``."""
    if size < 1024:
        return f"{size} bytes"
    amount, name = size / 1024, 0
    while round(amount, 1) >= 1024 and name < len(_NAMES) - 1:
        amount, name = amount / 1024, name + 1
    return f"{amount:,.1f} {_NAMES[name]}"
