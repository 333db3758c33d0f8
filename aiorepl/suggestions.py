"""Suggests the known name that an unknown one resembles."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_MOST: Final = 50
"""The most names in a list."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that ``name`` resembles, or list them."""
    names = sorted(known)
    within = [each for each in names if name in each.split("_")]
    if near := get_close_matches(name, names, 1) or within:
        return f"did you mean {' or '.join(near)}?"
    if not names:
        return "there are none"
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"use one of {', '.join(names[:_MOST])}{more}"


def require_options(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of a function's ``**options``.

    :raises TypeError: an option is unknown; the message suggests one.
    """
    names = frozenset(known)
    for name in given:
        if name not in names:
            raise TypeError(f"{function}() has no option {name!r}: {suggestion(name, names)}")
