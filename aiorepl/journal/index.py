"""The index of a segment: what any reader, also on another machine, needs to verify and decode one block alone.

JSON in one line, and its checksum in a second. LSNs are PostgreSQL's text, messages base64. Descriptions (a Relation
message with the Type messages it leans on) and types stand once in an index, and blocks refer to descriptions by
number. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import orjson

from aiorepl.errors import AioreplError, DamagedJournal, JournalError
from aiorepl.journal.format import checksum
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.values.types import TypeInfo

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Midway:
    """The transaction that a block begins in the middle of, and the ordinal of the first change in the block."""

    xid: int
    commit_lsn: LSN
    commit_timestamp: int
    origin: str | None
    ordinal: int


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block stands in its segment, and what is in it.

    :param checksum: zlib.crc32 of its bytes.
    :param descriptions: numbers of the descriptions that hold where its first rows use them. One that changes
        further on stands in the block itself.
    :param rows: description number to the rows of it, in the order of their last use; a truncate counts as one of
        each of its tables.
    :param midway: what it continues, ``None`` when it begins between transactions.
    :param first_commit_lsn: of the first and last transaction that has messages here; ``None`` without one.
    :param last_end_lsn: of the last transaction, or message between transactions, that ends here; ``None``
        without one.
    """

    offset: int
    length: int
    checksum: int
    descriptions: tuple[int, ...]
    rows: Mapping[int, int]
    midway: Midway | None
    first_commit_lsn: LSN | None
    last_commit_lsn: LSN | None
    last_end_lsn: LSN | None


@dataclass(frozen=True, slots=True)
class Description:
    """How a table's rows are laid out: raw Relation and Type messages, version 1."""

    relation: bytes
    types: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class SegmentIndex:
    """Everything about one segment but its blocks' contents.

    :param after: the end LSN of the segment before it, which a reader must have had.
    :param timeline: the timeline it was received on.
    :param last_end_lsn: what a consumer of the whole segment has; at or behind its last transaction's end.
    :param binary: whether rows may hold columns in binary form.
    :param types: the types that are not built in, with all they are made of.
    """

    after: LSN
    timeline: int
    first_end_lsn: LSN
    last_end_lsn: LSN
    size: int
    binary: bool
    descriptions: tuple[Description, ...]
    types: tuple[TypeInfo, ...]
    blocks: tuple[Block, ...] = field(repr=False)

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        """The descriptions, decoded, in their numbers' order.

        :raises JournalError: when one of them is no Relation message.
        """
        return tuple(_relation(description) for description in self.descriptions)


def _relation(description: Description) -> Relation:
    decoder = Decoder()
    try:
        for payload in description.types:
            decoder.decode(payload)
        relation = decoder.decode(description.relation)
    except AioreplError as error:
        raise JournalError(f"an index describes a table in a way that cannot be read: {error}") from None
    if not isinstance(relation, Relation):
        raise JournalError("an index describes a table with another message than Relation")
    return relation


def dump(index: SegmentIndex) -> bytes:
    """The index file's bytes."""
    body = orjson.dumps(
        {
            "format": FORMAT,
            "after": str(index.after),
            "timeline": index.timeline,
            "first_end_lsn": str(index.first_end_lsn),
            "last_end_lsn": str(index.last_end_lsn),
            "size": index.size,
            "binary": index.binary,
            "descriptions": [
                {"relation": _text(item.relation), "types": [_text(payload) for payload in item.types]}
                for item in index.descriptions
            ],
            "types": [dump_type(info) for info in index.types],
            "blocks": [_dump_block(block) for block in index.blocks],
        }
    )
    return b"%b\n%08x\n" % (body, checksum(body))


def load(data: bytes, name: str) -> SegmentIndex:
    """Read what ``dump`` wrote; ``name`` is for the error.

    :raises JournalError: when it is damaged, or of a newer format.
    """
    body, _, tail = data.partition(b"\n")
    if tail != b"%08x\n" % checksum(body):
        raise DamagedJournal(name, "its checksum does not match")
    fields = orjson.loads(body)
    if fields["format"] != FORMAT:
        raise JournalError(f"{name} has format {fields['format']}; this version reads format {FORMAT}")
    return SegmentIndex(
        after=LSN.parse(fields["after"]),
        timeline=fields["timeline"],
        first_end_lsn=LSN.parse(fields["first_end_lsn"]),
        last_end_lsn=LSN.parse(fields["last_end_lsn"]),
        size=fields["size"],
        binary=fields["binary"],
        descriptions=tuple(
            Description(_bytes(item["relation"]), tuple(_bytes(payload) for payload in item["types"]))
            for item in fields["descriptions"]
        ),
        types=tuple(load_type(item) for item in fields["types"]),
        blocks=tuple(_load_block(item) for item in fields["blocks"]),
    )


def _dump_block(block: Block) -> dict[str, Any]:
    midway = block.midway
    return {
        "offset": block.offset,
        "length": block.length,
        "checksum": block.checksum,
        "descriptions": block.descriptions,
        "rows": [[number, rows] for number, rows in block.rows.items()],
        "midway": None
        if midway is None
        else {
            "xid": midway.xid,
            "commit_lsn": str(midway.commit_lsn),
            "commit_timestamp": midway.commit_timestamp,
            "origin": midway.origin,
            "ordinal": midway.ordinal,
        },
        "first_commit_lsn": _lsn(block.first_commit_lsn),
        "last_commit_lsn": _lsn(block.last_commit_lsn),
        "last_end_lsn": _lsn(block.last_end_lsn),
    }


def _load_block(fields: dict[str, Any]) -> Block:
    midway = fields["midway"]
    return Block(
        offset=fields["offset"],
        length=fields["length"],
        checksum=fields["checksum"],
        descriptions=tuple(fields["descriptions"]),
        rows=dict(fields["rows"]),
        midway=None
        if midway is None
        else Midway(**{**midway, "commit_lsn": LSN.parse(midway["commit_lsn"])}),
        first_commit_lsn=_parsed(fields["first_commit_lsn"]),
        last_commit_lsn=_parsed(fields["last_commit_lsn"]),
        last_end_lsn=_parsed(fields["last_end_lsn"]),
    )


def dump_type(info: TypeInfo) -> dict[str, Any]:
    """A type as JSON; ``load_type`` reads it."""
    return {
        "oid": info.oid,
        "namespace": info.namespace,
        "name": info.name,
        "kind": info.kind,
        "element": info.element,
        "delimiter": info.delimiter,
        "fields": info.fields,
    }


def load_type(fields: dict[str, Any]) -> TypeInfo:
    """Read what ``dump_type`` made."""
    parts: Iterable[tuple[str, int]] = ((name, oid) for name, oid in fields["fields"])
    return TypeInfo(**{**fields, "fields": tuple(parts)})


def _lsn(lsn: LSN | None) -> str | None:
    return None if lsn is None else str(lsn)


def _parsed(text: str | None) -> LSN | None:
    return None if text is None else LSN.parse(text)


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
