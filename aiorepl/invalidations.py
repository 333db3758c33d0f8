"""Keys of changed rows, for a cache or a page that shows rows.

    changed = Invalidations()
    async with Pipeline(source, [changed]):
        while True:
            await changed.wait()
            invalidated = changed.take()

Keys are collected, not changes: a slow consumer wakes once and takes more keys. The keys use at most ``max_bytes`` of memory. Beyond
that limit, the table whose keys use the most memory counts as changed as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Final

from aiorepl.checked import checked
from aiorepl.errors import DataError
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.position import Position
from aiorepl.sink import Batch, Sink, SinkContext
from aiorepl.sizes import Size, size_of
from aiorepl.source.transaction_stream import TransactionStream
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.schema_changes import SchemaChange

Key = tuple[Any, ...]

# The approximate memory of one entry of a set or a dict.
_ENTRY_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The changes between two calls of ``Invalidations.take``. The object is false if nothing has changed.

    :param everything: whether all rows of all tables may have changed, as at the start and after a ``Resync``.
    :param tables: the keys of changed rows, by schema and name of the table. A key has the values of the replica identity's columns, such as
        ``(7,)``; an update that changes the key adds the old and the new key. ``None``: all rows of the table may have changed.
    """

    everything: bool = False
    tables: Mapping[tuple[str, str], frozenset[Key] | None] = field(default_factory=dict)

    def keys(self, schema: str, table: str) -> frozenset[Key] | None:
        """Return the keys of a table's changed rows; ``None`` if all its rows may have changed."""
        return None if self.everything else self.tables.get((schema, table), frozenset())

    def __bool__(self) -> bool:
        return self.everything or bool(self.tables)


@checked("invalidations")
class Invalidations(Sink):
    """A sink that collects the keys of changed rows until the consumer calls ``take``.

    Create one for each consumer: only one task at a time may use it. Without a pipeline, pass a stream to ``read``, or single changes to
    ``add``. A table counts as changed as a whole after a TRUNCATE, and if no key identifies its rows (replica identity FULL or NOTHING, or a NaN in
    the key).

    :param max_bytes: the limit of memory for keys.
    """

    takes_resync = True

    def __init__(self, *, max_bytes: Size = 1024 * 1024) -> None:
        self.live = False
        """Whether a stream is being read; under ``read``, from the first item on. While it is false, do not cache: changes are not seen."""
        self._max_bytes = size_of("invalidations: max_bytes", max_bytes)
        self._everything = True
        self._tables: dict[tuple[str, str], set[Key] | None] = {}
        # The memory of the keys, by table, without tables that count as a whole; and the sum, with the entries of all tables.
        self._bytes: dict[tuple[str, str], int] = {}
        self._total = 0
        self._changed = asyncio.Event()
        self._changed.set()

    async def wait(self) -> None:
        """Wait until ``take`` has changes to return."""
        await self._changed.wait()

    def take(self) -> Invalidated:
        """Return the changes since the last call."""
        tables = {table: None if keys is None else frozenset(keys) for table, keys in self._tables.items()}
        taken = Invalidated(self._everything, tables)
        self._forget(everything=False)
        self._changed.clear()
        return taken

    def add(self, change: Change) -> None:
        """Add a change of any kind. Messages change no rows."""
        if self._everything or isinstance(change, Message):
            return
        if isinstance(change, RowChange):
            self._add(change.schema, change.table, _keys(change))
        elif isinstance(change, Truncate):
            for relation in change.relations:
                self._add(relation.schema, relation.name, None)
        elif isinstance(change, SchemaChange) or (isinstance(change, PublicationChange) and change.schema):
            self._add(change.schema, change.table, None)
        else:
            self._forget(everything=True)
        self._changed.set()

    async def read(self, stream: TransactionStream) -> None:
        """Add the changes of a stream until its end.

        :param stream: the stream of ``aiorepl.connect`` or ``aiorepl.follow``.
        """
        try:
            async for transaction in stream:
                # Not earlier: a stream of ``follow`` may still be waiting for its journal.
                self.live = True
                async for change in transaction:
                    self.add(change)
                await stream.ack(transaction)
        finally:
            await self.close()

    async def open(self, context: SinkContext) -> Position | None:
        self.live = True
        return None

    async def write(self, batch: Batch) -> None:
        for change in batch.changes:
            self.add(change)

    async def close(self) -> None:
        self.live = False
        self._forget(everything=True)
        self._changed.set()

    def _add(self, schema: str, name: str, keys: Iterable[Key] | None) -> None:
        table = schema, name
        if table not in self._tables:
            self._tables[table], self._bytes[table] = set(), 0
            self._total += _ENTRY_BYTES + getsizeof(schema) + getsizeof(name)
        found = self._tables[table]
        if found is not None and keys is None:
            self._widen(table)
        elif found is not None and keys is not None:
            new = set(keys) - found
            found |= new
            size = sum(map(_size, new))
            self._bytes[table] += size
            self._total += size
        while self._total > self._max_bytes:
            if self._bytes:
                self._widen(max(self._bytes, key=self._bytes.__getitem__))
            else:
                self._forget(everything=True)

    def _widen(self, table: tuple[str, str]) -> None:
        """Let a table count as changed as a whole."""
        self._tables[table] = None
        self._total -= self._bytes.pop(table)

    def _forget(self, *, everything: bool) -> None:
        self._everything = everything
        self._tables, self._bytes, self._total = {}, {}, 0


def _keys(change: RowChange) -> list[Key] | None:
    """Return the keys of the row before and after the change; ``None`` if they are unknown."""
    key = change.key
    if key is None:
        return None
    try:
        keys = [tuple(key.values())]
        if change.raw_old is not None and change.new is not None:
            keys.append(tuple([change.new[name] for name in key]))
        # Lists and dicts cannot be hashed.
        set(keys)
    except (DataError, TypeError):
        return None
    # A NaN is not equal to itself, so nobody would find its key.
    unusable = any(value is UNCHANGED or value != value for each in keys for value in each)  # noqa: PLR0124
    return None if unusable else keys


def _size(key: Key) -> int:
    return _ENTRY_BYTES + getsizeof(key) + sum(map(getsizeof, key))
