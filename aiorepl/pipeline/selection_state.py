"""Checks the selections of a pipeline at its start, and stores their memories of tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from aiorepl.cancellation import uninterrupted
from aiorepl.errors import ConfigurationError
from aiorepl.journal.cursors import Cursor, Cursors
from aiorepl.pipeline.source_reader import JOURNAL
from aiorepl.retry import RetryPolicy
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.storage.checked_json import (
    integer,
    seal,
    text,
    unseal,
)
from aiorepl.storage.document import Document, replace_for_slot
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store
from aiorepl.transforms.diagnose import require_matches
from aiorepl.transforms.memory import SelectionMemory
from aiorepl.transforms.rules import Rules
from aiorepl.transforms.selection import Selection

_MAX_NAMED: Final = 100
_REMEDY: Final = "Put back a copy of the file. Or delete it: the next start says how to go on without it"
_ADVICE: Final = (
    "Use the version that wrote it. Or delete the file: the next start says how to go on without it"
)


@dataclass(frozen=True, slots=True)
class _Memories:
    """The contents of the file.

    :param source: the cluster and database. An oid has a meaning only within one database.
    :param tables: by sink name, the tables that its selection remembers, including sinks that the configuration no longer has.
    :param writes: by sink name, how often its memory was written, including the writes before a loss of the file.
    """

    source: str = ""
    tables: Mapping[str, list[Any]] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)


class SelectionState:
    """The memories of all selections of a pipeline, in one file.

    :param selections: the selections by sink name; the journal's selection is under ``JOURNAL``.
    :param retries: the retry policies by the same names.
    :param folder: the journal, or the folder ``state_dir``; ``None``: a restart forgets the memories.
    :param slot: the name of the replication slot.
    :param journaled: whether the folder is a journal, where a sink's cursor tells that the sink was there before.
    :raises ConfigurationError: there is no folder, and a selection needs it.
    """

    def __init__(
        self,
        selections: Mapping[str, Selection | None],
        retries: Mapping[str, RetryPolicy],
        folder: Location | Store | None,
        slot: str,
        *,
        journaled: bool = False,
    ) -> None:
        self._selections = {
            name: selection
            for name, selection in selections.items()
            if selection is not None and selection.rules
        }
        self._retries = dict(retries)
        name = f"{slot}.selections.json"
        self._document = None if folder is None else Document(open_store(folder), name, _dump, _load)
        self._slot = slot
        self._journaled = journaled
        # The contents of the file; before the first write, the contents that it is going to have.
        self._stored = _Memories()
        self._loaded = False
        self._writing = asyncio.Lock()
        self.memories: dict[str, SelectionMemory] = {}
        for name, selection in self._selections.items():
            if self._document is None and (patterns := selection.forgetful):
                raise ConfigurationError(
                    f"sink {name}: the pattern {patterns[0]} may match after a rename, when it no longer hides what it hid, and "
                    "without a journal nothing remembers the names: set state_dir, a folder that is kept over restarts, or write "
                    "the exact names"
                )
            self.memories[name] = self._new_memory(name, selection)

    def may_hide_key(self, name: str, table: PublishedTable) -> bool:
        """Whether a selection may hide a column of the table's key. If so, the plan in the folder must not contain values of the key.

        A plan is written before the selection checks the first row. So a column that was hidden before a rename counts as hidden.

        :param name: the name of the sink, or ``JOURNAL``.
        """
        if name not in self.memories:
            return False
        if any(self._selections[name].rules.may_hide(column.name) for column in table.key):
            return True
        columns = {column.name: column.number for column in table.columns}
        return self.memories[name].may_disclose(table.oid, (table.schema, table.name), columns)

    async def begin(self, catalog: TableCatalog, source: str, read: bool) -> set[int]:
        """Check the selections against the published tables, and against their own earlier results.

        :param source: the cluster and database.
        :param read: whether the slot may have been read before.
        :returns: the oids of the tables that the selections remember.
        :raises ConfigurationError: a pattern matches nothing, or a selection hides less than before, or may do so.
        :raises JournalError: a memory is damaged, or cannot be read.
        :raises SinkError, PermanentError: the file cannot be written, or another process has written it.
        """
        require_matches(self._selections, catalog)
        document = self._document
        await self._load_file(source)
        await self._require_remembered(self._selections, catalog, read=read)
        for name, memory in self.memories.items():
            self._begin(name, memory, self._stored.tables.get(name, ()), catalog)
            if document is not None and not document.exists:
                # Write the file even without tables, because later starts require it. An existing file is replaced only once the
                # slot is acquired, because another pipeline may have the slot.
                await self._persist(name, memory.to_json())
        return {oid for memory in self.memories.values() for oid in memory.oids}

    async def check(
        self, selections: Mapping[str, Selection | None], found: TableCatalog, source: str
    ) -> None:
        """Check the selections of sinks that are added or altered while the stream runs, as ``begin`` does. Nothing is changed.

        :param found: the published tables, looked up now.
        :param source: the cluster and database.
        :raises ConfigurationError, JournalError: as for ``begin``.
        """
        ruled = {name: each for name, each in selections.items() if each is not None and each.rules}
        require_matches(ruled, found)
        if ruled and not self._loaded:
            await self._load_file(source)
        await self._require_remembered(ruled, found, read=True)
        for name, selection in ruled.items():
            self._remade(name, selection, found)

    def put(
        self, name: str, selection: Selection | None, retry: RetryPolicy, found: TableCatalog | None
    ) -> set[int]:
        """Replace the selection of a stopped sink by one that ``check`` has accepted. The new memory has everything that the former one had.

        :param found: as for ``check``; ``None`` if no selection was checked.
        :returns: the oids of the tables that the selection remembers.
        :raises ConfigurationError: a column was renamed since the check, and the selection would no longer hide it.
        """
        self._retries[name] = retry
        if selection is None or not selection.rules or found is None:
            self._selections.pop(name, None)
            self.memories.pop(name, None)
            return set()
        memory = self._remade(name, selection, found)
        self._selections[name], self.memories[name] = selection, memory
        return memory.oids

    def _remade(self, name: str, selection: Selection, found: TableCatalog) -> SelectionMemory:
        memory, former = self._new_memory(name, selection), self.memories.get(name)
        stored = self._stored.tables.get(name, ()) if former is None else former.to_json()
        self._begin(name, memory, stored, found)
        return memory

    def _new_memory(self, name: str, selection: Selection) -> SelectionMemory:
        write = None if self._document is None else partial(self._persist, name)
        return SelectionMemory(selection.rules, write, partial(self._written, name))

    @staticmethod
    def _begin(name: str, memory: SelectionMemory, stored: Iterable[Any], catalog: TableCatalog) -> None:
        memory.load(stored)
        try:
            memory.begin(catalog)
        except ConfigurationError as error:
            raise ConfigurationError(f"sink {name}: {error}") from None

    async def _load_file(self, source: str) -> None:
        self._stored = _Memories(source)
        document = self._document
        if document is not None and (found := await asyncio.to_thread(document.load)) is not None:
            _require_source(found, source, document.location)
            self._stored = found
        self._loaded = True

    async def _require_remembered(
        self, selections: Mapping[str, Selection], catalog: TableCatalog, *, read: bool
    ) -> None:
        """Check that the file remembers what these selections have hidden before.

        :raises ConfigurationError: the file is missing, or an older copy.
        """
        if (document := self._document) is None:
            return
        cursors = await asyncio.to_thread(self._read_cursors, selections)
        for name, selection in selections.items():
            if not document.exists:
                self._require_new(name, selection, catalog, cursors, document, read=read)
            elif name in cursors:
                self._require_newest(name, selection, cursors[name], document)
        counted = {name: max(self._written(name), cursor.writes) for name, cursor in cursors.items()}
        self._stored = replace(self._stored, writes={**self._stored.writes, **counted})

    def _written(self, sink: str) -> int:
        return self._stored.writes.get(sink, 0)

    def _require_newest(
        self, name: str, selection: Selection, cursor: Cursor, document: Document[_Memories]
    ) -> None:
        """Check that the file is not older than the sink's cursor. An older copy lacks tables and columns that were hidden later.

        Each sink has a number of its own. One number for all would grow again while only other sinks run, and then prove nothing.

        :raises ConfigurationError: the file is an older copy.
        """
        if cursor.writes > self._written(name) and selection.forgetful:
            raise ConfigurationError(
                f"sink {name}: {document.location} is an older copy, which may not know names that were hidden since: "
                f"it counts {self._written(name)} writes, and the sink's cursor {cursor.writes}. Put the newest file back, or delete the file: "
                "the next start says how to go on without it"
            )

    def _require_new(
        self,
        name: str,
        selection: Selection,
        catalog: TableCatalog,
        cursors: Mapping[str, Cursor],
        document: Document[_Memories],
        *,
        read: bool,
    ) -> None:
        """Check that a selection needs no memory, because it has not hidden anything before.

        :raises ConfigurationError: the selection may have hidden something, and its patterns may no longer match it.
        """
        if not (patterns := selection.forgetful):
            return
        if not self._journaled or name == JOURNAL:
            before = f"slot {self._slot} was read before" if read else None
        elif name in cursors and cursors[name].selects:
            before = "the sink has read the journal with a selection"
        else:
            before = None
        if before is not None:
            hidden = selection.hidden(catalog)
            listed = ", ".join(hidden[:_MAX_NAMED]) + (" …" if hidden[_MAX_NAMED:] else "")
            raise ConfigurationError(
                f"sink {name}: {before}, but {document.name} is missing in {document.store.url}, so nothing tells whether {patterns[0]} still "
                "hides what it hid: the name may have changed. Put the file back, or correct state_dir. If the selection is new, or "
                "the file is lost, start once with exact names instead of patterns with * or ?: the start takes them as right, and "
                f"writes the file. The patterns hide these names now, compare them with the tables: {listed or 'none'}"
            )

    def _read_cursors(self, names: Iterable[str]) -> dict[str, Cursor]:
        """Read the cursors of the sinks that have a selection; none without a journal.

        :raises JournalError: a cursor is damaged or cannot be read.
        """
        if self._document is None or not self._journaled:
            return {}
        cursors = Cursors(self._document.store)
        found = {name: cursors.read(name) for name in names}
        return {name: cursor for name, cursor in found.items() if cursor is not None}

    async def _persist(self, sink: str, tables: list[Any]) -> None:
        async for attempt in self._retries[sink].sink(f"sink {sink}: writing what its selection hides"):
            with attempt:
                async with self._writing:
                    await uninterrupted(self._replace(sink, tables))

    async def _replace(self, sink: str, tables: list[Any]) -> None:
        assert self._document is not None
        stored = self._stored
        changed = replace(
            stored,
            tables={**stored.tables, sink: tables},
            writes={**stored.writes, sink: self._written(sink) + 1},
        )
        await replace_for_slot(self._document, changed)
        self._stored = changed


_NO_RULES: Final[Rules] = Selection().rules


def _require_source(found: _Memories, source: str, location: str) -> None:
    """Check that the memories belong to this cluster and database.

    :raises ConfigurationError: they belong to another cluster or database.
    """
    if found.source != source:
        raise ConfigurationError(
            f"{location} is about another cluster or database: use another folder, or delete the file if the targets of all "
            "sinks are empty"
        )


def _dump(memories: _Memories) -> bytes:
    return seal({"source": memories.source, "writes": memories.writes, "sinks": memories.tables})


def _load(data: bytes, location: str) -> _Memories:
    return unseal(data, location, _memories, remedy=_REMEDY, advice=_ADVICE)


def _memories(fields: Mapping[str, Any]) -> _Memories:
    sinks = {str(name): list(tables) for name, tables in fields["sinks"].items()}
    for tables in sinks.values():
        # Load every sink's tables, even if the sink is not configured now, so that a malformed file is always reported.
        SelectionMemory(_NO_RULES).load(tables)
    # Earlier versions of aiorepl did not count the writes.
    counted = fields.get("writes", {})
    return _Memories(text(fields, "source"), sinks, {name: integer(counted, name) for name in counted})
