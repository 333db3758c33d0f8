"""The position of each consumer of a journal: a sink of the pipeline, or a Spark query.

A consumer owns the cursor of its name, and moves it once what it has read is durable. No segment is pruned that a
registered cursor has not passed; so drop the cursor of a consumer that will not come back.

A cursor's file has the kind of its owner and, for a query, the query's id. A cursor that two consumers moved would
let segments be pruned, and rows be skipped, that one of them has not read. Earlier versions wrote no kind: such a cursor
belongs to the first consumer that moves it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from aiorepl.errors import ConfigurationError
from aiorepl.journal.checked_json import seal, text, unseal
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.store import Store, open_store, reading
from aiorepl.position import Position

_FOLDER: Final = "cursors"
_SUFFIX: Final = ".json"
_SINK: Final = "sink"
_QUERY: Final = "query"


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The contents of a cursor's file; ``query`` is ``None`` for a sink, ``owned`` is false if the file has no kind."""

    position: Position
    query: str | None
    owned: bool = True


class Cursors:
    """The cursors of one journal. Writing raises OSError; reading raises JournalError.

    :param url: the journal's folder, as a path or ``file://`` URL.
    """

    def __init__(self, url: str | os.PathLike[str], *, store: Store | None = None) -> None:
        self._store = open_store(url) if store is None else store
        self._reader = JournalReader(url, store=self._store)

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
        """Read the position of ``name``: LSN 0 if it has read nothing yet, ``None`` if it is not registered.

        :raises JournalError: its file is damaged or cannot be read, or the journal does not continue from its position.
        :raises SlotError: it belongs to another source than the journal.
        """
        cursor = self._read(name)
        if cursor is None:
            return None
        position = cursor.position
        if position.lsn:
            self._reader.readable(position.lsn, self._location(name), self._remedy(name))
            position.require_same_source(
                self._reader.position() or self._reader.source(), self._location(name)
            )
        return position

    def advance(self, name: str, position: Position, *, query: str | None = None) -> Position:
        """Register ``name``, or move its cursor forward, never back. Durable on return.

        :param query: the id of the Spark query that calls; ``None`` for a sink.
        :returns: the cursor's position now.
        :raises ConfigurationError: another consumer owns the cursor.
        :raises JournalError: its file is damaged.
        :raises SlotError: it belongs to another source than ``position``.
        """
        cursor = self._read(name)
        if cursor is not None:
            self._require_owner(name, cursor, query)
            cursor.position.require_same_source(position, f"cursor {name!r}")
            if cursor.position.lsn >= position.lsn:
                if not cursor.owned:
                    self._write(name, cursor.position, query)
                return cursor.position
        self._write(name, position, query)
        return position

    def reset(self, name: str, position: Position) -> None:
        """Set the cursor of a sink, also back: the sink has lost what it had after ``position``. Durable on return.

        :raises ConfigurationError: a query owns the cursor.
        :raises JournalError: its file is damaged.
        """
        cursor = self._read(name)
        if cursor is not None:
            self._require_owner(name, cursor, None)
        self._write(name, position, None)

    def remove(self, name: str) -> None:
        """Forget ``name``: its cursor no longer keeps segments."""
        self._store.delete(_file(name))

    def _require_owner(self, name: str, cursor: _Cursor, query: str | None) -> None:
        if cursor.query == query or not cursor.owned:
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

    def _read(self, name: str) -> _Cursor | None:
        with reading(self._store):
            try:
                data = self._store.read(_file(name))
            except FileNotFoundError:
                return None

        def read(fields: Mapping[str, Any]) -> _Cursor:
            if fields["consumer"] != name:
                raise ValueError("it belongs to another consumer")
            position, kind = Position.from_json(fields["position"]), fields.get("kind")
            if kind is None:
                return _Cursor(position, None, owned=False)
            if kind not in (_SINK, _QUERY):
                raise ValueError("kind is neither sink nor query")
            return _Cursor(position, text(fields, "query") if kind == _QUERY else None)

        return unseal(data, self._location(name), read, remedy=self._remedy(name))

    def _write(self, name: str, position: Position, query: str | None) -> None:
        kind = _SINK if query is None else _QUERY
        fields = {"consumer": name, "kind": kind, "query": query, "position": position.to_json()}
        self._store.write(_file(name), seal(fields))

    def _location(self, name: str) -> str:
        return f"cursor {name!r} ({_file(name)} in the journal {self._store.url})"

    def _remedy(self, name: str) -> str:
        return (
            f"Put back a copy of the file, or drop the cursor (aiorepl journal drop {self._store.url} {name!r}) and let its "
            "consumer begin again with an empty target"
        )


def _file(name: str) -> str:
    # Percent-encoded, also a dot at the front, so that a name is never a path.
    quoted = quote(name, safe="")
    return f"{_FOLDER}/{quoted.replace('.', '%2E') if quoted.startswith('.') else quoted}{_SUFFIX}"
