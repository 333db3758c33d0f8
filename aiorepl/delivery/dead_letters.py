"""What a sink refused, kept in files until somebody has mended what was wrong and writes it again.

A letter is one JSON file: why it was refused, and the changes as pgoutput messages with the descriptions they need, so
that they come back as the changes they were, on any machine. It is called ``<LSN>-<ordinal>.json`` after its first
change (``<LSN>--message.json`` for a message between transactions), so that letters sort in the order of the stream, and
a change that is refused again after a restart is the same file.
The folder holds rows: keep it as you keep the database.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from aiorepl.durable import (
    make_folder,
    reason,
    remove_partials,
    storage_error,
    sync_folder,
    write_file,
)
from aiorepl.errors import AioreplError, ConfigurationError, PermanentError
from aiorepl.journal.index import dump_type, load_type
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.messages import without_xid
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.position import Position
from aiorepl.sink import Batch, Rejection, SinkContext, SyncSink
from aiorepl.transactions import changes as c
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.transaction import Slice, Transaction
from aiorepl.values.registry import Types

_FORMAT: Final = 1
_SUFFIX: Final = ".json"


class DeadLetters(SyncSink):
    """A folder of letters. Durable when ``write`` returns.

    :param path: the folder; it is made if it is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._position: Position | None = None

    def open(self, context: SinkContext) -> None:
        """Make the folder."""
        self._position = context.position
        try:
            make_folder(self.path)
        except OSError as error:
            raise storage_error(error, f"dead letters: {self.path}") from None

    def write(self, batch: Batch) -> None:
        """A letter for each transaction."""
        try:
            for part in batch.slices:
                # How a table looked comes with its rows.
                changes = [change for change in part.changes if not isinstance(change, SchemaChange)]
                if changes:
                    self._write(part, changes, batch.rejection)
        except OSError as error:
            raise storage_error(error, f"dead letters: {self.path}") from None

    def letters(self) -> Iterator[Letter]:
        """What is there, in the order of the stream.

        :raises ConfigurationError: for a file that is not a letter.
        """
        for file in sorted(self.path.glob(f"*{_SUFFIX}")):
            yield _load(file)

    def _write(self, part: Slice, changes: list[c.Change], rejection: Rejection | None) -> None:
        file = self.path / f"{_name(changes[0])}{_SUFFIX}"
        if file.exists() and not file.is_symlink():
            self._require_own(file, rejection)
        # A killed process writes the same letter again after its restart.
        remove_partials(file)
        write_file(file, [_dump(part, changes, rejection, self._position)])

    def _require_own(self, file: Path, rejection: Rejection | None) -> None:
        """Check that a letter may be replaced: a change is refused again after a restart.

        :raises PermanentError: the letter is of another sink or slot.
        """
        try:
            letter = _load(file)
        except ConfigurationError as error:
            raise PermanentError(f"dead letters: {error}: move it out of the folder") from None
        kept, ours = letter.batch.rejection, self._position
        sinks = [None if one is None else one.sink for one in (kept, rejection)]
        slots = [None if one is None else (one.system_identifier, one.slot) for one in (letter.source, ours)]
        if sinks[0] != sinks[1] or slots[0] != slots[1]:
            raise PermanentError(
                f"dead letters: {file} is a letter of another sink or slot, which this one would replace: give each sink a "
                "folder of its own"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """One letter.

    :param batch: the changes as they were refused, whole as a batch, and why.
    :param source: the slot they came through.
    """

    file: Path
    batch: Batch
    source: Position | None

    def discard(self) -> None:
        """Delete it; durable on return."""
        self.file.unlink()
        sync_folder(self.file.parent)


def _name(first: c.Change) -> str:
    """The name of a letter, after its first change; names sort in the order of the stream."""
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
    return orjson.dumps(
        {
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
            "end_lsn": str(part.end_lsn or (header.commit_lsn if header is not None else LSN(0))),
            "binary": any(isinstance(change, c.RowChange) and change.layout.binary for change in changes),
            "types": [dump_type(info) for info in types.values()],
            "changes": [_message(change) for change in changes],
        },
        option=orjson.OPT_INDENT_2,
    )


def _message(change: c.Change) -> dict[str, Any]:
    assert isinstance(change, (c.RowChange, c.Truncate, c.Message))
    message = change.message
    relations: tuple[Relation, ...] = ()
    if isinstance(change, c.RowChange):
        relations = (change.layout.relation,)
    elif isinstance(change, c.Truncate):
        relations = change.relations
    described: list[Relation | Type] = []
    for relation in relations:
        described += [*relation.types, relation]
    return {
        "ordinal": change.ordinal,
        "described": [_text(without_xid(each.payload, each.xid)) for each in described],
        "message": _text(without_xid(message.payload, message.xid)),
    }


def _load(file: Path) -> Letter:
    try:
        return _letter(file, orjson.loads(file.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {reason(error)}") from None
    except (KeyError, TypeError, ValueError, AioreplError) as error:
        raise ConfigurationError(f"{file} is no dead letter: {type(error).__name__}") from None


def _letter(file: Path, fields: dict[str, Any]) -> Letter:
    if fields["format"] != _FORMAT:
        raise ConfigurationError(f"{file} has format {fields['format']}; this version reads format {_FORMAT}")
    header = fields["transaction"]
    transaction = (
        None if header is None else Transaction(**{**header, "commit_lsn": LSN.parse(header["commit_lsn"])})
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
    told = fields["refusal"]
    rejection = None if told is None else Rejection(**{**told, "at": datetime.fromisoformat(told["at"])})
    part = Slice(transaction, changes, True, LSN.parse(fields["end_lsn"]), 0)
    through = fields["source"]
    source = None if through is None else Position.from_json(through)
    if source is not None:
        source = replace(source, database=through.get("database"))
    return Letter(file, Batch((part,), rejection), source)


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()
