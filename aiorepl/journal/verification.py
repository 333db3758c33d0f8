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
from aiorepl.position import Position
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
    try:
        chain = reader.chain()
        _ = chain.start_lsn
    except AioreplError as error:
        yield error
        return
    if problem := _error(lambda: chain.completeness):
        yield problem
    yield from _in_segments(reader, chain, store, read)
    for transaction in chain.state.prepared:
        problem = _error(_read_prepared, store, transaction, chain.identity.source)
        # A transaction that was decided meanwhile is no error.
        if problem and transaction in reader.chain().state.prepared:
            yield problem
    for name in cursors.names():
        if problem := _error(cursors.get, name):
            yield problem


def _in_segments(
    reader: JournalReader, chain: Chain, store: Store, read: Callable[[int], None]
) -> Iterator[AioreplError]:
    """Find the errors of manifests and segments."""
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
        within = manifest.within(chain.start_lsn, end)
        for entry in islice(manifest.entries(), within.start, within.stop):
            problem = _error(_verify_segment, reader, store, entry, previous, read)
            # A segment that was pruned meanwhile is no error.
            if problem and entry.segment.after >= reader.chain().start_lsn:
                yield problem
            previous = entry.segment


def _verify_segment(
    reader: JournalReader, store: Store, entry: Entry, previous: Segment | None, read: Callable[[int], None]
) -> None:
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


def _read_prepared(store: Store, transaction: PreparedTransaction, source: Position) -> None:
    for _ in read_prepared(store, transaction, source):
        pass


def _error(check: Callable[..., object], *arguments: object) -> AioreplError | None:
    """Return the error that a check raises; ``None`` if it raises none."""
    try:
        check(*arguments)
    except AioreplError as error:
        return error
    return None


def _manifests(chain: Chain) -> Iterator[tuple[Callable[[], Manifest], LSN]]:
    """Iterate over all manifests, each with the end of its last segment. The segments of ``position.json`` come as a last manifest."""
    for ref in chain.state.manifests:
        if ref.end > chain.start_lsn:
            yield partial(chain.files.manifest, ref), ref.end
    yield partial(Manifest.of, chain.state.tail), chain.last_segment_end
