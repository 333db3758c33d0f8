"""The position of each consumer of a journal: a sink of the pipeline, or a Spark query.

A consumer owns the cursor of its name, and moves it once the data that it has read is durable. Retention keeps every segment that
a registered cursor has not passed, so drop the cursor of a consumer that is gone for good.

If two consumers moved one cursor, one of them would lose segments that it has not read. So the cursor's file has the kind of its
owner, the query's id, and the process that reads, and is replaced by compare-and-swap. A process that registers takes the cursor
over, because it cannot know whether the previous process is still alive. The next move of the previous process fails.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from aiorepl.errors import ConfigurationError
from aiorepl.journal.holder import Holder
from aiorepl.journal.reader import JournalReader
from aiorepl.position import Position
from aiorepl.storage.checked_json import (
    boolean,
    integer,
    seal,
    text,
    unseal,
)
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, Superseded, reading

_FOLDER: Final = "cursors"
_SUFFIX: Final = ".json"
_SINK: Final = "sink"
_QUERY: Final = "query"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The contents of a cursor's file.

    :param query: the id of the Spark query that owns it; ``None`` for a sink.
    :param reader: the process that registered it last.
    :param moved: when the cursor was registered or moved last, in seconds since 1970.
    :param selects: whether the sink had a selection when it was registered, so that there is a memory of the selection.
    :param writes: how often the sink's memory had been written at that time. A file with a lower number is an older copy.
    :param label: what the query reads and writes, for people; empty for a sink, and for a cursor of an earlier version.
    """

    position: Position
    query: str | None
    reader: Holder
    moved: int
    selects: bool = False
    writes: int = 0
    label: str = ""


class Cursors:
    """The cursors of one journal. Writing raises OSError; reading raises JournalError.

    :param url: a path or URL, or an ``ObjectStore``.
    :param count_writes: returns how often the memory of the sink's selection was written; ``None``: the consumers that this object
        registers have no selection.
    :param label: as in ``Cursor``, for the consumers that this object registers.
    """

    def __init__(
        self,
        url: Location | Store,
        *,
        store: Store | None = None,
        count_writes: Callable[[], int] | None = None,
        label: str = "",
    ) -> None:
        self._store = open_store(url) if store is None else store
        self._journal = JournalReader(url, store=self._store)
        self._own = Holder.own()
        self._count_writes = count_writes
        self._label = label
        # The cursors that this object has registered.
        self._held: set[str] = set()

    @property
    def url(self) -> str:
        """The journal's URL."""
        return self._store.url

    def names(self) -> list[str]:
        """The names of the registered consumers, sorted."""
        with reading(self._store):
            found = self._store.names(_FOLDER)
        return sorted(unquote(name.removesuffix(_SUFFIX)) for name in found if name.endswith(_SUFFIX))

    def get(self, name: str) -> Position | None:
        """Read the position of ``name``: LSN 0 if the consumer has read nothing yet, ``None`` if it is not registered.

        :raises JournalError: the cursor's file is damaged or cannot be read, or the journal does not continue from the position.
        :raises SlotError: the cursor belongs to another source than the journal.
        """
        cursor = self.read(name)
        if cursor is None:
            return None
        position = cursor.position
        if position.lsn:
            self._journal.readable(position.lsn, self._location(name), self._remedy(name))
            position.require_same_source(
                self._journal.position() or self._journal.source(), self._location(name)
            )
        return position

    def read(self, name: str) -> Cursor | None:
        """Read the cursor of ``name`` without comparing it with the journal; ``None`` if it is not registered.

        :raises JournalError: its file is damaged or cannot be read.
        """
        loaded = self._load(name)
        return None if loaded is None else loaded[0]

    def advance(self, name: str, position: Position, *, query: str | None = None) -> Position:
        """Register ``name``, or move its cursor forward, never back. Durable on return.

        :param query: the id of the Spark query that calls; ``None`` for a sink.
        :returns: the cursor's position now.
        :raises ConfigurationError: another consumer owns the cursor, or has taken it over.
        :raises JournalError: its file is damaged.
        :raises SlotError: the cursor belongs to another source than ``position``.
        """
        return self._move(name, position, query, forward=True)

    def reset(self, name: str, position: Position, *, query: str | None = None) -> None:
        """Set a cursor, even backwards, because its consumer has lost its data after ``position``.

        :param query: as for ``advance``.
        :raises ConfigurationError: another consumer owns the cursor, or has taken it over.
        :raises JournalError: its file is damaged.
        """
        self._move(name, position, query, forward=False)

    def remove(self, name: str) -> None:
        """Forget ``name``: its cursor no longer keeps segments."""
        self._store.delete(_file(name))

    def _move(self, name: str, position: Position, query: str | None, *, forward: bool) -> Position:
        while True:
            loaded = self._load(name)
            version, moved = None, True
            if loaded is not None:
                cursor, version = loaded
                self._require_owner(name, cursor, query)
                if forward:
                    cursor.position.require_same_source(position, f"cursor {name!r}")
                    moved = cursor.position.lsn < position.lsn
                    # A query's id belongs to the query, whichever process runs it.
                    known = cursor.label == self._label and (query is not None or cursor.reader == self._own)
                    if not moved and known:
                        # Nothing to write: the cursor is registered as wanted, perhaps by an earlier call whose answer was lost.
                        self._held.add(name)
                        return cursor.position
                    position = position if moved else cursor.position
            now = int(time.time()) if moved or loaded is None else loaded[0].moved
            writes = 0 if self._count_writes is None else self._count_writes()
            selects = self._count_writes is not None
            cursor = Cursor(position, query, self._own, now, selects, writes, self._label)
            data = self._dump(name, cursor)
            # If another process has moved, taken or dropped the cursor meanwhile, look again.
            with contextlib.suppress(Superseded):
                self._store.replace(_file(name), data, version)
                self._held.add(name)
                return position

    def _require_owner(self, name: str, cursor: Cursor, query: str | None) -> None:
        if cursor.query == query:
            if query is None and name in self._held and cursor.reader != self._own:
                raise ConfigurationError(
                    f"another reader has taken over {self._location(name)}: {cursor.reader}; stop one of them, or give it "
                    "another name"
                )
            return
        if query is None:
            owner, choice = "a Spark query", "give the sink another name"
        else:
            owner = "a sink" if cursor.query is None else "another Spark query, with a checkpoint of its own"
            choice = "choose another name with the option consumer"
        raise ConfigurationError(
            f"{self._location(name)} belongs to {owner}: {choice}; or, if its owner will not run again, drop the cursor (aiorepl "
            f"journal drop {self._store.url} {name!r})"
        )

    def _load(self, name: str) -> tuple[Cursor, str] | None:
        with reading(self._store):
            try:
                data, version = self._store.load(_file(name))
            except FileNotFoundError:
                return None

        def read(fields: Mapping[str, Any]) -> Cursor:
            if fields["consumer"] != name:
                raise ValueError("it belongs to another consumer")
            if (kind := fields["kind"]) not in (_SINK, _QUERY):
                raise ValueError("kind is neither sink nor query")
            return Cursor(
                Position.from_json(fields["position"]),
                text(fields, "query") if kind == _QUERY else None,
                Holder.from_json(fields["reader"]),
                integer(fields, "moved"),
                "selects" in fields and boolean(fields, "selects"),
                integer(fields, "writes") if "writes" in fields else 0,
                text(fields, "label") if "label" in fields else "",
            )

        return unseal(data, self._location(name), read, remedy=self._remedy(name)), version

    def _dump(self, name: str, cursor: Cursor) -> bytes:
        return seal(
            {
                "consumer": name,
                "kind": _SINK if cursor.query is None else _QUERY,
                "query": cursor.query,
                "reader": cursor.reader.to_json(),
                "moved": cursor.moved,
                "selects": cursor.selects,
                "writes": cursor.writes,
                "label": cursor.label,
                "position": cursor.position.to_json(),
            }
        )

    def _location(self, name: str) -> str:
        return f"cursor {name!r} ({_file(name)} in the journal {self._store.url})"

    def _remedy(self, name: str) -> str:
        return (
            f"Put back a copy of the file, or drop the cursor (aiorepl journal drop {self._store.url} {name!r}) and let its "
            "consumer begin again with an empty target"
        )


def _file(name: str) -> str:
    # The name is percent-encoded, including a dot at its front, so that it is never a path.
    quoted = quote(name, safe="")
    return f"{_FOLDER}/{quoted.replace('.', '%2E') if quoted.startswith('.') else quoted}{_SUFFIX}"
