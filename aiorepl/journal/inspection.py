"""Summarizes a journal, for ``aiorepl journal inspect``. Blocking; reads manifests and small files, and opens no segment."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from aiorepl.journal.chain import Chain
from aiorepl.journal.consumers import Consumer, consumers
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.metadata import PreparedTransaction
from aiorepl.journal.prepared import prepared_file
from aiorepl.journal.reader import JournalReader
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, reading
from aiorepl.table_name import TableName


@dataclass(slots=True)
class Segments:
    """All segments together.

    :param count: the number of segments; all parts of a segment count as one.
    :param files: the number of parts.
    :param size: in bytes.
    :param largest: the size of the largest segment, with all of its parts. A segment of several parts is one transaction.
    :param parts: the number of parts of that segment.
    :param oldest: when the first segment was published, in seconds since 1970; ``None`` if there is none.
    :param newest: when the last segment was published.
    """

    count: int = 0
    files: int = 0
    size: int = 0
    largest: int = 0
    parts: int = 0
    oldest: int | None = None
    newest: int | None = None


@dataclass(slots=True)
class TableSegments:
    """The segments with rows of a table.

    :param files: the number of parts.
    :param size: the size of these segments in bytes, including rows of other tables.
    """

    files: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class UndecidedTransaction:
    """An undecided prepared transaction, and its file.

    :param size: in bytes.
    :param since: when the file was published, in seconds since 1970.
    """

    transaction: PreparedTransaction
    size: int
    since: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """A journal at one moment."""

    url: str
    chain: Chain
    segments: Segments
    tables: dict[TableName, TableSegments]
    consumers: list[Consumer]
    prepared: list[UndecidedTransaction]


def inspect(url: Location | Store) -> Inspection:
    """Look at the journal at ``url``.

    :raises JournalError: there is no journal, or it is damaged or cannot be read.
    """
    store = open_store(url)
    chain = JournalReader(store).chain()
    segments, tables = _summarize(chain)
    prepared = []
    for transaction in chain.state.prepared:
        # The transaction was decided meanwhile, or its file is lost. The verification tells which.
        with reading(store), contextlib.suppress(FileNotFoundError):
            prepared.append(UndecidedTransaction(transaction, *store.about(prepared_file(transaction))))
    return Inspection(store.url, chain, segments, tables, consumers(chain, Cursors(store)), prepared)


def _summarize(chain: Chain) -> tuple[Segments, dict[TableName, TableSegments]]:
    whole = Segments()
    tables: dict[TableName, TableSegments] = {}
    together = 0
    for manifest, within in chain.contents():
        sizes = []
        for number in within:
            segment = manifest.segment(number)
            sizes.append(segment.size)
            together = segment.size if segment.part == 0 else together + segment.size
            whole.oldest = segment.published if whole.oldest is None else whole.oldest
            whole.newest = segment.published
            if segment.last_part:
                whole.count += 1
                if together > whole.largest:
                    whole.largest, whole.parts = together, segment.parts
        whole.files += len(sizes)
        whole.size += sum(sizes)
        for table in manifest.tables:
            if numbers := manifest.having(table, within):
                found = tables.setdefault(table, TableSegments())
                found.files += len(numbers)
                found.size += sum(sizes[number - within.start] for number in numbers)
    return whole, tables
