"""Replaces ``position.json``, the journal's only commit point. Blocking; used by the writer only.

A commit has steps that can fail, or be the last before a kill: the files that the new state names are written, then
``position.json`` is replaced by compare-and-swap, then files that it no longer names are deleted. A failed commit stays
pending. It is finished with the same contents before anything else is done, so a compare-and-swap whose answer was lost is
recognised.

The epoch fences other writers. The process that has the slot is the right writer, so the epoch is taken with the first write,
when the stream runs, and not when the journal is opened. A writer that slept meanwhile fails with its next commit.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiorepl.errors import JournalError
from aiorepl.journal import completeness as complete
from aiorepl.journal import manifest, segments
from aiorepl.journal.completeness import (
    Completeness,
    PublishedChunk,
    completeness_file,
    completeness_name,
    dump_completeness,
)
from aiorepl.journal.holder import Holder
from aiorepl.journal.manifest import MERGED, Manifest, ManifestRef, manifest_name
from aiorepl.journal.metadata import Identity, JournalState, PreparedTransaction, dump_identity, dump_state
from aiorepl.journal.metadata_files import IDENTITY, POSITION, MetadataFiles, older_copy
from aiorepl.journal.segments import Entry
from aiorepl.journal.times import Times
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.storage.checked_json import checksum
from aiorepl.storage.store import Store, Superseded

_TAIL_SEGMENTS: Final = 64
# The limit of tables in the tail, which keeps position.json small. A table counts once for each of its segments.
_TAIL_TABLES: Final = 2048
# The limit of chunks in position.json; beyond it, the file with all tables is written.
_CHUNKS: Final = 64
# The size beyond which a manifest is not merged.
_MAX_SEGMENTS: Final = 100_000


@dataclass(slots=True)
class _Pending:
    """A commit that is not finished.

    :param files: the names and contents of files that are written before ``position.json``.
    :param obsolete: the files that only the former state names; they are deleted after the commit.
    """

    state: JournalState
    data: bytes
    files: list[tuple[str, bytes]]
    obsolete: tuple[str, ...]
    recorded: Completeness


class Publisher:
    """The commits of one writer.

    :param store: the journal's store; the writer has locked it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files = MetadataFiles(store)
        self._own = Holder.own()
        self._version: str | None = None
        self._pending: _Pending | None = None
        self._obsolete: list[str] = []
        # Unpublished uploads of earlier writers, by the ``after`` in their names.
        self._orphans: list[tuple[LSN, str]] = []
        self.state: JournalState | None = None
        """The state on disk; ``None`` before ``open``."""
        # The contents of the completeness file: first as in the file, then with the chunks of the state. Both are set on first
        # use.
        self._recorded = Completeness()
        self._completeness: Completeness | None = None

    @property
    def completeness(self) -> Completeness:
        """The gaps and snapshots on disk."""
        if self._completeness is None:
            self._completeness = self._recorded.with_chunks(() if self.state is None else self.state.chunks)
        return self._completeness

    def open(self, source: Position, holder: str) -> Identity:
        """Read the journal; writes only ``journal.json``, and only while the journal is empty.

        :param holder: how errors name the journal.
        :raises JournalError: the journal is damaged.
        :raises SlotError: the journal belongs to another source.
        """
        chain = self._files.chain()
        if chain is not None:
            chain.identity.source.require_same_source(source, holder)
        state, self._version = self._files.versioned_state()
        if state is not None:
            state.position.require_same_source(source, holder)
        if chain is not None and state is not None and state.position.lsn:
            identity = chain.identity
        else:
            # An empty journal starts at the slot's current position.
            journal = secrets.token_hex(8) if chain is None else chain.identity.journal
            identity = self._identify(Identity(source.at(ZERO), source.lsn, journal), holder)
        if state is None:
            state = JournalState.empty(identity)
        self._recorded = self._files.completeness(replace(state, chunks=()))
        self._completeness = None
        self.state = state
        return identity

    def _identify(self, identity: Identity, holder: str) -> Identity:
        """Write ``journal.json``. Return its contents, which another process may have written first."""
        try:
            version: str | None = self._store.load(IDENTITY)[1]
        except FileNotFoundError:
            version = None
        try:
            self._store.replace(IDENTITY, dump_identity(identity), version)
        except Superseded:
            found = self._files.identity()
            if found is None:
                raise JournalError(
                    f"another process deletes the journal in {self._store.url} at this moment"
                ) from None
            found.source.require_same_source(identity.source, holder)
            return found
        return identity

    @property
    def claimed(self) -> bool:
        """Whether this writer has the epoch."""
        return self.state is not None and self.state.writer == self._own

    def require_epoch(self) -> None:
        """Check that no later writer has taken the epoch.

        :raises JournalError: a later writer has taken the epoch, or ``position.json`` cannot be read.
        """
        found, _ = self._files.versioned_state()
        if self.claimed and (found is None or found.writer != self._own):
            raise self._taken_over()

    def claim(self) -> None:
        """Take the epoch: the commits of every earlier writer fail from now on.

        :raises JournalError: another writer has committed since ``open``, or ``position.json`` is an older copy.
        """
        self.finish()
        if self.claimed:
            return
        state = self._require_state()
        self._look_around(state)
        claimed = replace(state, epoch=state.epoch + 1, sequence=state.sequence + 1, writer=self._own)
        self._pending = _Pending(claimed, dump_state(claimed), [], (), self._recorded)
        self.finish()

    def _look_around(self, state: JournalState) -> None:
        """Find the files that earlier writers left.

        A file newer than ``position.json`` is an error, because ``position.json`` must be an older copy then.
        """
        newer = False
        start = self._files.start(state)
        self._orphans, self._obsolete = [], []
        for file in self._store.names(segments.FOLDER):
            try:
                after, epoch, _ = segments.parse_name(file)
            except ValueError:
                continue  # not ours
            # A writer uploads only segments after the last published one.
            newer = newer or epoch > state.epoch or after > state.end.lsn
            if after >= state.end.lsn:
                self._orphans.append((after, f"{segments.FOLDER}/{file}"))
            elif after < start.lsn and after < state.first_lsn:
                self._obsolete.append(f"{segments.FOLDER}/{file}")
        limit = manifest_name(state.epoch, state.sequence + 1)
        named = {ref.file for ref in state.manifests}
        if state.completeness is not None:
            named.add(completeness_file(state.completeness))
        for folder in (manifest.FOLDER, complete.FOLDER):
            for file in self._store.names(folder):
                newer = newer or file[: len(limit)] > limit
                if f"{folder}/{file}" not in named:
                    self._obsolete.append(f"{folder}/{file}")
        if newer:
            self._orphans, self._obsolete = [], []
            if self._files.versioned_state()[1] != self._version:
                raise self._taken_over()
            raise older_copy(self._store)

    def commit(
        self,
        *,
        position: Position,
        entries: Sequence[Entry] = (),
        end: Position | None = None,
        begins: LSN = ZERO,
        prepared: tuple[PreparedTransaction, ...] | None = None,
        completeness: Completeness | None = None,
        published: Sequence[PublishedChunk] = (),
        times: Times | None = None,
    ) -> None:
        """Prepare a commit, which ``finish`` carries out. The previous one must be finished.

        :param position: the journal's end.
        :param entries: the new segments; they are uploaded.
        :param end: the end of the last new segment; ``None`` without one.
        :param begins: where the journal begins, if these are its first segments.
        :param prepared: the undecided prepared transactions; ``None``: as before.
        :param completeness: the gaps and snapshots; ``None``: as before, with ``published``.
        :param published: the chunks of snapshots that the new segments have.
        :param times: the commit times up to ``position``; ``None``: as before.
        """
        assert self._pending is None
        assert self.claimed
        state = self._require_state()
        sequence = state.sequence + 1
        files: list[tuple[str, bytes]] = []
        obsolete: list[str] = []
        name, recorded = state.completeness, self._recorded
        chunks = (*state.chunks, *(chunk for chunk in published if chunk.decisive))
        if (changed := self._changed(completeness, chunks)) is not None:
            if name is not None:
                obsolete.append(completeness_file(name))
            data = dump_completeness(changed)
            name = completeness_name(state.epoch, sequence, data)
            files.append((completeness_file(name), data))
            chunks, recorded = (), changed
        refs, tail = state.manifests, (*state.tail, *entries)
        if len(tail) > _TAIL_SEGMENTS or sum(len(entry.tables) for entry in tail) > _TAIL_TABLES:
            ref, data = _manifest(Manifest.of(tail), state.epoch, sequence, 0)
            refs, tail = (*refs, ref), ()
            files.append((ref.file, data))
        new = replace(
            state,
            position=position,
            end=state.end if end is None else end,
            sequence=sequence,
            begins=begins if entries and state.begins is None else state.begins,
            manifests=refs,
            tail=tail,
            prepared=state.prepared if prepared is None else prepared,
            completeness=name,
            chunks=chunks,
            times=state.times if times is None else times,
        )
        self._pending = _Pending(new, dump_state(new), files, tuple(obsolete), recorded)

    def _changed(
        self, wanted: Completeness | None, chunks: tuple[PublishedChunk, ...]
    ) -> Completeness | None:
        """Return the contents of a new completeness file; ``None`` if the present file stays, followed by ``chunks``."""
        if wanted is not None and wanted != self.completeness:
            return wanted
        return self._recorded.with_chunks(chunks) if len(chunks) >= _CHUNKS else None

    def keep_orphans(self) -> None:
        """Keep the uploads of earlier writers: if ``position.json`` is an older copy, they may have been published."""
        self._orphans = []

    def finish(self) -> bool:
        """Carry out the pending commit. Durable on return. After an OSError the call may be repeated.

        :returns: whether a commit was pending.
        :raises JournalError: another writer has taken over.
        """
        pending = self._pending
        if pending is None:
            return False
        while pending.files:
            self._store.write(*pending.files[0])
            del pending.files[0]
        try:
            self._version = self._store.replace(POSITION, pending.data, self._version)
        except Superseded:
            raise self._taken_over() from None
        before, self.state, self._recorded = self.state, pending.state, pending.recorded
        if before is None or (before.completeness, before.chunks) != (
            self.state.completeness,
            self.state.chunks,
        ):
            self._completeness = None
        self._pending = None
        self._obsolete += pending.obsolete
        end = self.state.end.lsn
        # Uploads of earlier writers are kept until the same range is durable in other segments.
        self._obsolete += [file for after, file in self._orphans if after < end]
        self._orphans = [orphan for orphan in self._orphans if orphan[0] >= end]
        if before is not None and len(before.manifests) != len(self.state.manifests):
            self._compact()
        self._delete_obsolete()
        return True

    def _compact(self) -> None:
        """Drop manifests whose segments are deleted, and merge the manifests of each level. Repeated after a later commit if it fails."""
        state, pending = self._require_state(), None
        with contextlib.suppress(OSError, JournalError):
            pending = self._compacted(state)
        if pending is None:
            return
        self._pending = pending
        try:
            # The commit compacts again if there are eight manifests of the next level now.
            self.finish()
        except OSError:
            # If position.json was not replaced yet, nothing has happened. Otherwise the outcome must be known before the next
            # commit.
            if self._pending is None or not self._pending.files:
                raise
            self._pending = None

    def _compacted(self, state: JournalState) -> _Pending | None:
        """Return the commit that compacts the manifests; ``None`` if there is nothing to do."""
        deleted = self._files.start(state).deleted
        refs = tuple(ref for ref in state.manifests if ref.end > deleted)
        last, files = refs[-MERGED:], []
        if _mergeable(last):
            merged = Manifest.merged(map(self._files.manifest, last))
            ref, data = _manifest(merged, state.epoch, state.sequence + 1, last[0].level + 1)
            refs = (*refs[:-MERGED], ref)
            files = [(ref.file, data)]
        if len(refs) == len(state.manifests):
            return None
        new = replace(state, sequence=state.sequence + 1, manifests=refs)
        obsolete = tuple(ref.file for ref in state.manifests if ref not in refs)
        return _Pending(new, dump_state(new), files, obsolete, self._recorded)

    def _delete_obsolete(self) -> None:
        remaining = []
        for file in self._obsolete:
            try:
                self._store.delete(file)
            except OSError:
                remaining.append(file)
        self._obsolete = remaining

    def _taken_over(self) -> JournalError:
        state, _ = self._files.versioned_state()
        who = "" if state is None or state.writer is None else f" ({state.writer})"
        return JournalError(
            f"another writer has taken over the journal in {self._store.url}{who}: only one pipeline may write a journal; "
            "nothing that this one had not made durable was confirmed to the server"
        )

    def _require_state(self) -> JournalState:
        if self.state is None:
            raise RuntimeError("call open first")
        return self.state


def _mergeable(refs: Sequence[ManifestRef]) -> bool:
    return (
        len(refs) == MERGED
        and len({ref.level for ref in refs}) == 1
        and sum(ref.segments for ref in refs) <= _MAX_SEGMENTS
    )


def _manifest(made: Manifest, epoch: int, sequence: int, level: int) -> tuple[ManifestRef, bytes]:
    first, last = made.segment(0), made.segment(len(made) - 1)
    data = made.dump()
    ref = ManifestRef(
        manifest_name(epoch, sequence),
        level,
        first.after,
        last.last_end_lsn,
        len(made),
        made.total_size(),
        checksum(data),
    )
    return ref, data
