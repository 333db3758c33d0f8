"""Rows of COPY's binary format: found whatever the boundaries of the data, and the same changes as from pgoutput's messages."""

from __future__ import annotations

import struct

import pytest

from aiorepl import LSN, ProtocolError, Read, Slice
from aiorepl.journal.segment_builder import SegmentBuilder
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.framing import unframed
from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.snapshot.copy_rows import SIGNATURE, CopiedRows, FieldSplitter, RowSplitter
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.rewriting import redescribed
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.transaction import Transaction
from aiorepl.values import Types

HEADER = SIGNATURE + bytes(8)
TRAILER = b"\xff\xff"
ROWS = [
    (b"\0\0\0\1", b"a"),
    (b"\0\0\0\2", None),
    (None, b""),
    (b"\0\0\0\3", b"x" * 3000),
    (b"\xff\xff\xff\xff", b"\xff\xff"),
]
TRANSACTION = Transaction(0, LSN(99), 0)


def copied(rows) -> bytes:
    """Rows in the format."""
    return b"".join(
        struct.pack(">H", len(row))
        + b"".join(
            b"\xff\xff\xff\xff" if value is None else struct.pack(">I", len(value)) + value for value in row
        )
        for row in rows
    )


def split(data: bytes, size: int, columns: int = 2, kind=RowSplitter) -> list[tuple]:
    """Return the rows that a splitter finds in data that arrives in pieces of ``size``."""
    splitter, buffer, taken = kind(columns), bytearray(), []
    for at in range(0, len(data), size):
        buffer += data[at : at + size]
        if len(buffer) >= splitter.missing:
            taken.append(splitter.take(buffer))
    splitter.take(buffer) if not splitter.ended else None
    splitter.finish()
    return taken


def rows(values=ROWS, *, ordinal: int = 0) -> CopiedRows:
    """Rows as changes."""
    columns = (Column(True, "id", 23, -1), Column(False, "v", 25, -1))
    relation = redescribed(Relation(7, "public", "t", "d", ()), columns)
    layout = Layout(relation, Types(), binary=True)
    return CopiedRows(TRANSACTION, layout, b"bt", copied(values), len(values), ordinal)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 19, 100, 1 << 20])
def test_rows_are_found_whatever_the_pieces(size):
    """Each row is taken once, and whole."""
    taken = split(HEADER + copied(ROWS) + TRAILER, size)
    assert (copied(ROWS), len(ROWS)) == (b"".join(part for part, _ in taken), sum(n for _, n in taken))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 19, 100, 1 << 20])
def test_fields_are_split_whatever_the_pieces(size):
    """Each field of each row is taken once, NULL as ``None``."""
    taken = split(HEADER + copied(ROWS) + TRAILER, size, kind=FieldSplitter)
    assert list(map(list, ROWS)) == [fields for part, _ in taken for fields in part]
    assert [len(part) for part, _ in taken] == [count for _, count in taken]


@pytest.mark.parametrize("columns", [0, 1, 300])
def test_any_number_of_columns(columns):
    """Tables without columns have rows."""
    values = [(b"x",) * columns] * 3
    assert 3 == sum(n for _, n in split(HEADER + copied(values) + TRAILER, 50, columns))


def test_how_much_is_missing_of_a_large_value():
    """The reader waits for all of a large value instead of scanning it repeatedly."""
    splitter = RowSplitter(2)
    data = bytearray(HEADER + struct.pack(">HI", 2, 10**8) + b"x")
    assert (b"", 0) == splitter.take(data)
    assert 2 + 4 + 10**8 + 4 == splitter.missing


@pytest.mark.parametrize(
    "data",
    [
        b"PGCOPY\n\xff\r\n\1" + bytes(8),
        SIGNATURE + struct.pack(">II", 1 << 16, 0),
        HEADER + struct.pack(">H", 3),
        HEADER + struct.pack(">HI", 2, 1 << 30),
        HEADER + TRAILER + b"x",
    ],
    ids=["signature", "flags", "columns", "length", "rest"],
)
def test_other_data_is_refused(data):
    """Data in another format raises an error."""
    with pytest.raises(ProtocolError):
        RowSplitter(2).take(bytearray(data))


def test_data_without_a_trailer_is_refused():
    """A COPY that was cut off is not taken for all rows."""
    splitter = RowSplitter(2)
    splitter.take(bytearray(HEADER + copied(ROWS)))
    with pytest.raises(ProtocolError, match="trailer"):
        splitter.finish()


def test_changes_are_those_of_the_messages():
    """The changes have the messages that the journal gets, and these decode to the same rows."""
    lazy = rows(ordinal=5)
    out = bytearray()
    assert 2 == lazy.put_messages(out, 0, 40)
    assert len(ROWS) == lazy.put_messages(out, 2, 1 << 20)
    decoder = Decoder()
    decoder.decode(lazy.layout.relation.payload)
    messages = [decoder.decode(payload) for payload in unframed(bytes(out))]
    changes = list(lazy)
    assert [change.message.payload for change in changes] == [message.payload for message in messages]
    assert list(range(5, 5 + len(ROWS))) == [change.ordinal for change in changes]
    assert {Read} == set(map(type, changes))
    assert [{"id": 1, "v": "a"}, {"id": 2, "v": None}, {"id": None, "v": ""}] == [
        dict(change.new) for change in changes[:3]
    ]


def test_parts_of_the_rows():
    """Slices are as lazy as the whole, and all indexes are those of the list."""
    lazy = rows()
    ids = [0, 1, 2, 3, 4]
    assert ids[1:4] == [change.ordinal for change in lazy[1:4]]
    assert isinstance(lazy[1:4], CopiedRows)
    assert 1 == lazy[1:4].first_ordinal
    assert [ids[::2], ids[3:1]] == [[change.ordinal for change in part] for part in (lazy[::2], lazy[3:1])]
    assert (4, 0) == (lazy[-1].ordinal, lazy[-5].ordinal)
    with pytest.raises(IndexError):
        lazy[5]


def test_a_replay_is_dropped_without_reading_the_rows():
    """The rest of a chunk that was received in part is as lazy as the chunk."""
    received = ReplayFilter(LSN(50), LSN(99), 3)
    part = received.new(Slice(TRANSACTION, rows(), True, LSN(100), 1))
    assert (3, 2, False) == (part.changes.first_ordinal, len(part.changes), part.first)
    received.add(Slice(TRANSACTION, rows(ordinal=5), False, None, 1))
    assert (LSN(99), 10) == (received.commit_lsn, received.ordinal)


@pytest.mark.parametrize("block_bytes", [1, 60, 1 << 20])
def test_the_journal_has_the_same_blocks(block_bytes):
    """A segment of lazy rows is the segment of their changes, byte for byte."""
    found = []
    for changes in (rows(), list(rows())):
        builder = SegmentBuilder(block_bytes)
        builder.add(Slice(TRANSACTION, changes, True, LSN(100), 1))
        index = builder.finish(LSN(100), after=LSN(0), epoch=1, part=0)
        found.append((b"".join(builder.take()), index.blocks))
    assert found[0][0] == found[1][0]
    assert [(block.length, block.rows) for block in found[0][1]] == [
        (block.length, block.rows) for block in found[1][1]
    ]
