"""The text of small binary values can be large; its size is estimated before it is made."""

from __future__ import annotations

import struct

import pytest

from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Binary
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.pending import SLICE_BYTES
from aiorepl.transactions.spool import Spool
from aiorepl.values import Format, TypeInfo, Types

NUMERIC, NUMERICS, NUMRANGE, NUMMULTIRANGE = 1700, 1231, 3906, 4532
PAIR, PRICE, PRICES, PAIRS = 90001, 90002, 90003, 90004
TYPES = Types(
    [
        TypeInfo(PAIR, "public", "pair", "c", fields=(("a", 23), ("b", NUMERIC))),
        TypeInfo(PRICE, "public", "price", "d", NUMERIC),
        TypeInfo(PRICES, "public", "_price", "a", PRICE),
        TypeInfo(PAIRS, "public", "_pair", "a", PAIR),
    ]
)
HUGE = struct.pack("!HhHHH", 1, 32767, 0, 0, 1000)  # 1e131071
FINE = struct.pack("!HhHH", 0, 0, 0, 16383)  # 0.000…
SMALL = struct.pack("!HhHHHH", 2, 0, 0, 2, 12, 3400)  # 12.34


def sized(raw: bytes) -> bytes:
    """Put the length before bytes."""
    return struct.pack("!i", len(raw)) + raw


def array(element: int, *values: bytes | None) -> bytes:
    """Return an array of one dimension."""
    items = [struct.pack("!i", -1) if value is None else sized(value) for value in values]
    return struct.pack("!iiIii", 1, 0, element, len(values), 1) + b"".join(items)


def pair(a: bytes | None, b: bytes) -> bytes:
    """Return a composite of two columns."""
    first = struct.pack("!i", -1) if a is None else sized(a)
    return struct.pack("!iI", 2, 23) + first + struct.pack("!I", NUMERIC) + sized(b)


def between(lower: bytes, upper: bytes) -> bytes:
    """Return a range."""
    return b"\x02" + sized(lower) + sized(upper)


CASES = {
    "numeric": (NUMERIC, HUGE),
    "scale": (NUMERIC, FINE),
    "array": (NUMERICS, array(NUMERIC, *[HUGE, None] * 20)),
    "range": (NUMRANGE, between(SMALL, HUGE)),
    "multirange": (
        NUMMULTIRANGE,
        struct.pack("!i", 2) + sized(between(SMALL, SMALL)) + sized(between(FINE, HUGE)),
    ),
    "composite": (PAIR, pair(None, HUGE)),
    "domain": (PRICE, HUGE),
    "array of a domain": (PRICES, array(PRICE, HUGE, SMALL)),
    "array of composites": (PAIRS, array(PAIR, pair(b"\0\0\0\1", HUGE), pair(None, SMALL))),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_less_than_it_prints(case):
    """The estimate is at least the size of the text, and not much more."""
    oid, raw = case
    count = TYPES.form(oid, Format.BINARY).expansion
    text = TYPES.text(oid, Format.BINARY)(raw)

    assert TYPES.form(oid, Format.BINARY).expands()
    assert len(text) <= len(raw) * 4 + count(raw, 0, len(raw)) <= len(text) + len(raw) * 4 + 1000
    assert count(raw, 0, len(raw)) == count(b"x" * 7 + raw + b"x" * 9, 7, 7 + len(raw))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_damaged(case):
    """Bytes that are cut short or claim too much have an estimate, too."""
    oid, raw = case
    count = TYPES.form(oid, Format.BINARY).expansion

    for at in range(len(raw)):
        assert count(raw, 0, at) >= 0
        damaged = raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :]
        assert count(damaged, 0, len(damaged)) >= 0


@pytest.mark.parametrize("oid", [23, 25, 17, 3802, 1007, 3904], ids=str)
def test_others(oid):
    """Types whose text is a few times the binary form at most have no estimate."""
    form = TYPES.form(oid, Format.BINARY)

    assert not form.expands()
    assert 0 == form.expansion(bytes(100), 0, 100)


def assembled(oid: int, *payloads: bytes, modifier: int = -1, **options):
    """Return the slices of one read, for a table with a column of this type."""
    decoder = Decoder(Streaming.ON)
    columns = [build.column("id", 23), build.column("v", oid, type_modifier=modifier)]
    described = build.relation(oid=7, name="t", columns=columns)
    assembler = Assembler(TYPES, binary=True, **options)
    return assembler.feed([decoder.decode(payload) for payload in (described, *payloads)])


def row(value: bytes, xid: int | None = None) -> bytes:
    """Return an insert of a binary value."""
    return build.insert(relation=7, new=[Binary(b"\0\0\0\1"), Binary(value)], xid=xid)


PLAIN = build.begin(final_lsn=16, xid=5), build.commit(commit_lsn=16, end_lsn=24)


def test_slices_of_a_plain_transaction():
    """Rows whose text would fill the memory are cut into slices, which budgets count by their text."""
    value = array(NUMERIC, *[HUGE] * 40)  # 480 bytes, 5 MB of text
    begin, commit = PLAIN

    slices = assembled(NUMERICS, begin, *[row(value)] * 10, commit)

    assert [1] * 10 == [len(part.changes) for part in slices if part.changes]
    assert all(part.size > 40 * 131_000 for part in slices if part.changes)
    assert [True] + [False] * (len(slices) - 1) == [part.first for part in slices]
    assert list(range(10)) == [change.ordinal for part in slices for change in part.changes]


@pytest.mark.parametrize("budget", [1 << 30, 1, 8000], ids=["memory", "spool", "mixed"])
def test_slices_of_a_streamed_transaction(budget, tmp_path):
    """The same holds for a transaction that waited in memory or on disk."""
    value = array(NUMERIC, *[HUGE] * 40)
    block = [build.stream_start(xid=5, first_segment=True), *[row(value, 5)] * 10, build.stream_stop()]

    slices = assembled(
        NUMERICS,
        *block,
        build.stream_commit(xid=5, commit_lsn=16, end_lsn=24),
        budget=budget,
        spool=Spool(tmp_path),
    )

    begin, commit = PLAIN
    plain, *_ = assembled(NUMERICS, begin, row(value), commit)
    assert [1] * 10 == [len(part.changes) for part in slices]
    assert {plain.size + 4} == {part.size for part in slices}
    assert list(range(10)) == [change.ordinal for part in slices for change in part.changes]


@pytest.mark.parametrize("modifier", [-1, (12 << 16 | 2) + 4], ids=["numeric", "numeric(12,2)"])
def test_ordinary_numbers(modifier):
    """Rows with numbers of a few digits count by their messages, and stay in one slice."""
    begin, commit = PLAIN

    (part,) = assembled(NUMERIC, begin, *[row(SMALL)] * 5000, commit, modifier=modifier)

    assert SLICE_BYTES < part.size < 5000 * 500


def test_a_type_that_becomes_known():
    """The text of a type that was looked up after the first row is estimated from the next read on."""
    types, decode = Types(), Decoder().decode
    assembler = Assembler(types, binary=True)
    begin, commit = PLAIN
    described = build.relation(oid=7, name="t", columns=[build.column("id", 23), build.column("v", PRICE)])

    (first,) = assembler.feed([decode(payload) for payload in (described, begin, row(HUGE))])
    types.add(TypeInfo(PRICE, "public", "price", "d", NUMERIC))
    slices = assembler.feed([decode(payload) for payload in (*[row(HUGE)] * 10, commit)])

    assert first.size < 1000
    assert [8, 2] == [len(part.changes) for part in slices]
    assert 10 * 131_000 < sum(part.size for part in slices)
