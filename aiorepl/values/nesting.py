"""Structure of types: a domain's base type, and the nesting depth of arrays, composites and ranges. Pure.

Decoders of nested types are recursive, so the depth is limited. No server has a type that contains itself, but a damaged
journal may describe one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiorepl.values.types import DOMAIN, TypeInfo

Infos = Callable[[int], TypeInfo | None]

MOST_LEVELS: Final = 64


def base(oid: int, info: Infos) -> TypeInfo | None:
    """Return the type itself, or the base type of a domain; ``None`` if it is unknown."""
    found = info(oid)
    passed: set[int] = set()
    while found is not None and found.kind == DOMAIN:
        if found.oid in passed:
            return None
        passed.add(found.oid)
        found = info(found.element)
    return found


def problem(oid: int, info: Infos) -> str | None:
    """Return the reason why a type cannot be decoded; ``None`` if it can."""
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
        # A domain adds no level.
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
