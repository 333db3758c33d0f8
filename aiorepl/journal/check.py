"""Verifies every file of a journal, for ``aiorepl journal check``. Read-only; blocking."""

from __future__ import annotations

from collections.abc import Iterator

from aiorepl.errors import AioreplError, DamagedJournal
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.metadata import PreparedTransaction
from aiorepl.journal.prepared import read_prepared
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import Segment
from aiorepl.journal.store import Location, Store, open_store, reading


def problems(url: Location | Store, *, store: Store | None = None) -> Iterator[AioreplError]:
    """Find the damaged and missing files of the journal at ``url``. Yields the error that a reader would raise for each."""
    store = open_store(url) if store is None else store
    reader, cursors = JournalReader(url, store=store), Cursors(url, store=store)

    def check_segment(segment: Segment, previous: Segment | None) -> None:
        if previous is not None and not segment.follows(previous):
            raise DamagedJournal(
                f"the manifests of the journal {store.url} are damaged: {segment.file} does not follow {previous.file}"
            )
        index = reader.index(segment)
        for block in index.blocks:
            for _ in reader.messages(segment, block):
                pass
        for number in range(len(index.descriptions)):
            index.relation(number)
        with reading(store):
            size, _ = store.about(segment.file)
        if size != segment.size:
            raise DamagedJournal(
                f"{segment.file} in the journal {store.url} is damaged: it has {size} bytes instead of {segment.size}"
            )

    def check_prepared(transaction: PreparedTransaction) -> None:
        for _ in read_prepared(store, transaction, chain.identity.source):
            pass

    try:
        chain = reader.chain()
        segments = chain.segments()
        _ = chain.completeness
    except AioreplError as error:
        yield error
        return
    previous = None
    for segment in segments:
        try:
            check_segment(segment, previous)
        except AioreplError as error:
            # Not an error if it was pruned meanwhile.
            if segment.after >= reader.chain().start_lsn:
                yield error
        previous = segment
    for transaction in chain.state.prepared:
        try:
            check_prepared(transaction)
        except AioreplError as error:
            # Not an error if it was decided meanwhile.
            if transaction in reader.chain().state.prepared:
                yield error
    for name in cursors.names():
        try:
            cursors.get(name)
        except AioreplError as error:
            yield error
