"""The index of a segment: everything that a reader needs to verify and decode each block alone. Pure.

An index is JSON at the end of a segment's file, with LSNs in PostgreSQL's text form and messages in base64. It has each
description (a Relation message and the Type messages that it uses) and each type once. Blocks refer to descriptions by number.
A description also has the table's name, so that a reader of one table decodes no other descriptions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiorepl.errors import AioreplError, DamagedJournal, JournalError
from aiorepl.journal.segment_format import FOOTER_BYTES, MAGIC, footer
from aiorepl.journal.times import NO_TIMES, Times
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Attribute, Relation
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
from aiorepl.transactions.transaction import SnapshotChunk
from aiorepl.values.types import TypeInfo

_UINT32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Continuation:
    """The transaction in whose middle a block starts, and the ordinal of the block's first change."""

    xid: int
    commit_lsn: LSN
    commit_timestamp: int
    origin: str | None
    ordinal: int


@dataclass(frozen=True, slots=True)
class Block:
    """A block's location in its segment, and its contents.

    :param offset: where the block starts, in bytes from the segment's start.
    :param length: the size of the block in bytes.
    :param checksum: zlib.crc32 of the block's bytes.
    :param descriptions: the numbers of the descriptions that its rows need first. A description that changes within the block
        is written into the block.
    :param rows: the number of rows by description number, in the order of last use; a truncate counts as one row of each of
        its tables.
    :param continuation: the transaction that the block continues; ``None`` if the block starts between transactions.
    :param first_commit_lsn: the commit LSN of the first transaction with messages in the block; ``None`` if there is none.
    :param last_commit_lsn: the commit LSN of the last transaction with messages in the block.
    :param last_end_lsn: the end LSN of the last transaction, or message between transactions, that ends in the block; ``None`` if
        none ends.
    """

    offset: int
    length: int
    checksum: int
    descriptions: tuple[int, ...]
    rows: Mapping[int, int]
    continuation: Continuation | None
    first_commit_lsn: LSN | None
    last_commit_lsn: LSN | None
    last_end_lsn: LSN | None


@dataclass(frozen=True, slots=True)
class Description:
    """The layout of a table's rows: raw Relation and Type messages, protocol version 1.

    :param table: the schema and the name that the Relation message has.
    :param attributes: the columns' attributes in the source's catalog; an attribute that is not certain is left out.
    """

    table: TableName
    relation: bytes
    types: tuple[bytes, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    @property
    def oid(self) -> int:
        """The table's oid, which follows the message's type."""
        return int.from_bytes(self.relation[1:5], "big")


@dataclass(frozen=True)
class SegmentIndex:
    """Everything about one segment, or part of one, except its blocks' contents.

    :param after: the end LSN of the previous segment; 0 for the first.
    :param epoch: the writer's epoch.
    :param part: the number of this part.
    :param end: the position of a consumer that has read this part and all earlier parts. Between the parts of a transaction, this
        is the position before the transaction; after the last part, it is at or after the end of the last transaction.
    :param offset: where the index begins in the file, which is where the last block ends.
    :param binary: whether rows may have columns in binary format.
    :param descriptions: in the order of their numbers.
    :param types: the types that are not built in, and their component types.
    :param chunks: by commit LSN, the chunks of snapshots that this part holds; empty for transactions of the stream.
    :param times: the commit times up to ``end``.
    :param earlier_types: for a prepared transaction whose types changed within it: block numbers, each with the types of the
        blocks before it. ``types`` has the types of the last blocks.
    :param location: the file, for errors.
    """

    after: LSN
    epoch: int
    part: int
    end: Position
    offset: int
    binary: bool
    descriptions: tuple[Description, ...]
    types: tuple[TypeInfo, ...]
    blocks: tuple[Block, ...] = field(repr=False)
    chunks: Mapping[LSN, SnapshotChunk] = field(default_factory=dict)
    earlier_types: tuple[tuple[int, tuple[TypeInfo, ...]], ...] = ()
    times: Times = NO_TIMES
    location: str = field(default="an index", compare=False, repr=False)
    _relations: dict[int, Relation] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables that have rows in the segment."""
        used = {number for block in self.blocks for number in block.rows}
        return tuple(dict.fromkeys(self.descriptions[number].table for number in sorted(used)))

    def types_of_block(self, number: int) -> tuple[TypeInfo, ...]:
        """Return the types of a block."""
        return next((types for end, types in self.earlier_types if number < end), self.types)

    def numbers_of(self, table: TableName) -> frozenset[int]:
        """The numbers of the descriptions of ``table``."""
        return frozenset(number for number, each in enumerate(self.descriptions) if each.table == table)

    def relation(self, number: int) -> Relation:
        """Decode a description, once.

        :raises DamagedJournal: the description is not a Relation message of its table.
        """
        found = self._relations.get(number)
        if found is None:
            try:
                found = self._relations[number] = _relation(self.descriptions[number])
            except JournalError as error:
                raise DamagedJournal(f"{self.location} is damaged: {error}") from None
        return found

    def attributes_of(self, relation: Relation) -> Mapping[str, Attribute]:
        """Return the attributes of a relation that a block describes."""
        found = (each.attributes for each in self.descriptions if each.relation == relation.payload)
        return next(found, {})


def _relation(description: Description) -> Relation:
    decoder = Decoder()
    try:
        for payload in description.types:
            decoder.decode(payload)
        relation = decoder.decode(description.relation)
    except AioreplError as error:
        raise JournalError(f"a table's description cannot be read: {error}") from None
    if not isinstance(relation, Relation):
        raise JournalError("a table's description is not a Relation message")
    if (relation.schema, relation.name) != description.table:
        raise JournalError(f"a description of {relation} has the name of another table")
    relation.attributes.update(description.attributes)
    return relation


def dump(index: SegmentIndex) -> bytes:
    """Make the end of a segment's file: the index and the footer."""
    fields: dict[str, Any] = {
        "after": str(index.after),
        "epoch": index.epoch,
        "part": index.part,
        "end": index.end.to_json(),
        "offset": index.offset,
        "binary": index.binary,
        "descriptions": [_dump_description(item) for item in index.descriptions],
        "types": [dump_type(info) for info in index.types],
        "blocks": [_dump_block(block) for block in index.blocks],
        "chunks": [[str(commit_lsn), dump_chunk(chunk)] for commit_lsn, chunk in index.chunks.items()],
    }
    if index.times != NO_TIMES:
        fields["times"] = index.times.to_json()
    if index.earlier_types:
        fields["earlier_types"] = [
            [end, [dump_type(info) for info in types]] for end, types in index.earlier_types
        ]
    return seal(fields) + footer(index.offset)


def load(data: bytes, offset: int, location: str) -> SegmentIndex:
    """Parse the output of ``dump``; verifies every field, and that the fields are consistent.

    :param offset: where the index begins in the file.
    :param location: the file, for errors.
    :raises JournalError: the file is damaged, or has another format.
    """
    if data[-FOOTER_BYTES:] != footer(offset):
        raise DamagedJournal(f"{location} is damaged: it does not end like a segment")

    def read(fields: Mapping[str, Any]) -> SegmentIndex:
        return _index(fields, offset, location)

    return unseal(data[:-FOOTER_BYTES], location, read)


def _index(fields: Mapping[str, Any], offset: int, location: str) -> SegmentIndex:
    blocks = tuple(map(_load_block, fields["blocks"]))
    index = SegmentIndex(
        after=lsn(fields, "after"),
        epoch=integer(fields, "epoch", _UINT32),
        part=integer(fields, "part", _UINT32),
        end=Position.from_json(fields["end"]),
        offset=integer(fields, "offset"),
        binary=boolean(fields, "binary"),
        descriptions=tuple(map(_load_description, fields["descriptions"])),
        types=tuple(map(load_type, fields["types"])),
        blocks=blocks,
        chunks=_load_chunks(fields, blocks),
        earlier_types=tuple(
            (_count(end), tuple(map(load_type, types))) for end, types in fields.get("earlier_types", ())
        ),
        times=Times.from_json(fields.get("times")),
        location=location,
    )
    if index.offset != offset:
        raise ValueError(f"the index of another file, at {index.offset} instead of {offset}")
    _require_consistent(index)
    return index


def _require_consistent(index: SegmentIndex) -> None:
    """Check that the fields are consistent with each other.

    :raises Exception: the fields contradict each other.
    """
    if index.end.lsn < index.after:
        raise ValueError(f"the segment ends at {index.end.lsn}, before it starts")
    count = len(index.descriptions)
    offset = len(MAGIC)
    for block in index.blocks:
        if block.offset != offset:
            raise ValueError(f"no block starts at {offset}, where the previous one ends")
        offset += block.length
        if not all(number < count for number in (*block.descriptions, *block.rows)):
            raise ValueError(f"the block at {block.offset} has a table without a description")
    if index.offset != offset:
        raise ValueError(f"its blocks end at {offset}, and the index begins at {index.offset}")
    if index.chunks:
        commits = {lsn for block in index.blocks for lsn in (block.first_commit_lsn, block.last_commit_lsn)}
        if not commits or not commits <= index.chunks.keys():
            raise ValueError("it has another transaction beside the chunks of a snapshot")


def _load_chunks(fields: Mapping[str, Any], blocks: tuple[Block, ...]) -> dict[LSN, SnapshotChunk]:
    if "chunks" in fields:
        return {LSN.parse(commit_lsn): load_chunk(chunk) for commit_lsn, chunk in fields["chunks"]}
    # An earlier version wrote a segment for each chunk.
    if fields["chunk"] is None:
        return {}
    commit_lsn = blocks[0].first_commit_lsn
    if commit_lsn is None:
        raise ValueError("it is not a transaction, as a chunk of a snapshot is")
    return {commit_lsn: load_chunk(fields["chunk"])}


def dump_chunk(chunk: SnapshotChunk) -> dict[str, Any]:
    """Return a chunk as a JSON object."""
    return {
        "snapshot_lsn": str(chunk.snapshot_lsn),
        "oid": chunk.oid,
        "schema": chunk.schema,
        "table": chunk.table,
        "number": chunk.number,
        "last_of_table": chunk.last_of_table,
        "last": chunk.last,
        "partial": chunk.partial,
        "reading": chunk.reading,
    }


def load_chunk(fields: Mapping[str, Any]) -> SnapshotChunk:
    """Return the chunk from the result of ``dump_chunk``."""
    return SnapshotChunk(
        snapshot_lsn=lsn(fields, "snapshot_lsn"),
        oid=integer(fields, "oid", _UINT32),
        schema=text(fields, "schema"),
        table=text(fields, "table"),
        number=integer(fields, "number"),
        last_of_table=boolean(fields, "last_of_table"),
        last=boolean(fields, "last"),
        partial=boolean(fields, "partial"),
        # Files of earlier versions have no ``reading``.
        reading=text(fields, "reading") if "reading" in fields else "",
    )


def _dump_description(description: Description) -> dict[str, Any]:
    """An attribute is a list: name and number, and the missing value if it is known."""
    fields: dict[str, Any] = {
        "table": tuple(description.table),
        "relation": _text(description.relation),
        "types": [_text(payload) for payload in description.types],
    }
    if description.attributes:
        fields["attributes"] = [
            [name, found.number, found.missing] if found.missing_known else [name, found.number]
            for name, found in description.attributes.items()
        ]
    return fields


def _load_description(fields: Mapping[str, Any]) -> Description:
    attributes = {}
    for name, number, *missing in fields.get("attributes", ()):
        if len(missing) > 1 or not all(isinstance(text, str) for text in (name, *filter(None, missing))):
            raise TypeError("an attribute is not a name, a number and a text")
        attributes[name] = Attribute(_count(number), missing[0] if missing else None, bool(missing))
    schema, name = fields["table"]
    if not isinstance(schema, str) or not isinstance(name, str):
        raise TypeError("a table's name is not a string")
    return Description(
        TableName(schema, name),
        _bytes(fields["relation"]),
        tuple(_bytes(payload) for payload in fields["types"]),
        attributes,
    )


def _dump_block(block: Block) -> dict[str, Any]:
    continuation = block.continuation
    return {
        "offset": block.offset,
        "length": block.length,
        "checksum": block.checksum,
        "descriptions": block.descriptions,
        "rows": [[number, rows] for number, rows in block.rows.items()],
        "midway": None
        if continuation is None
        else {
            "xid": continuation.xid,
            "commit_lsn": str(continuation.commit_lsn),
            "commit_timestamp": continuation.commit_timestamp,
            "origin": continuation.origin,
            "ordinal": continuation.ordinal,
        },
        "first_commit_lsn": _lsn(block.first_commit_lsn),
        "last_commit_lsn": _lsn(block.last_commit_lsn),
        "last_end_lsn": _lsn(block.last_end_lsn),
    }


def _load_block(fields: Mapping[str, Any]) -> Block:
    return Block(
        offset=integer(fields, "offset"),
        length=integer(fields, "length"),
        checksum=integer(fields, "checksum", _UINT32),
        descriptions=tuple(_count(number) for number in fields["descriptions"]),
        rows={_count(number): _count(rows) for number, rows in fields["rows"]},
        continuation=None if fields["midway"] is None else _load_continuation(fields["midway"]),
        first_commit_lsn=_optional(fields, "first_commit_lsn"),
        last_commit_lsn=_optional(fields, "last_commit_lsn"),
        last_end_lsn=_optional(fields, "last_end_lsn"),
    )


def _load_continuation(fields: Mapping[str, Any]) -> Continuation:
    timestamp = fields["commit_timestamp"]
    if type(timestamp) is not int:
        raise TypeError("commit_timestamp is not a number")
    return Continuation(
        xid=integer(fields, "xid", _UINT32),
        commit_lsn=lsn(fields, "commit_lsn"),
        commit_timestamp=timestamp,
        origin=None if fields["origin"] is None else text(fields, "origin"),
        ordinal=integer(fields, "ordinal"),
    )


def dump_type(info: TypeInfo) -> dict[str, Any]:
    """Convert a type to a JSON object, for ``load_type``."""
    fields: dict[str, Any] = {
        "oid": info.oid,
        "namespace": info.namespace,
        "name": info.name,
        "kind": info.kind,
        "element": info.element,
        "delimiter": info.delimiter,
        "fields": info.fields,
    }
    if info.problem:
        fields["problem"] = info.problem
    return fields


def load_type(fields: Mapping[str, Any]) -> TypeInfo:
    """Parse the output of ``dump_type``.

    :raises Exception: a field is wrong.
    """
    return TypeInfo(
        oid=integer(fields, "oid", _UINT32),
        namespace=text(fields, "namespace"),
        name=text(fields, "name"),
        kind=text(fields, "kind"),
        element=integer(fields, "element", _UINT32),
        delimiter=text(fields, "delimiter"),
        fields=tuple((str(name), _count(oid)) for name, oid in fields["fields"]),
        problem=text(fields, "problem") if "problem" in fields else "",
    )


def _lsn(value: LSN | None) -> str | None:
    return None if value is None else str(value)


def _optional(fields: Mapping[str, Any], name: str) -> LSN | None:
    return None if fields[name] is None else lsn(fields, name)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a count is not a number from 0 up")
    return value


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def _bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError("a message is not a string")
    return binascii.a2b_base64(value, strict_mode=True)
