"""Whose transactions a journal holds, and how far it goes.

``journal.json`` is written once, when a journal is first opened for writing, and never changes: a journal holds the
stream of one slot of one cluster. ``position.json`` is written when the source moved on without transactions: WAL
that holds nothing for us is confirmed to the slot as well, so it must be remembered, or the slot would seem to be
ahead of the journal. ``gaps.json`` lists what is missing: stretches that the slot had lost and that somebody chose to go
on without.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from aiorepl.errors import DamagedJournal, JournalError
from aiorepl.journal.index import FORMAT, SegmentIndex, load
from aiorepl.journal.store import Store
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position

MANIFEST: Final = "journal.json"
QUIET: Final = "position.json"
GAPS: Final = "gaps.json"
INDEX: Final = ".index"
SEGMENT: Final = ".segment"


def read_manifest(store: Store) -> Position | None:
    """The source of the journal, at LSN 0; ``None`` when there is no journal yet.

    :raises JournalError: when the manifest is damaged, or of a newer format.
    """
    fields = _read_json(store, MANIFEST)
    if fields is None:
        return None
    if fields.get("format") != FORMAT:
        raise JournalError(
            f"the journal in {store.url} has format {fields.get('format')}; this version reads format {FORMAT}"
        )
    return _position(store, MANIFEST, fields)


def write_manifest(store: Store, source: Position, database: str | None = None) -> None:
    """Make the folder a journal of ``source``."""
    fields: dict[str, Any] = {"format": FORMAT, **source.at(ZERO).to_json()}
    if database is not None:
        fields["database"] = database
    store.write(MANIFEST, orjson.dumps(fields) + b"\n")


def read_quiet(store: Store) -> Position | None:
    """Up to where the source had nothing, if it was noted."""
    fields = _read_json(store, QUIET)
    return None if fields is None else _position(store, QUIET, fields)


def write_quiet(store: Store, position: Position) -> None:
    """Note that there is nothing up to ``position``."""
    store.write(QUIET, orjson.dumps(position.to_json()) + b"\n")


def read_gaps(store: Store) -> list[tuple[LSN, LSN]]:
    """What is missing: behind the first position and up to the second.

    :raises JournalError: when the list is damaged.
    """
    fields = _read_json(store, GAPS) or {"gaps": []}
    try:
        return [(LSN.parse(gap["after"]), LSN.parse(gap["until"])) for gap in fields["gaps"]]
    except (KeyError, TypeError, ValueError):
        raise DamagedJournal(f"{GAPS} in {store.url}", "it is no list of gaps") from None


def add_gap(store: Store, after: LSN, until: LSN) -> None:
    """Note that what lies between is missing."""
    gaps = [*read_gaps(store), (after, until)]
    listed = [{"after": str(after), "until": str(until)} for after, until in dict.fromkeys(gaps)]
    store.write(GAPS, orjson.dumps({"gaps": listed}) + b"\n")


def last_position(store: Store) -> Position | None:
    """How far the journal goes: its last segment, or what was noted behind it; ``None`` while it is empty.

    :raises JournalError: when it is damaged.
    """
    held, names, source = read_quiet(store), segment_names(store), read_manifest(store)
    if names and source is not None:
        last = load_index(store, names[-1])
        if held is None or held.lsn < last.last_end_lsn:
            held = Position(source.system_identifier, last.timeline, source.slot, last.last_end_lsn)
    return held


def segment_name(first_end: LSN, last_end: LSN) -> str:
    """The name without its ending. Names sort in commit order."""
    return f"{first_end:016X}-{last_end:016X}"


def segment_names(store: Store) -> list[str]:
    """The segments that exist, which is those that have an index, in commit order."""
    return sorted(name.removesuffix(INDEX) for name in store.names() if name.endswith(INDEX))


def segment_range(name: str) -> tuple[LSN, LSN]:
    """First and last end LSN, from the name.

    :raises JournalError: when it is not a name that ``segment_name`` gave.
    """
    first, _, last = name.partition("-")
    try:
        return LSN(int(first, 16)), LSN(int(last, 16))
    except ValueError:
        raise JournalError(
            f"{name}{INDEX} is not a name that a journal gives: move it out of the folder"
        ) from None


def load_index(store: Store, name: str) -> SegmentIndex:
    """The index of the segment ``name``.

    :raises JournalError: when it is damaged or gone.
    """
    try:
        data = store.read(name + INDEX)
    except FileNotFoundError:
        raise JournalError(
            f"{name}{INDEX} in {store.url} is gone: it was pruned while it was being read"
        ) from None
    return load(data, f"{name}{INDEX} in {store.url}")


def _read_json(store: Store, name: str) -> dict[str, Any] | None:
    try:
        fields = orjson.loads(store.read(name))
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError:
        raise DamagedJournal(f"{name} in {store.url}", "it is no JSON") from None
    if not isinstance(fields, dict):
        raise DamagedJournal(f"{name} in {store.url}", "it is no object")
    return fields


def _position(store: Store, name: str, fields: dict[str, Any]) -> Position:
    try:
        return Position.from_json(fields)
    except ValueError as error:
        raise DamagedJournal(f"{name} in {store.url}", str(error)) from None
