"""Rows of a journal's blocks as record batches: the same values as through PostgreSQL's text, one by one."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import ProtocolError
from aiorepl.formats.arrow.collected import CollectedRows
from aiorepl.formats.arrow.columns import Unrepresentable, converter
from aiorepl.formats.arrow.row_collector import BlockScanner
from aiorepl.formats.arrow.types import arrow_type
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.messages import Binary, column
from aiorepl.transactions.rows import Layout
from aiorepl.values.registry import Types

OID = 7


def frames(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


def batch(columns, *payloads: bytes, xid: int = 5, identity: str = "d", attributes=None) -> pa.RecordBatch:
    """The rows of one transaction, as a record batch."""
    relation = Decoder().decode(build.relation(oid=OID, name="t", columns=columns, replica_identity=identity))
    relation.attributes.update(attributes or {})
    rows = CollectedRows(Layout(relation, Types()))
    collector = rows.collector()
    scanner = BlockScanner(frames(build.begin(final_lsn=100, xid=xid), *payloads), 0, 0, 0, 0)
    assert scanner.scan({OID: collector}) == 0
    found = rows.batch(collector)
    found.validate(full=True)
    return found


def inserts(oid: int, *values, modifier: int = -1) -> pa.RecordBatch:
    """Rows of one column, which has a neighbour on either side."""
    columns = [column("before"), column("v", oid, type_modifier=modifier), column("after")]
    rows = [build.insert(relation=OID, new=["x", value, None]) for value in values]
    found = batch(columns, *rows)
    assert found["before"].to_pylist() == ["x"] * len(values)
    assert found["after"].to_pylist() == [None] * len(values)
    return found


def expected(oid: int, texts, modifier: int = -1):
    """The column's values and, by row, the texts that it cannot hold."""
    types = Types()
    convert = converter(oid, types, arrow_type(oid, modifier, types), null=False)
    values, odd = [], []
    for text in texts:
        raw = None if text is None else text.encode()
        try:
            values += (
                convert([raw]).cast(wanted).to_pylist()
                if (wanted := number_of(oid))
                else convert([raw]).to_pylist()
            )
            odd.append(None)
        except Unrepresentable:
            values.append(None)
            odd.append([("v", text)])
    return values, odd


def number_of(oid: int):
    """Dates and timestamps are compared as numbers: Python has fewer years."""
    return {1082: pa.int32(), 1114: pa.int64(), 1184: pa.int64()}.get(oid)


def agrees(oid: int, texts, modifier: int = -1) -> None:
    found = inserts(oid, *texts, modifier=modifier)
    values, odd = expected(oid, texts, modifier)
    array = found["v"].cast(number_of(oid)) if number_of(oid) else found["v"]
    assert repr(array.to_pylist()) == repr(values)  # NaN is not equal to itself
    assert [each or None for each in found["_unrepresentable"].to_pylist()] == odd


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type_name)
def test_every_type(sample):
    """A value in text, in binary and NULL are the same as by the conversion one by one."""
    values, odd = expected(sample.oid, [sample.text])
    text, binary, null = Binary(bytes.fromhex(sample.binary)), sample.text, None
    for first, second in ((text, binary), (binary, text)):
        found = inserts(sample.oid, first, null, second, first)
        kind = number_of(sample.oid)
        array = found["v"].cast(kind) if kind else found["v"]
        assert array.to_pylist() == [values[0], None, values[0], values[0]]
        assert found["_unrepresentable"].to_pylist() == [odd[0], None, odd[0], odd[0]]


@pytest.mark.parametrize(
    ("oid", "modifier", "texts"),
    [
        (21, -1, ["0", "-32768", "32767"]),
        (23, -1, ["-2147483648", "2147483647", "-1"]),
        (20, -1, ["-9223372036854775808", "9223372036854775807", "1000000000000000000", "-999999999999999999"]),
        (26, -1, ["4294967295"]),
        (16, -1, ["t", "f"]),
        (701, -1, ["NaN", "Infinity", "-Infinity", "1e-300", "0.1"]),
        (1082, -1, ["2026-02-28", "0001-01-01", "10000-01-01", "0044-03-15 BC", "infinity", "-infinity"]),
        (
            1114,
            -1,
            ["2026-11-22 01:02:03", "1969-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999", "infinity", "4713-01-01 00:00:00 BC"],
        ),
        (1184, -1, ["2026-11-22 01:02:03.1+05:30", "2026-01-01 00:00:00-00:17:30", "-infinity", "0001-01-01 00:00:00+15"]),
        (1700, (7 << 16 | 2) + 4, ["-12345.67", "0.00", "NaN", "99999.99", "123456.00", "-0.01"]),
        (1700, (38 << 16 | 18) + 4, ["12345678901234567890.123456789012345678", "-1.000000000000000000", "Infinity"]),
        (1700, (50 << 16 | 2) + 4, ["123456789012345678901234567890123456789012345678.99"]),
        (1700, -1, ["NaN", "1e5", "0.0000000000000000000000001"]),
        (1007, -1, ["{1,NULL,3}", "{}", "{{1,2},{3,4}}"]),
        (17, -1, ["\\x", "\\x00ff"]),
        (1083, -1, ["24:00:00"]),
        (2950, -1, ["6ba7b810-9dad-11d1-80b4-00c04fd430c8"]),
    ],
    ids=[
        "int2", "int4", "int8", "oid", "bool", "float8", "date", "timestamp", "timestamptz", "numeric(7,2)", "numeric(38,18)",
        "numeric(50,2)", "numeric", "int4[]", "bytea", "time", "uuid",
    ],
)  # fmt: skip
def test_limits(oid, modifier, texts):
    """No value is lost: it is in its column, or its text is in ``_unrepresentable``."""
    agrees(oid, [*texts, None, *texts], modifier)


@pytest.mark.parametrize(
    ("oid", "raw"),
    [(16, b"yes"), (16, b"\xff"), (17, b"\\x0"), (17, b"\\xgg"), (701, b"1.2.3"), (701, b"\xff"), (1082, b"\xff"),
     (1000, b"{\xff}"), (1001, rb'{"\\x0"}'), (1007, b"{{1,2},3}"), (1007, b"{1,{2}}"), (1007, b"{{}}"), (1007, b"[1:1]")],
)  # fmt: skip
def test_malformed_values(oid, raw):
    """The text of a malformed value is kept beside the row, and its column has null."""
    found = inserts(oid, None, raw)

    assert found["v"].null_count == 2
    assert found["_unrepresentable"].to_pylist() == [None, [("v", raw.decode("utf-8", "backslashreplace"))]]
    types = Types()
    kept = converter(oid, types, arrow_type(oid, -1, types), null=True)([raw])
    assert kept.to_pylist() in ([None], [[None]])


@given(
    st.lists(
        st.builds(str.__add__, st.sampled_from(["", "-"]), st.text("0123456789", min_size=1, max_size=20)),
        max_size=5,
    )
)
def test_integers(texts):
    """Integers are read as Arrow reads them."""
    for oid in (21, 23, 20):
        agrees(oid, texts or ["0"])


@given(st.lists(st.datetimes().map(lambda moment: moment.isoformat(" ")), min_size=1, max_size=5))
def test_timestamps(texts):
    """Timestamps and dates are read as Arrow reads them."""
    agrees(1114, texts)
    agrees(1082, [text[:10] for text in texts])
    agrees(1184, [f"{text}+03" for text in texts])


COLUMNS = [column("id", 23, key=True), column("a"), column("b")]


def operations(found: pa.RecordBatch):
    names = [
        "_op",
        "_ordinal",
        *[name for name in found.schema.names if not name.startswith("_")],
        "_unchanged",
    ]
    return [tuple(row[name] for name in names) for row in found.to_pylist()]


def test_operations():
    """A key change is a delete and an insert; deletes have the key; unchanged values are named."""
    found = batch(
        COLUMNS,
        build.insert(relation=OID, new=["1", "x", "y"]),
        build.update(relation=OID, new=["1", UNCHANGED, "z"]),
        build.update(relation=OID, new=["1", "x", UNCHANGED], old=["1", "not key", None]),
        build.update(relation=OID, new=["2", UNCHANGED, None], old=["1", None, None]),
        build.update(relation=OID, new=[UNCHANGED, "x", "y"], old=["2", None, None]),
        build.delete(relation=OID, old=["2", "not key", None]),
        build.delete(relation=OID, old=["3", "x", None], old_kind="O"),
    )
    assert operations(found) == [
        ("insert", 0, 1, "x", "y", []),
        ("update", 1, 1, None, "z", ["a"]),
        ("update", 2, 1, "x", None, ["b"]),
        ("delete", 3, 1, None, None, []),
        ("insert", 3, 2, None, None, ["a"]),
        ("update", 4, 2, "x", "y", []),
        ("delete", 5, 2, None, None, []),
        ("delete", 6, 3, "x", None, []),
    ]
    assert "_before" not in found.schema.names


def test_rows_of_a_snapshot():
    """The xid 0 makes a read of an insert."""
    found = batch(COLUMNS, build.insert(relation=OID, new=["1", "x", "y"]), xid=0)
    assert operations(found) == [("read", 0, 1, "x", "y", [])]
    assert found["_xid"].to_pylist() == [0]


def test_replica_identity_full():
    """The row before an update is kept, with what its types cannot hold; unchanged values come from it."""
    found = batch(
        [column("d", 1082), column("a")],
        build.insert(relation=OID, new=["2026-01-01", "x"]),
        build.update(relation=OID, new=["2026-01-02", UNCHANGED], old=["infinity", "x"], old_kind="O"),
        build.update(relation=OID, new=["2026-01-03", "z"], old=["2026-01-02", None], old_kind="O"),
        identity="f",
    )
    assert [row["a"] for row in found.to_pylist()] == ["x", "x", "z"]
    before = [row and (row["d"], row["a"]) for row in found["_before"].to_pylist()]
    assert before[:2] == [None, (None, "x")]
    assert (str(before[2][0]), before[2][1]) == ("2026-01-02", None)
    assert found["_unrepresentable"].to_pylist() == [None, [("_before.d", "infinity")], None]


def test_odd_names():
    """A column with the name of a metadata column is renamed, and columns have their attribute numbers."""
    found = batch(
        [column("_op", 23), column("_op_"), column("_ordinal")],
        build.insert(relation=OID, new=["1", "x", "y"]),
        attributes={"_op": Attribute(4)},
    )
    assert found.schema.names[:3] == ["_op__", "_op_", "_ordinal_"]
    assert [each.as_py() for each in (found["_op__"][0], found["_op"][0])] == [1, "insert"]
    assert found.schema.field(0).metadata == {b"PARQUET:field_id": b"4"}


def test_a_table_without_columns():
    """Rows without columns are counted."""
    found = batch([], build.insert(relation=OID, new=[]), build.insert(relation=OID, new=[]), identity="f")
    assert found["_op"].to_pylist() == ["insert", "insert"]


def test_text_that_is_not_utf8():
    """Bytes of a SQL_ASCII database are escaped in ``_unrepresentable``."""
    found = inserts(25, b"\xff", Binary(b"\xfe"), "ü")
    assert found["v"].to_pylist() == [None, None, "ü"]
    assert found["_unrepresentable"].to_pylist() == [[("v", "\\xff")], [("v", "\\xfe")], None]


@pytest.mark.parametrize(
    ("oid", "raw", "text"),
    [
        (114, b'"\xff"', '"\\xff"'),
        (3802, b'\1"\xff"', '"\\xff"'),
        (1009, struct.pack(">6i", 1, 0, 25, 1, 1, 1) + b"\xff", "{\\xff}"),
        (199, struct.pack(">6i", 1, 0, 114, 1, 1, 3) + b'"\xff"', r'{"\"\xff\""}'),
    ],
    ids=["json", "jsonb", "text[]", "json[]"],
)
def test_text_inside_of_values_that_is_not_utf8(oid, raw, text):
    """A document or an array in binary format with such text is kept beside the row; no column has bytes that are not UTF-8."""
    found = inserts(oid, Binary(raw), None)

    assert found["v"].to_pylist() == [None, None]
    assert found["_unrepresentable"].to_pylist() == [[("v", text)], None]


def test_the_scanner_leaves_other_messages_to_its_caller():
    """It stops at a table it does not know, and goes on after it was told; ordinals count every change."""
    scanner = BlockScanner(
        frames(
            build.insert(relation=OID, new=["1", "x", "y"]),
            build.truncate(relations=[OID]),
            build.begin(final_lsn=200, xid=6, commit_time=3),
            build.insert(relation=OID, new=["2", "x", "y"]),
            build.commit(commit_lsn=200, end_lsn=300),
        ),
        5, 100, 9, 41,
    )  # fmt: skip
    rows = CollectedRows(
        Layout(Decoder().decode(build.relation(oid=OID, name="t", columns=COLUMNS)), Types())
    )
    collector = rows.collector()

    assert scanner.scan({}) == ord("I")
    scanner.retry()
    assert scanner.scan({OID: collector}) == ord("T")
    assert (scanner.message[:1], scanner.ordinal, scanner.xid, scanner.time) == (b"T", 42, 5, 9)
    assert scanner.scan({OID: collector}) == 0

    found = rows.batch(collector)
    assert found["id"].to_pylist() == [1, 2]
    assert found["_commit_lsn"].to_pylist() == [100, 200]
    assert found["_ordinal"].to_pylist() == [41, 0]


@pytest.mark.parametrize(
    "block",
    [
        b"\0\0\0\x09I",
        b"\0\0",
        frames(b"I\0\0\0"),
        frames(build.insert(relation=OID, new=["1"])),
        frames(build.insert(relation=OID, new=["1", "x", "y"]) + b"x"),
        frames(build.insert(relation=OID, new=["1", "x", "y"])[:-1]),
        frames(build.update(relation=OID, new=["1", "x", "y"], old=["1", None, None])[:15]),
        frames(b"B"),
    ],
)
def test_damaged_blocks(block):
    """Nothing is read beyond a message's end."""
    rows = CollectedRows(
        Layout(Decoder().decode(build.relation(oid=OID, name="t", columns=COLUMNS)), Types())
    )
    with pytest.raises(ProtocolError):
        BlockScanner(block, 5, 100, 9, 0).scan({OID: rows.collector()})


def test_an_lsn_after_any_wal():
    """A commit LSN that no WAL has is refused: PostgreSQL's LSNs are numbers of 64 bits, Arrow's have a sign."""
    scanner = BlockScanner(frames(build.begin(final_lsn=2**63, xid=5)), 0, 0, 0, 0)
    with pytest.raises(ProtocolError, match="after any WAL"):
        scanner.scan({})
