"""How far each consumer of a journal has come.

A consumer (a sink, a Spark query) owns the cursor of its name and moves it when what it read is durable with it. As
long as a cursor is registered, no segment that it has not passed is pruned; so remove the cursor of a consumer that
will not come back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from aiorepl.journal.checked_json import seal, unseal
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.store import Store, open_store, reading
from aiorepl.position import Position

_FOLDER: Final = "cursors"
_SUFFIX: Final = ".json"


class Cursors:
    """The cursors of the journal at ``url``. Writing raises OSError; reading raises JournalError."""

    def __init__(self, url: str | os.PathLike[str], *, store: Store | None = None) -> None:
        self._store = open_store(url) if store is None else store
        self._reader = JournalReader(url, store=self._store)

    @property
    def url(self) -> str:
        """The journal's URL."""
        return self._store.url

    def names(self) -> list[str]:
        """The registered consumers."""
        with reading(self._store):
            found = self._store.names(_FOLDER)
        return sorted(unquote(name.removesuffix(_SUFFIX)) for name in found if name.endswith(_SUFFIX))

    def get(self, name: str) -> Position | None:
        """How far ``name`` has come, LSN 0 when it has nothing yet; ``None`` when it is not registered.

        :raises JournalError: its file is damaged or cannot be read, or the journal does not continue from it.
        :raises SlotError: it belongs to another source than the journal.
        """
        position = self._read(name)
        if position is not None and position.lsn:
            self._reader.readable(position.lsn, self._place(name), self._remedy(name))
            position.require_same_source(self._reader.position() or self._reader.source(), self._place(name))
        return position

    def advance(self, name: str, position: Position) -> Position:
        """Register ``name``, or move it forward; durable on return. It never moves back.

        :returns: where it stands now.
        :raises JournalError: when its file is damaged.
        :raises SlotError: when it is the cursor of another source.
        """
        held = self._read(name)
        if held is not None:
            held.require_same_source(position, f"cursor {name!r}")
            if held.lsn >= position.lsn:
                return held
        self._write(name, position)
        return position

    def begin(self, name: str, position: Position) -> None:
        """Register ``name`` at ``position``, replacing an earlier cursor: the consumer starts over."""
        self._write(name, position)

    def remove(self, name: str) -> None:
        """Forget ``name``: it holds no segments any more."""
        self._store.delete(_file(name))

    def _read(self, name: str) -> Position | None:
        with reading(self._store):
            try:
                data = self._store.read(_file(name))
            except FileNotFoundError:
                return None

        def read(fields: Mapping[str, Any]) -> Position:
            if fields["consumer"] != name:
                raise ValueError("it is that of another consumer")
            return Position.from_json(fields["position"])

        return unseal(data, self._place(name), read, remedy=self._remedy(name))

    def _write(self, name: str, position: Position) -> None:
        self._store.write(_file(name), seal({"consumer": name, "position": position.to_json()}))

    def _place(self, name: str) -> str:
        return f"cursor {name!r} ({_file(name)} in the journal {self._store.url})"

    def _remedy(self, name: str) -> str:
        return (
            f"Put back a copy of the file, or forget it (aiorepl journal drop {self._store.url} {name!r}) and begin its "
            "consumer anew, empty"
        )


def _file(name: str) -> str:
    # Percent-encoded, dots too at the front: a name is never a path.
    quoted = quote(name, safe="")
    return f"{_FOLDER}/{quoted.replace('.', '%2E') if quoted.startswith('.') else quoted}{_SUFFIX}"
