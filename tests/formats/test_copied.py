"""Rows of COPY's binary format as Arrow arrays: the same as through PostgreSQL's text."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import LSN, DataError
from aiorepl.formats.arrow.column_filler import ColumnFiller
from aiorepl.formats.arrow.columns import converter
from aiorepl.formats.arrow.copied import CopiedColumns
from aiorepl.formats.arrow.types import arrow_type
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.snapshot.copy_rows import SIGNATURE, CopiedRows
from aiorepl.testing import messages as build
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.messages import column
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.registry import Types

NUMERIC = 1700


def copied(oid: int, values: list[bytes | None], *, modifier: int = -1, kind: str = "b", refused=None):
    """The array of a column's values, which has a neighbour on either side."""
    types = Types()
    columns = [column("before", 25), column("value", oid, type_modifier=modifier), column("after", 25)]
    relation = Decoder().decode(build.relation(oid=1, name="t", columns=columns))
    wanted = arrow_type(oid, modifier, types)
    fields = [pa.field("before", pa.string()), pa.field("value", wanted), pa.field("after", pa.string())]
    data = b"".join(struct.pack(">H", 3) + b"".join(map(field, (b"x", each, None))) for each in values)
    layout = Layout(relation, types, binary=True)
    kinds = b"b" + kind.encode() + b"b"
    rows = CopiedRows(Transaction(0, LSN(1), 0), layout, kinds, data, len(values), 0)
    before, array, after = CopiedColumns(layout, fields).arrays(rows, lambda *value: refused.append(value))
    assert before.to_pylist() == ["x"] * len(values)
    assert after.to_pylist() == [None] * len(values)
    array.validate(full=True)
    assert wanted == array.type
    return array.to_pylist()


def field(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else struct.pack(">I", len(value)) + value


def numeric(text: str) -> bytes:
    """numeric_send."""
    sign = 0x4000 if text.startswith("-") else 0
    whole, _, fraction = text.lstrip("-").partition(".")
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    padded = whole + fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(padded[at : at + 4]) for at in range(0, len(padded), 4)]
    weight = len(whole) // 4 - 1
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups = groups[:-1]
    weight = weight if groups else 0
    return struct.pack(f">HhHH{len(groups)}H", len(groups), weight, sign, len(fraction), *groups)


@pytest.mark.parametrize("size", [1, 19, 150, 1 << 20])
def test_a_copy_that_arrives_in_pieces(size):
    """Each row is taken once, whatever the pieces; what a column refused is in the data beside it."""
    texts = [None if row % 5 == 0 else b"\xff" if row == 7 else b"x" * (row % 50) for row in range(300)]
    rows = b"".join(
        struct.pack(">H", 2) + field(bytes([0, 0, row >> 8, row & 255])) + field(text)
        for row, text in enumerate(texts)
    )
    data = SIGNATURE + bytes(8) + rows + b"\xff\xff"
    columns = [column("id", 23), column("v", 25)]
    layout = Layout(Decoder().decode(build.relation(oid=1, name="t", columns=columns)), Types(), binary=True)
    copied = CopiedColumns(layout, [pa.field("id", pa.int32()), pa.field("v", pa.string())])
    filler = ColumnFiller(2, lambda room: copied.make(b"bb", room))
    ids, found, refused, buffer = [], [], [], bytearray()
    for at in range(0, len(data), size):
        buffer += data[at : at + size]
        if len(buffer) >= filler.missing and not filler.ended:
            (filled, kept), count = filler.take(buffer)
            one, other = copied.filled(filled, b"bb", count, kept, lambda *value: refused.append(value[2]))
            ids += one.to_pylist()
            found += other.to_pylist()
    filler.finish()
    assert list(range(300)) == ids
    assert [None if text in (None, b"\xff") else text.decode() for text in texts] == found
    assert refused == ["\\xff"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type_name)
def test_every_type(sample):
    """A value, NULL and the value again are the same as by the conversion by text."""
    types, wanted = Types(), arrow_type(sample.oid, -1, Types())
    expected = converter(sample.oid, types, wanted, null=True)([sample.text.encode(), None]).to_pylist()
    raw = bytes.fromhex(sample.binary)

    refused = []

    assert copied(sample.oid, [raw, None, raw], refused=refused) == [expected[0], None, expected[0]]
    assert bool(refused) == (expected[0] is None)


@given(
    st.integers(1, 12).flatmap(
        lambda precision: st.tuples(
            st.just(precision),
            st.integers(0, precision),
            st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), max_size=5),
        )
    )
)
def test_numeric(case):
    """Every value of numeric(p,s) is kept."""
    precision, scale, unscaled = case
    texts = []
    for number in unscaled:
        digits = str(abs(number)).rjust(scale + 1, "0")
        point = len(digits) - scale
        texts.append(f"{'-' if number < 0 else ''}{digits[:point]}{'.' if scale else ''}{digits[point:]}")
    modifier = (precision << 16 | scale) + 4
    found = copied(NUMERIC, [numeric(text) for text in texts], modifier=modifier)

    assert found is not None
    assert unscaled == [int(value.scaleb(scale)) for value in found]


@pytest.mark.parametrize(
    ("oid", "raw", "modifier", "text"),
    [
        (1082, struct.pack(">i", 2**31 - 1), -1, "infinity"),
        (1114, struct.pack(">q", -(2**63)), -1, "-infinity"),
        (1184, struct.pack(">q", 2**63 - 1), -1, "infinity"),
        (NUMERIC, struct.pack(">HhHH", 0, 0, 0xC000, 0), (10 << 16) + 4, "NaN"),
        (NUMERIC, numeric("12345678"), (7 << 16) + 4, "12345678"),
        (25, b"\xff", -1, "\\xff"),
    ],
    ids=["date", "timestamp", "timestamptz", "NaN", "too many digits", "not UTF-8"],
)
def test_a_value_that_the_type_cannot_represent(oid, raw, modifier, text):
    """The value is null, its text is reported, and the others are kept."""
    good = {25: b"a", NUMERIC: numeric("7")}.get(oid, b"\0" * len(raw))
    (expected,) = copied(oid, [good], modifier=modifier)
    refused = []

    assert copied(oid, [good, raw, good], modifier=modifier, refused=refused) == [expected, None, expected]
    assert refused == [("value", 1, text)]


@pytest.mark.parametrize(
    ("oid", "raw"),
    [(23, b"\0\0\0"), (16, b""), (NUMERIC, b"\0\1\0\0\0\0\0\0")],
    ids=["short", "empty", "cut"],
)
def test_a_value_that_is_not_of_its_type(oid, raw):
    """The error names the column."""
    with pytest.raises(DataError, match=r"t\.value"):
        copied(oid, [raw], modifier=(9 << 16) + 4)


@pytest.mark.parametrize(
    ("oid", "raw"),
    [
        (25, lambda row: "ä".encode() * (row % 300)),
        (17, lambda row: b"\xff" * (10_000 * (row == 599))),
        (3802, lambda row: b"\1" + b"7" * (row % 9 + 1)),
        (23, lambda row: struct.pack(">i", -row)),
        (16, lambda row: bytes([row % 3 == 0])),
    ],
    ids=["text", "bytea", "jsonb", "int4", "bool"],
)
def test_many_rows(oid, raw):
    """Rows of several blocks are all there, each NULL is where it was, and the last value is checked."""
    values = [None if row % 7 == 0 else raw(row) for row in range(600)]
    each = [None if value is None else copied(oid, [value])[0] for value in values[590:]]

    assert each == copied(oid, values)[590:]
    assert [row % 7 == 0 for row in range(600)] == [value is None for value in copied(oid, values)]
    if oid == 25:
        # The halves of a character in two values.
        refused = []
        assert copied(oid, [*values[:-2], b"\xc3", b"\xa4"], refused=refused)[-3:] == [
            values[-3].decode(),
            None,
            None,
        ]
        assert [text for _, _, text in refused] == ["\\xc3", "\\xa4"]
