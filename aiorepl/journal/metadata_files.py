"""Reads and writes a journal's small files, verified: ``journal.json``, ``position.json`` and the indexes."""

from __future__ import annotations

import contextlib
from typing import Final

from aiorepl.errors import DamagedJournal, JournalError
from aiorepl.journal import index
from aiorepl.journal.chain import Break, Chain, Segment, find_break
from aiorepl.journal.index import SegmentIndex
from aiorepl.journal.metadata import (
    Manifest,
    State,
    dump_manifest,
    dump_state,
    load_manifest,
    load_state,
)
from aiorepl.journal.store import Store, Superseded

MANIFEST: Final = "journal.json"
POSITION: Final = "position.json"
INDEX: Final = ".index"
SEGMENT: Final = ".segment"


def read_chain(store: Store) -> Chain | None:
    """Read and verify the chain as it is now; ``None`` if there is no journal.

    :raises JournalError: a file is damaged, missing, or has another format.
    :raises OSError: a file cannot be read.
    """
    previous: Break | None = None
    while True:
        manifest, state = read_manifest(store), read_state(store)
        # The listing comes last: the segment that position.json names was published before it.
        names = segment_names(store)
        found = find_break(names, manifest, state)
        if found is None:
            if manifest is None:
                return None
            return Chain(manifest, state or State(manifest.source), tuple(names))
        if found == previous:
            raise DamagedJournal(f"{found.file} in the journal {store.url} {found.problem}", found.remedy)
        # A file may appear or disappear during a listing, so only the same break twice counts.
        previous = found


def read_manifest(store: Store) -> Manifest | None:
    """Read ``journal.json``; ``None`` if there is no journal.

    :raises JournalError: the file is damaged, or has another format.
    """
    data = _read(store, MANIFEST)
    return None if data is None else load_manifest(data, f"{MANIFEST} in the journal {store.url}")


def write_manifest(store: Store, manifest: Manifest) -> None:
    """Write ``journal.json``, which makes the folder a journal."""
    store.write(MANIFEST, dump_manifest(manifest))


def read_state(store: Store) -> State | None:
    """Read ``position.json``; ``None`` if it was never written.

    :raises JournalError: the file is damaged, or has another format.
    """
    data = _read(store, POSITION)
    return None if data is None else load_state(data, f"{POSITION} in the journal {store.url}")


def write_state(store: Store, state: State) -> None:
    """Replace ``position.json``."""
    try:
        version: str | None = store.load(POSITION)[1]
    except FileNotFoundError:
        version = None
    try:
        store.replace(POSITION, dump_state(state), version)
    except Superseded:
        raise JournalError(f"another writer has taken over the journal in {store.url}") from None


def segment_names(store: Store) -> list[str]:
    """List the segments that have an index, in commit order."""
    return sorted(name.removesuffix(INDEX) for name in store.names() if name.endswith(INDEX))


def unindexed(store: Store) -> list[Segment]:
    """List the segments without an index, left by a crash while one was published or pruned."""
    files = store.names()
    indexed = {file.removesuffix(INDEX) for file in files if file.endswith(INDEX)}
    found = []
    for file in files:
        name = file.removesuffix(SEGMENT)
        if file.endswith(SEGMENT) and name not in indexed:
            with contextlib.suppress(ValueError):  # not a segment's name
                found.append(Segment.named(name))
    return found


def load_index(store: Store, name: str) -> SegmentIndex:
    """Read the index of the segment ``name``.

    :raises JournalError: it is damaged or was pruned.
    """
    location = f"{name}{INDEX} in the journal {store.url}"
    try:
        data = store.read(name + INDEX)
    except FileNotFoundError:
        raise JournalError(f"{location} does not exist: it was pruned while it was being read") from None
    loaded = index.load(data, location)
    segment = Segment.named(name)
    if (loaded.after, loaded.end.lsn) != (segment.after, segment.last_end_lsn):
        raise DamagedJournal(
            f"{location} is the index of another segment, from {loaded.after} to {loaded.end.lsn}"
        )
    require_own(store, loaded, location)
    return loaded


def require_own(store: Store, loaded: SegmentIndex, location: str) -> None:
    """Verify that an index belongs to the journal's own source: slots of one cluster can have segments of the same names.

    :raises JournalError: it belongs to another slot or cluster, or ``journal.json`` is damaged.
    """
    manifest, end = read_manifest(store), loaded.end
    if manifest is None:
        return
    own = manifest.source
    if (end.system_identifier, end.slot) != (own.system_identifier, own.slot):
        raise DamagedJournal(
            f"{location} is from another journal: its source is slot {end.slot!r} of cluster {end.system_identifier}, and the "
            f"journal's source is slot {own.slot!r} of cluster {own.system_identifier}"
        )


def _read(store: Store, name: str) -> bytes | None:
    try:
        return store.read(name)
    except FileNotFoundError:
        return None
