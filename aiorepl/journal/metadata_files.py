"""Reads a journal's small files, manifests and indexes, verified. Blocking.

``position.json`` is read every time, and parsed if it has changed. The files that it names never change, so they are cached. A
manifest may be merged into another one during a read: then ``position.json`` is read again, which names the merged manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from aiorepl.errors import DamagedJournal, JournalError
from aiorepl.journal import index
from aiorepl.journal.chain import Chain
from aiorepl.journal.completeness import (
    Completeness,
    PublishedChunk,
    completeness_file,
    load_completeness,
)
from aiorepl.journal.index import SegmentIndex
from aiorepl.journal.manifest import Manifest, ManifestRef
from aiorepl.journal.metadata import Identity, JournalState, Start, load_identity, load_start, load_state
from aiorepl.journal.segments import FOLDER as SEGMENTS
from aiorepl.journal.segments import Segment
from aiorepl.position import Position
from aiorepl.storage.store import Store, reading

IDENTITY: Final = "journal.json"
POSITION: Final = "position.json"
START: Final = "start.json"
PREPARED: Final = "prepared"

_CACHED_MANIFESTS: Final = 16

T = TypeVar("T")


class MetadataFiles:
    """The metadata of one journal. One thread may use it at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identity: Identity | None = None
        self._position: tuple[bytes, JournalState] | None = None
        self._manifests: dict[str, Manifest] = {}
        # The completeness file that was loaded last, and its contents with the chunks of a state.
        self._completeness: tuple[str | None, Completeness] = None, Completeness()
        self._with_chunks: tuple[str | None, tuple[PublishedChunk, ...], Completeness] | None = None

    def chain(self) -> Chain | None:
        """Return the journal as it is now; ``None`` if there is none.

        :raises JournalError: a file is damaged, missing, or has another format.
        """
        state = self.state()
        if state is None:
            identity = self.identity()
            missing = IDENTITY if identity is None else POSITION
            with reading(self._store):
                # The first writer claims the journal before it uploads anything.
                found = self._store.names(SEGMENTS) or self._store.names(PREPARED)
            if found and self.state() is None:
                raise self._missing(missing)
            return None if identity is None else Chain(identity, JournalState.empty(identity), self)
        identity = self._identity
        if identity is None:
            identity = self.identity()
            if identity is None:
                raise self._missing(IDENTITY)
            # Not cached while the journal is empty, because an empty journal may get another start.
            self._identity = identity if state.position.lsn else None
        if state.journal != identity.journal:
            raise self._foreign(POSITION)
        return Chain(identity, state, self)

    def identity(self) -> Identity | None:
        """Read ``journal.json``; ``None`` if there is no journal.

        :raises JournalError: the file is damaged, or has another format.
        """
        return self._read(IDENTITY, load_identity)

    def state(self) -> JournalState | None:
        """Read ``position.json``; ``None`` if there is none yet.

        :raises JournalError: the file is damaged, has another format, or is older than at the last read.
        """
        with reading(self._store):
            try:
                data = self._store.read(POSITION)
            except FileNotFoundError:
                self._require_no_state()
                return None
        return self._parsed(data)

    def versioned_state(self) -> tuple[JournalState | None, str | None]:
        """Read ``position.json`` as ``state`` does, with the file's version."""
        with reading(self._store):
            try:
                data, version = self._store.load(POSITION)
            except FileNotFoundError:
                self._require_no_state()
                return None, None
        return self._parsed(data), version

    def _require_no_state(self) -> None:
        if self._position is not None:
            raise self._missing(POSITION) from None

    def _parsed(self, data: bytes) -> JournalState:
        before = self._position
        if before is not None and before[0] == data:
            return before[1]
        state = load_state(data, self._location(POSITION))
        if before is not None and (state.epoch, state.sequence) < (before[1].epoch, before[1].sequence):
            raise older_copy(self._store)
        self._position = data, state
        return state

    def start(self, state: JournalState) -> Start:
        """Read ``start.json``: where retention has moved the start.

        :raises JournalError: the file is damaged, or the start is after the journal's end.
        """
        start = self._read(START, load_start) or Start(state.journal)
        if start.journal != state.journal:
            raise self._foreign(START)
        # The state may have been read before the segments were published that are pruned by now.
        if start.lsn > state.end.lsn and ((now := self.state()) is None or start.lsn > now.end.lsn):
            raise older_copy(self._store)
        return start

    def versioned_start(self, identity: Identity) -> tuple[Start, str | None]:
        """Read ``start.json`` of the journal ``identity``, with its version.

        :raises JournalError: the file is damaged, or belongs to another journal.
        """
        with reading(self._store):
            try:
                data, version = self._store.load(START)
            except FileNotFoundError:
                return Start(identity.journal), None
        start = load_start(data, self._location(START))
        if start.journal != identity.journal:
            raise self._foreign(START)
        return start, version

    def completeness(self, state: JournalState) -> Completeness:
        """Load the gaps and snapshots of this state, or of a later one."""
        while (name := state.completeness) is not None and self._completeness[0] != name:
            loaded = self._read(completeness_file(name), partial(load_completeness, name))
            if loaded is not None:
                self._completeness = name, loaded
            else:
                state = self._present(completeness_file(name))
                if state.completeness == name:
                    raise self._missing(completeness_file(name))
        known = self._with_chunks
        if known is None or known[:2] != (name, state.chunks):
            base = Completeness() if name is None else self._completeness[1]
            known = self._with_chunks = name, state.chunks, base.with_chunks(state.chunks)
        return known[2]

    def manifest(self, ref: ManifestRef) -> Manifest:
        """Load the manifest ``ref``. If it was merged meanwhile, load the merged manifest, which has more segments."""
        after, end = ref.after, ref.end
        while True:
            manifest = self._manifest(ref)
            if manifest is not None:
                return manifest
            refs = self._present(ref.file).manifests
            if ref in refs:
                raise self._missing(ref.file)
            found = next((each for each in refs if each.after <= after and end <= each.end), None)
            if found is None:
                raise pruned(f"a part of the journal {self._store.url}, from {after} to {end},")
            ref = found

    def _manifest(self, ref: ManifestRef) -> Manifest | None:
        manifest = self._manifests.pop(ref.name, None)
        if manifest is None:
            manifest = self._read(ref.file, partial(Manifest.load, ref))
        if manifest is not None:
            self._manifests[ref.name] = manifest
            while len(self._manifests) > _CACHED_MANIFESTS:
                del self._manifests[next(iter(self._manifests))]
        return manifest

    def _present(self, file: str) -> JournalState:
        """Return the present state, because ``file`` was not found: a later state may name another file in its place."""
        state = self.state()
        if state is None:
            raise self._missing(file)
        return state

    def _read(self, name: str, load: Callable[[bytes, str], T]) -> T | None:
        with reading(self._store):
            try:
                data = self._store.read(name)
            except FileNotFoundError:
                return None
        return load(data, self._location(name))

    def _foreign(self, name: str) -> DamagedJournal:
        return DamagedJournal(f"{self._location(name)} is from another journal")

    def _missing(self, name: str) -> DamagedJournal:
        return DamagedJournal(f"{self._location(name)} is missing")

    def _location(self, name: str) -> str:
        return f"{name} in the journal {self._store.url}"


def pruned(what: str) -> JournalError:
    """Make the error for segments that were pruned after a reader had planned to read them.

    :param what: the segments, as the subject of a sentence.
    """
    return JournalError(
        f"{what} was pruned while it was being read: start the reader again; a registered cursor keeps the segments that its reader "
        "needs"
    )


def older_copy(store: Store) -> DamagedJournal:
    """Make the error for a ``position.json`` that is older than other files."""
    return DamagedJournal(f"{POSITION} in the journal {store.url} is an older copy: other files are newer")


def load_index(store: Store, segment: Segment, source: Position) -> SegmentIndex:
    """Read the index of a segment.

    :param source: the slot and cluster of the journal.
    :raises DamagedJournal: the index is damaged or missing.
    """
    location = f"{segment.file} in the journal {store.url}"
    try:
        data = store.read(segment.file, segment.index_offset, segment.size - segment.index_offset)
    except FileNotFoundError as error:
        raise DamagedJournal(f"{location} is missing") from error
    loaded = index.load(data, segment.index_offset, location)
    if (loaded.after, loaded.epoch, loaded.part) != (segment.after, segment.epoch, segment.part) or (
        segment.last_part and loaded.end.lsn != segment.last_end_lsn
    ):
        raise DamagedJournal(f"{location} is another segment, from {loaded.after} to {loaded.end.lsn}")
    require_own(source, loaded, location)
    return loaded


def require_own(own: Position, loaded: SegmentIndex, location: str) -> None:
    """Verify that an index belongs to the journal's own source: slots of one cluster can have segments of the same names.

    :raises JournalError: the index belongs to another slot or cluster.
    """
    end = loaded.end
    if (end.system_identifier, end.slot) != (own.system_identifier, own.slot):
        raise DamagedJournal(
            f"{location} is from another journal: its source is slot {end.slot!r} of cluster {end.system_identifier}, and the "
            f"journal's source is slot {own.slot!r} of cluster {own.system_identifier}"
        )
