"""Verifies every file of a journal. Read-only; blocking."""

from __future__ import annotations

import os
from collections.abc import Iterator

from aiorepl.errors import AioreplError, DamagedJournal
from aiorepl.journal.chain import Segment
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.metadata import PreparedTransaction
from aiorepl.journal.metadata_files import SEGMENT
from aiorepl.journal.prepared import CONTENT, load_prepared_index, read_prepared
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.store import Store, open_store, reading


def problems(url: str | os.PathLike[str], *, store: Store | None = None) -> Iterator[AioreplError]:
    """Yield every error that a reader of the journal at ``url`` would raise, file by file."""
    held = open_store(url) if store is None else store
    reader, cursors = JournalReader(url, store=held), Cursors(url, store=held)

    def require_size(file: str, expected: int) -> None:
        with reading(held):
            size, _ = held.about(file)
        if size != expected:
            raise DamagedJournal(
                f"{file} in the journal {held.url} is damaged: it has {size} bytes, and should have {expected}"
            )

    def segment_is_whole(segment: Segment) -> None:
        index = reader.index(segment)
        for block in index.blocks:
            for _ in reader.messages(segment, block):
                pass
        require_size(segment.name + SEGMENT, index.size)

    def prepared_is_whole(kept: PreparedTransaction) -> None:
        for _ in read_prepared(held, kept):
            pass
        require_size(kept.name + CONTENT, load_prepared_index(held, kept).size)

    try:
        chain = reader.chain()
    except AioreplError as error:
        yield error
        return
    for segment in chain.segments():
        try:
            segment_is_whole(segment)
        except AioreplError as error:
            # Not an error if it was pruned meanwhile.
            if segment.name in reader.chain().names:
                yield error
    for kept in chain.state.prepared:
        try:
            prepared_is_whole(kept)
        except AioreplError as error:
            # Not an error if it was decided meanwhile.
            if kept in reader.chain().state.prepared:
                yield error
    for name in cursors.names():
        try:
            cursors.get(name)
        except AioreplError as error:
            yield error
