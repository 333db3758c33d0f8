"""Checks the selections of a pipeline at its start, and stores what they have to remember."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.durable import storage_error, transient
from aiorepl.errors import ConfigurationError, JournalError, TransientError
from aiorepl.journal.checked_json import seal, text, unseal
from aiorepl.journal.store import Location, Store, open_store, reading
from aiorepl.retry import RetryPolicy
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.transforms.diagnose import require_matches
from aiorepl.transforms.memory import SelectionMemory

_log = logging.getLogger("aiorepl.pipeline")

_REMEDY: Final = (
    "Put back a copy of the file. Or compare the published tables with the selection: each column that was dropped or masked under "
    "another name must still be; then delete the file"
)


class SelectionState:
    """The memories of all selections of a pipeline, in one file for each sink.

    :param deliveries: the deliveries by sink name.
    :param folder: the journal, or the folder ``state_dir``; ``None``: a restart forgets the memories.
    :param slot: the name of the replication slot.
    :raises ConfigurationError: there is no folder, and a selection needs it.
    """

    def __init__(
        self, deliveries: Mapping[str, ResolvedDelivery], folder: Location | Store | None, slot: str
    ) -> None:
        self._selections = {
            name: delivery.selection
            for name, delivery in deliveries.items()
            if delivery.selection is not None and delivery.selection.rules
        }
        self._store = None if folder is None else open_store(folder)
        self._folder = f"{slot}.selections"
        # The cluster and database, once they are known: oids have a meaning only there.
        self._source = ""
        self.memories: dict[str, SelectionMemory] = {}
        for name, selection in self._selections.items():
            if self._store is None and (patterns := selection.forgetful):
                raise ConfigurationError(
                    f"sink {name}: the pattern {patterns[0]} may match after a rename, when it no longer hides what it hid, and "
                    "without a journal nothing remembers the names: set state_dir, a folder that is kept over restarts, or write "
                    "the exact names"
                )
            write = None if self._store is None else partial(self._write, name, deliveries[name].retry)
            self.memories[name] = SelectionMemory(selection.rules, write)

    async def begin(self, catalog: TableCatalog, source: str) -> None:
        """Check the selections against the published tables, and against what they did before.

        :param source: the cluster and database.
        :raises ConfigurationError: a pattern matches nothing, or a selection would hide less than before.
        :raises JournalError: a memory is damaged, or cannot be read.
        """
        self._source = source
        require_matches(self._selections, catalog)
        for name, memory in self.memories.items():
            if self._store is not None:
                memory.load(await asyncio.to_thread(self._read, name))
            try:
                memory.begin(catalog)
            except ConfigurationError as error:
                raise ConfigurationError(f"sink {name}: {error}") from None
            await memory.persist()

    def _file(self, sink: str) -> str:
        # Percent-encoded, also a dot at the front, so that a name is never a path.
        quoted = quote(sink, safe="").replace(".", "%2E")
        return f"{self._folder}/{quoted}.json"

    def _read(self, sink: str) -> list[Any]:
        assert self._store is not None
        file = self._file(sink)
        with reading(self._store):
            try:
                data = self._store.read(file)
            except FileNotFoundError:
                return []
        location = f"{file} in {self._store.url}"

        def read(fields: Mapping[str, Any]) -> list[Any]:
            tables = fields["tables"]
            # Also parses it, so that a malformed file is reported as one.
            SelectionMemory(self._selections[sink].rules).load(tables)
            return [text(fields, "source"), list(tables)]

        source, tables = unseal(data, location, read, remedy=_REMEDY)
        if source != self._source:
            raise ConfigurationError(
                f"{location} is about another cluster or database: use another folder, or delete the file if the sink's target is "
                "empty"
            )
        return list(tables)

    async def _write(self, sink: str, retry: RetryPolicy, tables: list[Any]) -> None:
        data = seal({"source": self._source, "tables": tables})
        async for attempt in retry.sink(f"sink {sink}: writing what its selection hides"):
            with attempt:
                await asyncio.to_thread(self._replace, self._file(sink), data)

    def _replace(self, file: str, data: bytes) -> None:
        assert self._store is not None
        try:
            self._store.write(file, data)
        except OSError as error:
            raise storage_error(error, f"cannot write {file} in {self._store.url}") from error
        except JournalError as error:
            if transient(error):
                raise TransientError(str(error)) from error
            raise
