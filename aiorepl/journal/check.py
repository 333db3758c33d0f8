"""Verifies every file of a journal, for ``aiorepl journal check``. Read-only; blocking."""

from __future__ import annotations

from collections.abc import Iterator

from aiorepl.errors import AioreplError, DamagedJournal
from aiorepl.journal.chain import Segment
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.metadata import PreparedTransaction
from aiorepl.journal.metadata_files import SEGMENT
from aiorepl.journal.prepared import CONTENT, load_prepared_index, read_prepared
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.store import Location, Store, open_store, reading


def problems(url: Location | Store, *, store: Store | None = None) -> Iterator[AioreplError]:
    """Find the damaged and missing files of the journal at ``url``. Yields the error that a reader would raise for each."""
    store = open_store(url) if store is None else store
    reader, cursors = JournalReader(url, store=store), Cursors(url, store=store)

    def require_size(file: str, expected: int) -> None:
        with reading(store):
            size, _ = store.about(file)
        if size != expected:
            raise DamagedJournal(
                f"{file} in the journal {store.url} is damaged: it has {size} bytes instead of {expected}"
            )

    def check_segment(segment: Segment) -> None:
        index = reader.index(segment)
        for block in index.blocks:
            for _ in reader.messages(segment, block):
                pass
        require_size(segment.name + SEGMENT, index.size)

    def check_prepared(transaction: PreparedTransaction) -> None:
        for _ in read_prepared(store, transaction):
            pass
        require_size(transaction.name + CONTENT, load_prepared_index(store, transaction).size)

    try:
        chain = reader.chain()
    except AioreplError as error:
        yield error
        return
    for segment in chain.segments():
        try:
            check_segment(segment)
        except AioreplError as error:
            # Not an error if it was pruned meanwhile.
            if segment.name in reader.chain().names:
                yield error
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
