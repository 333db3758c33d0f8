"""The contents of ``history.json`` and of the lists of a table's files. Pure.

``history.json`` says how far the history reaches, which list is current for each table, and which files are being rewritten.
It is replaced by compare-and-swap. A list is written once under its own name. So a reader that has read ``history.json`` and
then the lists sees one state.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from aiorepl.history.names import MESSAGES
from aiorepl.journal.holder import Holder
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.storage.checked_json import (
    boolean,
    integer,
    lsn,
    seal,
    text,
    unseal,
)
from aiorepl.table_name import TableName

FORMAT: Final = 1
"""The version of the history's layout. The journal's own version is in ``checked_json``."""

# The largest commit LSN, ordinal or number of rows.
_MOST: Final = 2**63 - 1
# The number of former owners that are remembered. A paused owner may still write a file before it notices the new one.
_OWNERS: Final = 16
AGAIN: Final = "Delete the folder history, and compact the journal again as far as it is kept"
"""The advice in errors about a lost history."""
_REMEDY: Final = f"Put back a copy of the file. {AGAIN}, if there is none"


MESSAGES_TABLE: Final = TableName("", MESSAGES)


@dataclass(frozen=True)
class TableVersion:
    """A description of a table: its columns as they were when the rows of some files were written.

    :param oid: the table's oid; 0 for messages. A table that was dropped and created again has another oid.
    :param description: the Relation message, and the Type messages that it uses.
    :param schema: the Arrow schema of the files.
    """

    oid: int
    description: tuple[bytes, ...]
    schema: pa.Schema = field(hash=False)

    @cached_property
    def digest(self) -> tuple[int, tuple[bytes, ...], bytes]:
        """The value by which versions are compared. It includes the columns' names, types and attribute numbers."""
        return self.oid, self.description, self.schema.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file.

    :param version: the number of the table's version.
    :param first: commit LSN and ordinal of the first row.
    :param last: commit LSN and ordinal of the last row.
    :param since: the time when the file's oldest row was first compacted, in seconds since 1970.
    :param digest: BLAKE2b of its bytes, in hexadecimal digits.
    """

    name: str
    version: int
    rows: int
    size: int
    first: tuple[int, int]
    last: tuple[int, int]
    since: int
    digest: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """A list of older published files, which does not change any more."""

    name: str
    files: int
    first: tuple[int, int]
    last: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table, in the order of their rows.

    :param published: the last published files; earlier ones are in the ``sealed`` lists.
    :param pending: the pending files. Their rows are later than all rows of the published files.
    :param replaced: pending files whose rows are in other files now, and the times at which they were replaced.
    """

    table: TableName
    versions: tuple[TableVersion, ...] = ()
    sealed: tuple[Sealed, ...] = ()
    published: tuple[File, ...] = ()
    pending: tuple[File, ...] = ()
    replaced: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files that are being merged: the first ``count`` pending files of a table.

    :param name: the new file.
    """

    folder: str
    count: int
    name: str
    publish: bool


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table in ``history.json``, with the facts that planning needs.

    :param name: the table's current list.
    :param previous: the list before the current one, kept for readers that have read an older ``history.json``.
    :param pending: the number of the table's pending files, and ``since`` of the first one.
    :param replaced: the time when the first of the replaced files was replaced; ``None`` if there is none.
    """

    table: TableName
    name: str
    previous: str | None
    pending: int
    pending_size: int
    since: int | None
    replaced: int | None


@dataclass(frozen=True, slots=True)
class History:
    """The contents of ``history.json``.

    :param start: the history has every transaction that ended after this LSN, up to ``end``.
    :param epoch: the epoch of the compaction that owns the history.
    :param files: the number of pending files that the owner has committed.
    :param lists: the number of lists that the owner has committed.
    :param earlier: epoch and number of committed pending files of each of the last owners. Files with higher numbers are in
        no list.
    :param gaps: the accepted gaps of the journal within the history.
    """

    start: LSN
    end: Position
    epoch: int
    owner: Holder
    files: int = 0
    lists: int = 0
    tables: Mapping[str, TableEntry] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    earlier: tuple[tuple[int, int], ...] = ()
    gaps: tuple[tuple[LSN, LSN], ...] = ()

    def claimed(self, owner: Holder) -> History:
        """Return the history with a new owner."""
        earlier = (*self.earlier, (self.epoch, self.files))[-_OWNERS:]
        return replace(self, epoch=self.epoch + 1, owner=owner, files=0, lists=0, earlier=earlier)


def dump_history(history: History) -> bytes:
    """Make the bytes of ``history.json``."""
    return seal(
        {
            "layout": FORMAT,
            "start": str(history.start),
            "end": history.end.to_json(),
            "epoch": history.epoch,
            "owner": history.owner.to_json(),
            "files": history.files,
            "lists": history.lists,
            "tables": [
                [
                    folder,
                    e.table.schema,
                    e.table.name,
                    e.name,
                    e.previous,
                    e.pending,
                    e.pending_size,
                    e.since,
                    e.replaced,
                ]
                for folder, e in history.tables.items()
            ],
            "rewrites": [[r.folder, r.count, r.name, r.publish] for r in history.rewrites],
            "earlier": history.earlier,
            "gaps": [[str(after), str(until)] for after, until in history.gaps],
        }
    )


def load_history(data: bytes, location: str) -> History:
    """Parse the output of ``dump_history``.

    :param location: the file, for errors.
    :raises JournalError: the data is damaged, or has another format.
    """
    return unseal(data, location, _history, remedy=_REMEDY)


def _history(fields: Mapping[str, Any]) -> History:
    if (found := integer(fields, "layout")) != FORMAT:
        raise ValueError(f"its layout is {found}, and this version knows {FORMAT}: use a newer version")
    return History(
        start=lsn(fields, "start"),
        end=Position.from_json(fields["end"]),
        epoch=integer(fields, "epoch"),
        owner=Holder.from_json(fields["owner"]),
        files=integer(fields, "files"),
        lists=integer(fields, "lists"),
        tables={each[0]: _entry(*each[1:]) for each in fields["tables"]},
        rewrites=tuple(_rewrite(*each) for each in fields["rewrites"]),
        earlier=tuple((_number(epoch), _number(files)) for epoch, files in fields["earlier"]),
        gaps=tuple((LSN.parse(after), LSN.parse(until)) for after, until in fields["gaps"]),
    )


def _entry(
    schema: str,
    table: str,
    name: str,
    previous: str | None,
    pending: int,
    size: int,
    since: int | None,
    replaced: int | None,
) -> TableEntry:
    return TableEntry(
        TableName(_string(schema), _string(table)),
        _string(name),
        None if previous is None else _string(previous),
        _number(pending),
        _number(size),
        None if since is None else _number(since),
        None if replaced is None else _number(replaced),
    )


def _rewrite(folder: str, count: int, name: str, publish: Any) -> Rewrite:
    return Rewrite(_string(folder), _number(count), _string(name), boolean({"publish": publish}, "publish"))


def dump_table(files: TableFiles) -> bytes:
    """Make the bytes of a list."""
    return seal(
        {
            "schema": files.table.schema,
            "table": files.table.name,
            "versions": [
                {
                    "oid": version.oid,
                    "description": [_base64(each) for each in version.description],
                    "arrow": _base64(version.schema.serialize().to_pybytes()),
                }
                for version in files.versions
            ],
            "sealed": [[each.name, each.files, each.first, each.last] for each in files.sealed],
            "published": _dump_files(files.published),
            "pending": _dump_files(files.pending),
            "replaced": files.replaced,
        }
    )


def load_table(data: bytes, location: str) -> TableFiles:
    """Parse the output of ``dump_table``.

    :param location: the file, for errors.
    :raises JournalError: the data is damaged, or has another format.
    """
    return unseal(data, location, _table, remedy=_REMEDY)


def _table(fields: Mapping[str, Any]) -> TableFiles:
    found = TableFiles(
        TableName(text(fields, "schema"), text(fields, "table")),
        tuple(_version(each) for each in fields["versions"]),
        tuple(
            Sealed(_string(name), _number(files), _position(first), _position(last))
            for name, files, first, last in fields["sealed"]
        ),
        _load_files(fields["published"]),
        _load_files(fields["pending"]),
        tuple((_string(name), _number(since)) for name, since in fields["replaced"]),
    )
    if not all(file.version < len(found.versions) for file in (*found.published, *found.pending)):
        raise ValueError("a file has a version that is not described")
    return found


def dump_sealed(files: tuple[File, ...]) -> bytes:
    """Make the bytes of a list of older files."""
    return seal({"files": _dump_files(files)})


def load_sealed(data: bytes, location: str) -> tuple[File, ...]:
    """Parse the output of ``dump_sealed``; parameters and errors as ``load_table``."""
    return unseal(data, location, lambda fields: _load_files(fields["files"]), remedy=_REMEDY)


def _dump_files(files: tuple[File, ...]) -> list[list[Any]]:
    return [[f.name, f.version, f.rows, f.size, f.first, f.last, f.since, f.digest] for f in files]


def _load_files(listed: list[list[Any]]) -> tuple[File, ...]:
    return tuple(
        File(
            _string(name),
            _number(version),
            _number(rows),
            _number(size),
            _position(first),
            _position(last),
            _number(since),
            _string(digest),
        )
        for name, version, rows, size, first, last, since, digest in listed
    )


def _version(fields: Mapping[str, Any]) -> TableVersion:
    return TableVersion(
        integer(fields, "oid"),
        tuple(base64.b64decode(_string(each), validate=True) for each in fields["description"]),
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text(fields, "arrow"), validate=True))),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _position(found: Any) -> tuple[int, int]:
    commit_lsn, ordinal = found
    return _number(commit_lsn), _number(ordinal)


def _number(value: Any) -> int:
    return integer({"a number": value}, "a number", _MOST)


def _string(value: Any) -> str:
    return text({"a name": value}, "a name")
