"""How far each consumer of a journal has come.

A consumer (a sink, a Spark query) owns the cursor of its name and moves it when what it read is durable with it. As
long as a cursor is registered, no segment that it has not passed is pruned; so remove the cursor of a consumer that
will not come back.
"""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import quote, unquote

import orjson

from aiorepl.errors import DamagedJournal
from aiorepl.journal.store import Store, open_store, reading
from aiorepl.position import Position

_FOLDER: Final = "cursors"
_SUFFIX: Final = ".json"


class Cursors:
    """The cursors of the journal at ``url``. Writing raises OSError, reading JournalError."""

    def __init__(self, url: str | os.PathLike[str], *, store: Store | None = None) -> None:
        self._store = open_store(url) if store is None else store

    @property
    def url(self) -> str:
        """Where the journal is."""
        return self._store.url

    def names(self) -> list[str]:
        """The registered consumers."""
        with reading(self._store):
            found = self._store.names(_FOLDER)
        return sorted(unquote(name.removesuffix(_SUFFIX)) for name in found if name.endswith(_SUFFIX))

    def get(self, name: str) -> Position | None:
        """How far ``name`` has come; ``None`` when it is not registered.

        :raises JournalError: when its file is damaged, or cannot be read.
        """
        with reading(self._store):
            try:
                data = self._store.read(_file(name))
            except FileNotFoundError:
                return None
        try:
            return Position.from_json(orjson.loads(data))
        except (ValueError, TypeError) as error:
            raise DamagedJournal(f"cursor {name!r} in {self._store.url}", str(error)) from None

    def advance(self, name: str, position: Position) -> Position:
        """Register ``name``, or move it forward; durable on return. It never moves back.

        :returns: where it stands now.
        :raises SlotError: when it is the cursor of another source.
        """
        held = self.get(name)
        if held is not None:
            held.require_same_source(position, f"cursor {name!r}")
            if held.lsn >= position.lsn:
                return held
        self._store.write(_file(name), orjson.dumps(position.to_json()) + b"\n")
        return position

    def remove(self, name: str) -> None:
        """Forget ``name``: it holds no segments any more."""
        self._store.delete(_file(name))


def _file(name: str) -> str:
    # Percent-encoded, dots too at the front: a name is never a path.
    quoted = quote(name, safe="")
    return f"{_FOLDER}/{quoted.replace('.', '%2E') if quoted.startswith('.') else quoted}{_SUFFIX}"
