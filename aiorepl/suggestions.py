"""Suggests the known name that an unknown one resembles."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that ``name`` resembles, or list all of them."""
    names = sorted(known)
    within = [each for each in names if name in each.split("_")]
    if near := get_close_matches(name, names, 1) or within:
        return f"did you mean {' or '.join(near)}?"
    return f"use one of {', '.join(names)}" if names else "there are none"


def require_options(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of a function's ``**options``.

    :raises TypeError: an option is unknown; the message suggests one.
    """
    names = frozenset(known)
    for name in given:
        if name not in names:
            raise TypeError(f"{function}() has no option {name!r}: {suggestion(name, names)}")
