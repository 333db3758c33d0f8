"""Dead letters: a folder with the changes that a sink rejected, for inspection and replay.

A letter is one JSON file: the reason of the rejection, and the changes as pgoutput messages with the Relation and Type
messages that they need, so that they can be decoded on any machine. Its name is ``<LSN>-<ordinal>.json`` after its first
change (``<LSN>--message.json`` for a message outside transactions). So letters sort in stream order, and a change that is
rejected again after a restart gets the same file. A checksum detects damage. The folder contains row data: protect it like the
database.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import orjson

from aiorepl.checked import checked
from aiorepl.durable import (
    make_folder,
    reason,
    remove_partials,
    require_usable_folder,
    storage_error,
    sync_folder,
    write_file,
)
from aiorepl.errors import AioreplError, ConfigurationError, PermanentError
from aiorepl.journal.index import dump_chunk, dump_type, load_chunk, load_type
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.messages import without_xid
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.position import Position
from aiorepl.sink import Batch, Rejection, SinkContext, SyncSink
from aiorepl.transactions import changes as c
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.registry import Types

# Letters of format 1 have no checksum.
_FORMAT: Final = 2
_FORMATS: Final = (1, _FORMAT)
_SUFFIX: Final = ".json"


@checked("dead letters")
class DeadLetters(SyncSink):
    """Writes rejected changes to a folder. They are durable when ``write`` returns.

    :param path: the folder; ``open`` creates it if necessary.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._position: Position | None = None

    def open(self, context: SinkContext) -> None:
        """Create the folder."""
        self._position = context.position
        try:
            make_folder(self.path)
        except OSError as error:
            raise storage_error(error, f"dead letters: {self.path}") from None

    def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Check that files can be written to the folder."""
        try:
            require_usable_folder(self.path)
        except OSError as error:
            raise storage_error(error, f"dead letters: {self.path}") from None

    def write(self, batch: Batch) -> None:
        """Write a letter for each slice.

        :raises PermanentError: a letter of another sink or slot would be overwritten, or the folder cannot be written.
        :raises TransientError: a file system error that may pass.
        """
        try:
            for part in batch.slices:
                # Each letter contains the descriptions of its tables, and changes of publications are not replayed.
                left_out = (SchemaChange, PublicationChange)
                changes = [change for change in part.changes if not isinstance(change, left_out)]
                if changes:
                    self._write(part, changes, batch.rejection)
        except OSError as error:
            raise storage_error(error, f"dead letters: {self.path}") from None

    def letters(self) -> Iterator[Letter]:
        """Return the letters in stream order.

        :raises ConfigurationError: a file is not a letter.
        """
        for file in sorted(self.path.glob(f"*{_SUFFIX}")):
            yield _load(file)

    def _write(self, part: Slice, changes: list[c.Change], rejection: Rejection | None) -> None:
        file = self.path / f"{_name(changes[0])}{_SUFFIX}"
        if file.exists() and not file.is_symlink():
            self._require_same_origin(file, rejection)
        # A temporary file remains if a process is killed while it writes a letter.
        remove_partials(file)
        write_file(file, [_dump(part, changes, rejection, self._position)])

    def _require_same_origin(self, file: Path, rejection: Rejection | None) -> None:
        """Check that an existing letter may be replaced, as when a change is rejected again after a restart.

        :raises PermanentError: the letter belongs to another sink or slot.
        """
        try:
            letter = _load(file)
        except ConfigurationError as error:
            raise PermanentError(f"dead letters: {error}: move it out of the folder") from None
        rejections, sources = (letter.batch.rejection, rejection), (letter.source, self._position)
        sinks = [None if each is None else each.sink for each in rejections]
        slots = [None if each is None else (each.system_identifier, each.slot) for each in sources]
        if sinks[0] != sinks[1] or slots[0] != slots[1]:
            raise PermanentError(
                f"dead letters: {file} belongs to another sink or slot and would be overwritten: give each sink its own folder"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """One dead letter.

    :param file: the path of its file.
    :param batch: the rejected changes, and the rejection.
    :param source: the position with which the sink was opened; it names the slot. ``None`` if it is unknown.
    """

    file: Path
    batch: Batch
    source: Position | None

    def discard(self) -> None:
        """Delete the file; the deletion is durable on return."""
        self.file.unlink()
        sync_folder(self.file.parent)


def _name(first: c.Change) -> str:
    """Return the name of a letter, after its first change; names sort in stream order."""
    if first.transaction is not None:
        return f"{first.transaction.commit_lsn:016X}-{first.ordinal:010}"
    assert isinstance(first, c.Message)
    # A message's LSN is its end, where a commit record may begin; the message sorts before that commit.
    return f"{first.lsn:016X}--message"


def _dump(
    part: Slice, changes: list[c.Change], rejection: Rejection | None, source: Position | None
) -> bytes:
    header = part.transaction
    types = {
        info.oid: info
        for change in changes
        if isinstance(change, c.RowChange)
        for info in change.layout.types.added
    }
    fields = {
        "format": _FORMAT,
        "refusal": None
        if rejection is None
        else {
            "sink": rejection.sink,
            "kind": rejection.kind,
            "error": rejection.error,
            "stage": rejection.stage,
            "at": rejection.at,
        },
        "source": None if source is None else {**source.to_json(), "database": source.database},
        "transaction": None
        if header is None
        else {
            "xid": header.xid,
            "commit_lsn": str(header.commit_lsn),
            "commit_timestamp": header.commit_timestamp,
            "origin": header.origin,
            "gid": header.gid,
        },
        "snapshot": _dump_snapshot(part),
        "end_lsn": str(part.end_lsn or (header.commit_lsn if header is not None else LSN(0))),
        "binary": any(isinstance(change, c.RowChange) and change.layout.binary for change in changes),
        "types": [dump_type(info) for info in types.values()],
        "changes": [_dump_change(change) for change in changes],
    }
    # The checksum covers the parsed fields, so a letter may be reformatted.
    fields = orjson.loads(orjson.dumps(fields))
    return orjson.dumps({**fields, "checksum": _checksum(fields)}, option=orjson.OPT_INDENT_2)


def _checksum(fields: dict[str, Any]) -> int:
    return crc32(orjson.dumps(fields))


def _dump_snapshot(part: Slice) -> dict[str, Any] | None:
    """Return the snapshot chunk of a slice. Only the chunk's last slice can complete the table."""
    header = part.transaction
    if header is None or header.snapshot is None:
        return None
    chunk = header.snapshot
    return dump_chunk(chunk if part.last else replace(chunk, last_of_table=False, last=False))


def _dump_change(change: c.Change) -> dict[str, Any]:
    assert isinstance(change, (c.RowChange, c.Truncate, c.Message))
    message = change.message
    relations: tuple[Relation, ...] = ()
    if isinstance(change, c.RowChange):
        relations = (change.layout.relation,)
    elif isinstance(change, c.Truncate):
        relations = change.relations
    descriptions: list[Relation | Type] = []
    for relation in relations:
        descriptions += [*relation.types, relation]
    return {
        "ordinal": change.ordinal,
        "described": [_base64(without_xid(each.payload, each.xid)) for each in descriptions],
        "message": _base64(without_xid(message.payload, message.xid)),
    }


def _load(file: Path) -> Letter:
    try:
        return _parse(file, orjson.loads(file.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {reason(error)}") from None
    except (KeyError, TypeError, ValueError, AioreplError) as error:
        raise ConfigurationError(
            f"{file} is damaged, or is not a dead letter: {type(error).__name__}"
        ) from None


def _parse(file: Path, fields: dict[str, Any]) -> Letter:
    if fields["format"] not in _FORMATS:
        raise ConfigurationError(
            f"{file} has format {fields['format']}; this version reads formats up to {_FORMAT}"
        )
    if fields["format"] != 1 and fields.pop("checksum") != _checksum(fields):
        raise ValueError("the checksum differs")
    header = fields["transaction"]
    # Letters of earlier releases lack this field.
    chunk = fields.get("snapshot")
    transaction = (
        None
        if header is None
        else Transaction(
            **{**header, "commit_lsn": LSN.parse(header["commit_lsn"])},
            snapshot=None if chunk is None else load_chunk(chunk),
        )
    )
    decoder, types = Decoder(), Types(map(load_type, fields["types"]))
    layouts: dict[bytes, Layout] = {}
    changes = []
    for entry in fields["changes"]:
        for payload in entry["described"]:
            decoder.decode(base64.b64decode(payload))
        message = decoder.decode(base64.b64decode(entry["message"]))
        assert isinstance(message, c.Content)

        def layout(relation: Relation) -> Layout:
            return layouts.setdefault(relation.payload, Layout(relation, types, binary=fields["binary"]))

        changes.append(c.change_of(transaction, entry["ordinal"], message, layout))
    why = fields["refusal"]
    rejection = None if why is None else Rejection(**{**why, "at": datetime.fromisoformat(why["at"])})
    part = Slice(transaction, changes, True, LSN.parse(fields["end_lsn"]), 0)
    origin = fields["source"]
    source = None if origin is None else Position.from_json(origin)
    if source is not None:
        source = replace(source, database=origin.get("database"))
    return Letter(file, Batch((part,), rejection), source)


def _base64(payload: bytes) -> str:
    return base64.b64encode(payload).decode()
