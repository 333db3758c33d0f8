"""Dropped and masked columns: with each replica identity, as text and binary, down to the bytes."""

from __future__ import annotations

import hashlib
import hmac

import orjson
import pytest

from aiorepl.formats.native import NativeFormat
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Binary, column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.selection import Selection
from aiorepl.values import Types

INT4, NUMERIC = 23, 1700
DROP = Selection(drop=("*.*.note",))
MASK = Selection(mask=("*.*.note",), secret="s3cr3t")


def masked(text: str, secret: str = "s3cr3t") -> str:
    """Return the mask of this text."""
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


A, B = masked("a"), masked("b")


def selected(
    selection: Selection, payload: bytes, *columns, identity: str = "d", binary: bool = False
) -> RowChange:
    """Return one change of a table with these columns, by default ``(id, note, more)``, after the selection."""
    if not columns:
        full = identity == "f"
        key = column("id", INT4, key=identity in "dif")
        columns = (key, column("note", key=full), column("more", key=full))
    decoder, assembler = Decoder(), Assembler(Types(), binary=binary)
    payloads = [
        build.begin(final_lsn=0x10, xid=3),
        build.relation(oid=7, name="orders", replica_identity=identity, columns=columns),
        payload,
        build.commit(commit_lsn=0x10, end_lsn=0x20),
    ]
    (part,) = assembler.feed([decoder.decode(payload) for payload in payloads])
    (change,) = StreamFilter(selection).apply(part).changes
    return change


INSERT = build.insert(relation=7, new=["1", "a", "x"])
NULL = build.insert(relation=7, new=["1", None, "x"])
UPDATE = build.update(relation=7, new=["1", "b", None])
TOAST = build.update(relation=7, new=["1", UNCHANGED, UNCHANGED])
REKEY = build.update(relation=7, new=["2", "b", "x"], old=["1", None, None], old_kind="K")
FULL = build.update(relation=7, new=["2", "b", "x"], old=["1", "a", "x"], old_kind="O")
FULL_TOAST = build.update(relation=7, new=["2", UNCHANGED, UNCHANGED], old=["1", "a", "x"], old_kind="O")
DELETE = build.delete(relation=7, old=["1", None, None])
DELETE_FULL = build.delete(relation=7, old=["1", "a", "x"], old_kind="O")


@pytest.mark.parametrize(
    ("selection", "identity", "payload", "key", "old", "new", "unchanged"),
    [
        (DROP, "d", INSERT, {"id": 1}, None, {"id": 1, "more": "x"}, ()),
        (DROP, "d", UPDATE, {"id": 1}, None, {"id": 1, "more": None}, ()),
        (DROP, "i", TOAST, {"id": 1}, None, {"id": 1, "more": UNCHANGED}, ("more",)),
        (DROP, "d", REKEY, {"id": 1}, {"id": 1}, {"id": 2, "more": "x"}, ()),
        (DROP, "d", DELETE, {"id": 1}, {"id": 1}, None, ()),
        (DROP, "n", INSERT, None, None, {"id": 1, "more": "x"}, ()),
        (DROP, "f", FULL, None, {"id": 1, "more": "x"}, {"id": 2, "more": "x"}, ()),
        (DROP, "f", FULL_TOAST, None, {"id": 1, "more": "x"}, {"id": 2, "more": "x"}, ("more",)),
        (DROP, "f", DELETE_FULL, None, {"id": 1, "more": "x"}, None, ()),
        (MASK, "d", INSERT, {"id": 1}, None, {"id": 1, "note": A, "more": "x"}, ()),
        (MASK, "d", NULL, {"id": 1}, None, {"id": 1, "note": None, "more": "x"}, ()),
        (
            MASK,
            "d",
            TOAST,
            {"id": 1},
            None,
            {"id": 1, "note": UNCHANGED, "more": UNCHANGED},
            ("note", "more"),
        ),
        (MASK, "d", REKEY, {"id": 1}, {"id": 1}, {"id": 2, "note": B, "more": "x"}, ()),
        (MASK, "d", DELETE, {"id": 1}, {"id": 1}, None, ()),
        (MASK, "f", FULL, None, {"id": 1, "note": A, "more": "x"}, {"id": 2, "note": B, "more": "x"}, ()),
        (
            MASK,
            "f",
            FULL_TOAST,
            None,
            {"id": 1, "note": A, "more": "x"},
            {"id": 2, "note": A, "more": "x"},
            ("note", "more"),
        ),
        (MASK, "f", DELETE_FULL, None, {"id": 1, "note": A, "more": "x"}, None, ()),
    ],
)
def test_by_replica_identity(selection, identity, payload, key, old, new, unchanged):
    """Key, old and new row lack the dropped column and have the mask of the masked one; NULL and UNCHANGED are kept."""
    change = selected(selection, payload, identity=identity)

    assert (key, old, new, unchanged) == (change.key, change.old, change.new, change.unchanged)


def fields(message):
    """Return all fields of a row's message except its relation, which is compared by identity."""
    return (
        type(message),
        message.old_kind,
        message.old_at,
        message.new_at,
        message.payload,
        message.xid,
    )


@pytest.mark.parametrize("payload", [INSERT, TOAST, REKEY, FULL_TOAST, DELETE, DELETE_FULL])
@pytest.mark.parametrize("selection", [DROP, MASK], ids=["drop", "mask"])
def test_bytes(selection, payload):
    """Relation and message agree with their bytes when these are decoded again."""
    change = selected(selection, payload, identity="f" if payload in (FULL_TOAST, DELETE_FULL) else "d")

    decoder = Decoder()
    relation, message = decoder.decode(change.relation.payload), decoder.decode(change.message.payload)
    assert change.relation.columns == relation.columns
    assert (change.relation.oid, "public", "orders", change.relation.replica_identity) == (
        relation.oid,
        relation.namespace,
        relation.name,
        relation.replica_identity,
    )
    assert fields(message) == fields(change.message)


def test_bytes_of_a_stream():
    """A change from a stream block keeps its subtransaction's xid."""
    decoder, assembler = Decoder(Streaming.ON), Assembler(Types())
    start = build.stream_start(xid=3, first_segment=True)
    columns = [column("id", INT4, key=True), column("note")]
    block = [
        start,
        build.relation(oid=7, name="orders", columns=columns, xid=4),
        build.update(relation=7, new=["2", "b"], old=["1", None], old_kind="K", xid=4),
        build.stream_stop(),
        build.stream_commit(xid=3, commit_lsn=1, end_lsn=2),
    ]
    (part,) = assembler.feed([decoder.decode(payload) for payload in block])

    (change,) = StreamFilter(MASK).apply(part).changes

    again = Decoder(Streaming.ON)
    again.decode(start)
    relation, message = again.decode(change.relation.payload), again.decode(change.message.payload)
    assert (4, 4) == (relation.xid, message.xid)
    assert fields(message) == fields(change.message)
    assert ({"id": 1}, {"id": 2, "note": B}) == (change.key, change.new)


def test_derived_relation():
    """Masked columns are text without a length; other columns keep their types and key flags."""
    columns = (
        column("id", INT4, key=True),
        column("email", 1043, type_modifier=104, key=True),
        column("price", NUMERIC, type_modifier=655366),
        column("gone"),
    )
    payload = build.insert(relation=7, new=["1", "a", "1.50", "x"])

    change = selected(Selection(drop=("*.*.gone",), mask=("*.*.email",), secret="s"), payload, *columns)

    assert (columns[0], column("email", key=True, type_modifier=-6), columns[2]) == change.relation.columns
    assert {"id": 1, "email": masked("a", "s")} == change.key


def test_named_types():
    """The relation keeps the Type messages of the remaining columns only."""
    stream = Stream()
    stream.type_(60001, "mood")
    stream.type_(60002, "shade")
    table = stream.table("orders", column("id", INT4, key=True), column("mood", 60001), column("note", 60002))
    stream.transaction(table.insert("1", "glad", "dark"))
    (part,) = stream.slices()

    for selection in (DROP, MASK):
        (change,) = StreamFilter(selection).apply(part).changes
        assert ["mood"] == [named.name for named in change.relation.types]


@pytest.mark.parametrize("selection", [DROP, MASK], ids=["drop", "mask"])
def test_one_layout_a_relation(selection):
    """Changes of one relation share a derived relation; a new description gets a new one."""
    stream = Stream()
    table = stream.table("orders", column("id", INT4, key=True), column("note"))
    stream.transaction(table.insert("1", "a"), table.insert("2", "a"))
    stream.transaction(table.update("2", "b"))
    table = stream.table("orders", column("id", INT4, key=True), column("note", 1043), replaces=table)
    stream.transaction(table.insert("3", "a"))

    stream_filter = StreamFilter(selection)
    changes = [change for part in stream.slices() for change in stream_filter.apply(part).changes]

    assert 1 == len({id(change.layout) for change in changes[:3]})
    assert changes[2].layout is not changes[3].layout
    assert [1, 2, 2, 3] == [change.new["id"] for change in changes]


def test_binary_old_rows():
    """Unchanged columns in a binary stream are filled from the old row, each decoded in its own format."""
    one = Binary(b"\0\0\0\1")
    payload = build.update(
        relation=7, old=["7", Binary(b"a"), Binary(b"x")], old_kind="O", new=[one, UNCHANGED, UNCHANGED]
    )

    change = selected(MASK, payload, identity="f", binary=True)

    assert ({"id": 7, "note": A, "more": "x"}, {"id": 1, "note": A, "more": "x"}) == (change.old, change.new)
    assert (b"ttb", b"btb") == (change.old_kinds, change.new_kinds)


KEYS = (column("tenant", INT4, key=True), column("id", INT4, key=True), column("note"))


@pytest.mark.parametrize(
    ("drop", "key"), [(("*.*.tenant",), {"id": 2}), (("*.*.tenant", "*.*.id"), None), (("*.*.*",), None)]
)
@pytest.mark.parametrize(
    "payload",
    [
        build.insert(relation=7, new=["1", "2", "a"]),
        build.update(relation=7, new=["1", "2", UNCHANGED]),
        build.update(relation=7, new=["4", "5", "a"], old=["1", "2", None], old_kind="K"),
        build.delete(relation=7, old=["1", "2", None]),
    ],
    ids=["insert", "update", "rekey", "delete"],
)
def test_a_key_without_its_columns(payload, drop, key):
    """A key without a dropped column has the rest; without all of them it is None, and the old row is empty."""
    change = selected(Selection(drop=drop), payload, *KEYS)

    event = orjson.loads(NativeFormat().event(change))
    assert (key, key) == (change.key, event["key"])
    if change.old is not None:
        assert (key or {}, key or {}) == (change.old, event["old"])


def test_no_column_left():
    """A row whose columns are all dropped is an empty row, and still an event."""
    change = selected(Selection(drop=("*.*.*",)), INSERT)

    assert {} == change.new
    assert b'"key":null,"new":{},"old":null' in NativeFormat().event(change)


def test_a_truncated_table_as_its_rows():
    """A TRUNCATE has the same derived relation as the rows."""
    stream = Stream()
    table = stream.table("orders", column("id", INT4, key=True), column("note"))
    stream.transaction(table.insert("1", "a"), table.truncate())
    (part,) = stream.slices()

    insert, truncate = StreamFilter(DROP).apply(part).changes

    assert (insert.relation,) == truncate.relations
    assert ("id",) == truncate.relations[0].names
