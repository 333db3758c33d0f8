"""Stores what the watch on the publications knows: the last picture, and the changes that sinks have not received."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from aiorepl.cancellation import uninterrupted
from aiorepl.durable import storage_error
from aiorepl.errors import PermanentError
from aiorepl.source.publication.picture import Picture, picture
from aiorepl.storage.checked_json import (
    boolean,
    integer,
    lsn,
    seal,
    text,
    unseal,
)
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, Superseded, reading
from aiorepl.transactions.publication_changes import WHATS, Difference, PublicationChange

_REMEDY: Final = "It is replaced, and changes of the publication since it was written are not noticed"

Pending = dict[str, list[PublicationChange]]
"""By the name of the sink, the changes that it has not received."""


class PublicationState:
    """The file ``<slot>.publication.json``, replaced by compare-and-swap.

    :param folder: the journal, or the folder ``state_dir``; ``None``: a restart forgets everything.
    :param slot: the name of the replication slot.
    """

    def __init__(self, folder: Location | Store | None, slot: str) -> None:
        self._store = None if folder is None else open_store(folder)
        self._name = f"{slot}.publication.json"
        self._version: str | None = None
        self._source = ""
        self.loaded = False
        """Whether the file was read, or found damaged or missing."""
        self.picture: Picture | None = None
        """The last picture; ``None`` if there is none of this source."""
        self.pending: Pending = {}

    async def load(self, source: str, publications: Sequence[str], *, fresh: bool) -> None:
        """Read the file.

        :param source: the cluster and database, whose oids the picture has.
        :param publications: the names of the publications, which the picture must have been made of.
        :param fresh: whether the slot is new, so that earlier pictures have no meaning.
        :raises JournalError: it is damaged, or cannot be read. The next write replaces a damaged file.
        """
        self._source = f"{source}/{sorted(publications)}"
        if self._store is None:
            self.loaded = True
        else:
            await asyncio.to_thread(self._load, fresh)

    async def write(self, picture: Picture, pending: Pending) -> None:
        """Replace the picture and the changes that sinks have not received.

        :raises PermanentError: another process has written the file.
        :raises JournalError, SinkError: it cannot be written.
        """
        if self._store is not None:
            # A write that went on in its thread could replace a later one.
            await uninterrupted(asyncio.to_thread(self._write, picture, pending))
        self.picture, self.pending = picture, pending

    def _load(self, fresh: bool) -> None:
        assert self._store is not None
        with reading(self._store):
            try:
                data, self._version = self._store.load(self._name)
            except FileNotFoundError:
                self.loaded = True
                return
        self.loaded = True
        found = unseal(data, f"{self._name} in {self._store.url}", _read, remedy=_REMEDY, advice=_REMEDY)
        source, known, pending = found
        if source == self._source and not fresh:
            self.picture, self.pending = known, pending

    def _write(self, picture: Picture, pending: Pending) -> None:
        assert self._store is not None
        place = f"{self._name} in {self._store.url}"
        fields = {
            "source": self._source,
            "facts": picture.facts,
            "hash": str(picture.hash),
            "lsn": str(picture.lsn),
            "time": picture.time,
            "pending": {name: list(map(_dump, changes)) for name, changes in pending.items() if changes},
        }
        try:
            self._version = self._store.replace(self._name, seal(fields), self._version)
        except Superseded:
            raise PermanentError(
                f"another process has written {place}: stop the other pipeline with this slot", fatal=True
            ) from None
        except OSError as error:
            raise storage_error(error, f"cannot write {place}") from error


def _read(fields: Mapping[str, Any]) -> tuple[str, Picture, Pending]:
    known = picture(
        text(fields, "facts"), int(text(fields, "hash")), lsn(fields, "lsn"), float(fields["time"])
    )
    pending = {str(name): list(map(_change, changes)) for name, changes in fields["pending"].items()}
    return text(fields, "source"), known, pending


def _dump(change: PublicationChange) -> dict[str, Any]:
    return {**asdict(change.difference), "lsn": str(change.lsn), "ordinal": change.ordinal}


def _change(fields: Mapping[str, Any]) -> PublicationChange:
    if fields["what"] not in WHATS:
        raise ValueError("the kind of a change is unknown")
    difference = Difference(
        fields["what"],
        integer(fields, "oid"),
        text(fields, "schema"),
        text(fields, "name"),
        integer(fields, "root_oid"),
        text(fields, "root_schema"),
        text(fields, "root_name"),
        boolean(fields, "certain"),
        boolean(fields, "identified"),
    )
    return PublicationChange(difference, lsn(fields, "lsn"), integer(fields, "ordinal"))
