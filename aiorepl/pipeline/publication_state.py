"""Stores the state of the watch on the publications: the last picture, and the changes that sinks have not received."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from aiorepl.cancellation import uninterrupted
from aiorepl.errors import JournalError
from aiorepl.lsn import LSN
from aiorepl.source.publication.picture import Picture, picture
from aiorepl.storage.checked_json import (
    boolean,
    integer,
    lsn,
    seal,
    text,
    unseal,
)
from aiorepl.storage.document import Document, replace_for_slot
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store
from aiorepl.transactions.publication_changes import WHATS, Difference, PublicationChange

_REMEDY: Final = "It is replaced, and changes of the publication since it was written are not noticed"

Pending = dict[str, list[PublicationChange]]
"""By the name of the sink, the changes that it has not received."""


class _Contents(NamedTuple):
    """The contents of the file.

    :param source: the cluster, the database and the names of the publications.
    :param moves: ``PublicationState.moves``.
    """

    source: str
    picture: Picture
    pending: Pending
    moves: tuple[LSN, ...]


class PublicationState:
    """The file ``<slot>.publication.json``.

    :param folder: the journal, or the folder ``state_dir``; ``None``: a restart forgets everything.
    :param slot: the name of the replication slot.
    """

    def __init__(self, folder: Location | Store | None, slot: str) -> None:
        name = f"{slot}.publication.json"
        self._document = None if folder is None else Document(open_store(folder), name, _dump, _load)
        self._source = ""
        self.loaded = False
        """Whether the file was read, or found damaged or missing."""
        self.picture: Picture | None = None
        """The last picture; ``None`` if there is none of this source."""
        self.pending: Pending = {}
        self.moves: tuple[LSN, ...] = ()
        """LSNs after each ATTACH and DETACH, if the server sends rows under former names; the next write stores them."""

    async def recall(self) -> tuple[LSN, ...]:
        """Return the stored ``moves``; none if the file cannot be read."""
        try:
            found = None if self._document is None else await asyncio.to_thread(self._document.load)
        except JournalError:
            # The watch reads the file again, and reports the error.
            return ()
        return () if found is None else found.moves

    async def load(self, source: str, publications: Sequence[str], *, fresh: bool) -> None:
        """Read the file.

        :param source: the cluster and database, whose oids the picture has.
        :param publications: the names of the publications, which the picture must have been made of.
        :param fresh: whether the slot is new, so that earlier pictures have no meaning.
        :raises JournalError: the file is damaged, or cannot be read. The next write replaces a damaged file.
        """
        self._source = f"{source}/{sorted(publications)}"
        document = self._document
        if document is not None:
            try:
                found = await asyncio.to_thread(document.load)
            except JournalError:
                # A file that could not be read is tried again, and a damaged one is not.
                self.loaded = document.exists
                raise
            if found is not None and found.source == self._source and not fresh:
                self.picture, self.pending, self.moves = found.picture, found.pending, found.moves
        self.loaded = True

    async def write(self, picture: Picture, pending: Pending) -> None:
        """Replace the picture and the changes that sinks have not received.

        :raises PermanentError: another process has written the file.
        :raises JournalError, SinkError: it cannot be written.
        """
        await uninterrupted(self._write(picture, pending))

    async def _write(self, picture: Picture, pending: Pending) -> None:
        if self._document is not None:
            await replace_for_slot(self._document, _Contents(self._source, picture, pending, self.moves))
        self.picture, self.pending = picture, pending


def _dump(contents: _Contents) -> bytes:
    picture = contents.picture
    return seal(
        {
            "source": contents.source,
            "facts": picture.facts,
            "hash": str(picture.hash),
            "lsn": str(picture.lsn),
            "time": picture.time,
            "oldest": picture.oldest,
            "moves": list(map(str, contents.moves)),
            "pending": {
                name: list(map(_dump_change, changes))
                for name, changes in contents.pending.items()
                if changes
            },
        }
    )


def _load(data: bytes, location: str) -> _Contents:
    return unseal(data, location, _contents, remedy=_REMEDY, advice=_REMEDY)


def _contents(fields: Mapping[str, Any]) -> _Contents:
    known = picture(
        text(fields, "facts"), int(text(fields, "hash")), lsn(fields, "lsn"), float(fields["time"])
    )
    if fields.get("oldest") is not None:
        known = replace(known, oldest=integer(fields, "oldest"))
    pending = {str(name): list(map(_change, changes)) for name, changes in fields["pending"].items()}
    moves = tuple(map(LSN.parse, fields.get("moves", ())))
    return _Contents(text(fields, "source"), known, pending, moves)


def _dump_change(change: PublicationChange) -> dict[str, Any]:
    return {
        **asdict(change.difference),
        "lsn": str(change.lsn),
        "ordinal": change.ordinal,
        "exact": change.exact,
    }


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
    return PublicationChange(
        difference, lsn(fields, "lsn"), integer(fields, "ordinal"), exact=boolean(fields, "exact")
    )
