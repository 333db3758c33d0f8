"""What types are made of: a domain's base, and how deep arrays, composites and ranges are nested. Pure.

Types are read by functions that call those of their parts, so there is an end to how deep they may be nested. No server
gives a type that is made of itself, but a damaged journal can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiorepl.values.types import DOMAIN, TypeInfo

Infos = Callable[[int], TypeInfo | None]

MOST_LEVELS: Final = 64


def base(oid: int, info: Infos) -> TypeInfo | None:
    """The type, or what it is a domain over; ``None`` where that is not known."""
    found = info(oid)
    passed: set[int] = set()
    while found is not None and found.kind == DOMAIN:
        if found.oid in passed:
            return None
        passed.add(found.oid)
        found = info(found.element)
    return found


def problem(oid: int, info: Infos) -> str | None:
    """Why a type cannot be read, if it cannot."""
    levels: dict[int, int] = {}
    entered: set[int] = set()
    pending = [oid]
    while pending:
        top = pending[-1]
        if top in levels:
            pending.pop()
            continue
        found = info(top)
        parts = _parts(found)
        missing = [part for part in parts if part not in levels]
        if any(part in entered or part == top for part in missing):
            return "it is made of itself"
        if missing:
            entered.add(top)
            pending += missing
            continue
        # A domain is read as its base type is, and adds no level.
        added = 0 if found is not None and found.kind == DOMAIN else 1
        levels[top] = added + max((levels[part] for part in parts), default=0)
        entered.discard(top)
        pending.pop()
    if levels[oid] > MOST_LEVELS:
        return f"it is nested {levels[oid]} levels deep, and {MOST_LEVELS} are the most that are read"
    return None


def _parts(info: TypeInfo | None) -> list[int]:
    if info is None:
        return []
    return [oid for oid in (info.element, *(field for _, field in info.fields)) if oid]
