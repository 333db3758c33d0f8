"""Compares the composite values of a history with those of its journal. Pure.

Every item has a place, and the type gets its third attribute between two items of one transaction. By the number of its fields, every
place can be read, except one: after a crash, the server does not know which rows of that transaction came first. So a place with all
attributes may be unknown there; the history then has its text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from aiorepl.verify.tables import shown

Identity = tuple[int, int]
"""Commit LSN and ordinal."""


def misread(rows: Iterable[Mapping[str, Any]], texts: Mapping[Identity, str], *, replayed: bool) -> int:
    """Return the number of rows that have another place than the journal.

    :param rows: of the history: ``_commit_lsn``, ``_ordinal``, ``_op``, ``place`` and ``_unrepresentable``.
    :param texts: PostgreSQL's texts of the places in the journal.
    :param replayed: whether the server has replayed its WAL.
    """
    fields = defaultdict[int, set[int]](set)
    for (commit_lsn, _), text in texts.items():
        fields[commit_lsn].add(_fields(text))
    found = 0
    for row in rows:
        if row["_op"] in ("delete", "truncate"):
            continue
        text = texts.get((row["_commit_lsn"], row["_ordinal"]))
        if text is None or row["place"] is not None:
            found += text is None or _text(row["place"]) != shown("items", "place", text)
            continue
        altering = fields[row["_commit_lsn"]]
        unknown = replayed and len(altering) > 1 and _fields(text) == max(altering)
        found += not (unknown and dict(row["_unrepresentable"] or ()).get("place") == text)
    return found


def _fields(text: str) -> int:
    return text.count(",") + 1


def _text(place: Mapping[str, Any] | None) -> str | None:
    """Return the text of the two attributes that the type had at first."""
    if place is None:
        return None
    parts = ["" if part is None else str(part) for part in list(place.values())[:2]]
    quoted = [f'"{part}"' if " " in part else part for part in parts]
    return f"({','.join(quoted)})"
