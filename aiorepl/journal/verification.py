"""Verifies every file of a journal, for ``aiorepl journal verify``. Read-only; blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from aiorepl.errors import AioreplError, DamagedJournal
from aiorepl.journal.chain import Chain
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.manifest import Manifest
from aiorepl.journal.metadata import PreparedTransaction
from aiorepl.journal.prepared import read_prepared
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import Entry, Segment
from aiorepl.lsn import LSN
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, reading


def problems(
    url: Location | Store, *, store: Store | None = None, read: Callable[[int], None] = lambda _: None
) -> Iterator[AioreplError]:
    """Find the damaged and missing files of the journal at ``url``. Yields the error that a reader would raise for each.

    :param read: called with the size of each block that was read.
    """
    store = open_store(url) if store is None else store
    reader, cursors = JournalReader(url, store=store), Cursors(url, store=store)

    def verify_segment(entry: Entry, previous: Segment | None) -> None:
        segment = entry.segment
        if previous is not None and not segment.follows(previous):
            raise DamagedJournal(
                f"the manifests of the journal {store.url} are damaged: {segment.file} does not follow {previous.file}"
            )
        index = reader.index(segment)
        if set(index.tables) != set(entry.tables):
            raise DamagedJournal(
                f"the manifests of the journal {store.url} are damaged: they name other tables than {segment.file} has"
            )
        for block in index.blocks:
            for _ in reader.messages(segment, block):
                pass
            read(block.length)
        for number in range(len(index.descriptions)):
            index.relation(number)
        with reading(store):
            size, _ = store.about(segment.file)
        if size != segment.size:
            raise DamagedJournal(
                f"{segment.file} in the journal {store.url} is damaged: it has {size} bytes instead of {segment.size}"
            )

    def verify_prepared(transaction: PreparedTransaction) -> None:
        for _ in read_prepared(store, transaction, chain.identity.source):
            pass

    try:
        chain = reader.chain()
        start = chain.start_lsn
    except AioreplError as error:
        yield error
        return
    try:
        _ = chain.completeness
    except AioreplError as error:
        yield error
    previous = None
    for load, end in _manifests(chain):
        try:
            manifest = load()
        except AioreplError as error:
            # A cursor that was dropped meanwhile is no error: its segments were pruned.
            if end > reader.chain().start_lsn:
                yield error
            previous = None
            continue
        within = manifest.within(start, end)
        for entry in islice(manifest.entries(), within.start, within.stop):
            try:
                verify_segment(entry, previous)
            except AioreplError as error:
                # A segment that was pruned meanwhile is no error.
                if entry.segment.after >= reader.chain().start_lsn:
                    yield error
            previous = entry.segment
    for transaction in chain.state.prepared:
        try:
            verify_prepared(transaction)
        except AioreplError as error:
            # A transaction that was decided meanwhile is no error.
            if transaction in reader.chain().state.prepared:
                yield error
    for name in cursors.names():
        try:
            cursors.get(name)
        except AioreplError as error:
            yield error


def _manifests(chain: Chain) -> Iterator[tuple[Callable[[], Manifest], LSN]]:
    """Iterate over all manifests, each with the end of its last segment. The segments of ``position.json`` come as a last manifest."""
    for ref in chain.state.manifests:
        if ref.end > chain.start_lsn:
            yield partial(chain.files.manifest, ref), ref.end
    yield partial(Manifest.of, chain.state.tail), chain.last_segment_end
