"""Debezium's envelope: what each change becomes, its key, and the metadata of transactions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aiorepl import LSN, UNCHANGED, ConfigurationError
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl_sinks.formats.debezium import DebeziumFormat

INT4, BYTEA, TEXT_ARRAY, BYTEA_ARRAY, INT4_ARRAY, UUID_ARRAY = 23, 17, 1009, 1001, 1007, 2951
PLACEHOLDER = "__debezium_unavailable_value"


def events(stream, **options):
    """The events of what was written down."""
    return [json.loads(line) for line in DebeziumFormat(**options).events(stream.slices())]


def test_an_envelope(stream, items):
    """Every field that current Debezium has, and no other."""
    end = stream.transaction(items.insert("1", "a"), origin="elsewhere")
    (event,) = events(stream, name="shop", database="orders")
    version = event["source"].pop("version")
    times = {
        "ts_ms": 1746684801000,
        "ts_us": 1746684801000000,
        "ts_ns": 1746684801000000000,
    }
    assert version
    assert {
        "before": None,
        "after": {"id": 1, "note": "a"},
        "source": {
            "connector": "postgresql",
            "name": "shop",
            "snapshot": "false",
            "db": "orders",
            "sequence": f'["{end - 0x30}","0"]',
            "schema": "public",
            "table": "items",
            "txId": 701,
            "lsn": end - 0x30,
            "xmin": None,
            "origin": "elsewhere",
            "origin_lsn": None,
            **times,
        },
        "transaction": None,
        "op": "c",
        **times,
    } == event


def rows(stream, **options):
    """Operation, row before and row after."""
    return [(event["op"], event["before"], event["after"]) for event in events(stream, **options)]


def test_rows(stream, items):
    """Before is what the server sent of the old row."""
    stream.transaction(items.update("1", "b"), items.delete("1", None))
    assert [("u", None, {"id": 1, "note": "b"}), ("d", {"id": 1}, None)] == rows(stream)


def test_whole_old_rows(stream):
    """Under FULL ``before`` is the whole old row, and unsent values are taken from it."""
    whole = stream.table(
        "whole", column("id", INT4, key=True), column("note", key=True), replica_identity="f"
    )
    stream.transaction(whole.update("2", UNCHANGED, old=("1", "large")), whole.delete("2", None, full=True))
    assert [
        ("u", {"id": 1, "note": "large"}, {"id": 2, "note": "large"}),
        ("d", {"id": 2, "note": None}, None),
    ] == rows(stream)


def test_a_key_that_changes(stream, items):
    """A delete of the old and a create of the new."""
    stream.transaction(items.update("2", "a", key=("1", None)))
    assert [("d", {"id": 1}, None), ("c", None, {"id": 2, "note": "a"})] == rows(stream)


def test_a_large_key_that_stays(stream):
    """The server sends the old key also where it is TOASTed: that is no other key."""
    table = stream.table("t", column("name", key=True), column("note"))
    stream.transaction(
        table.update(UNCHANGED, "a", key=("long", None)), table.update("long", "b", key=("long", None))
    )
    assert ["u", "u"] == [operation for operation, _, _ in rows(stream)]


@pytest.mark.parametrize(
    ("oid", "value"),
    [
        (25, PLACEHOLDER),
        (114, PLACEHOLDER),
        (1700, PLACEHOLDER),
        (BYTEA, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        (TEXT_ARRAY, [PLACEHOLDER]),
        (BYTEA_ARRAY, ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
        (INT4_ARRAY, list(PLACEHOLDER.encode())),
        # Java's UUID.nameUUIDFromBytes of the placeholder.
        (UUID_ARRAY, ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    ],
)
def test_placeholders(stream, oid, value):
    """A value that was not sent, in the form of its type."""
    table = stream.table("t", column("id", INT4, key=True), column("v", oid))
    stream.transaction(table.update("1", UNCHANGED))
    assert [("u", None, {"id": 1, "v": value})] == rows(stream)


def test_truncates(stream, items):
    """An event for each table."""
    others = stream.table("others", column("id"), namespace="shop")
    stream.transaction(build.truncate(relations=[others.oid, items.oid], cascade=True))
    found = events(stream)
    assert [("t", None, None)] * 2 == [(event["op"], event["before"], event["after"]) for event in found]
    assert [("shop", "others"), ("public", "items")] == [
        (event["source"]["schema"], event["source"]["table"]) for event in found
    ]


def test_messages(stream, items):
    """Prefix and content in base64; one between transactions has no transaction and no time."""
    stream.transaction(build.message(transactional=True, lsn=1, prefix="p", content=b"\0\xff"))
    lsn = stream.message("alone")
    inside, alone = events(stream, boundaries=False)
    assert ("m", {"prefix": "p", "content": "AP8="}) == (inside["op"], inside["message"])
    assert ("", "", 701) == tuple(inside["source"][name] for name in ("schema", "table", "txId"))
    assert {"prefix": "alone", "content": ""} == alone["message"]
    assert (lsn, None, None) == tuple(alone["source"][name] for name in ("lsn", "txId", "ts_ms"))


def test_rows_of_a_snapshot(stream, items):
    """Rows of a snapshot are read events at the LSN of the snapshot, with identities of their own and no xid."""
    end = stream.snapshot(items, items.insert("1", "a"))
    stream.chunks[end - 1] = replace(stream.chunks[end - 1], snapshot_lsn=LSN(end))
    (initial,) = events(stream)
    stream.snapshot(items, items.insert("1", "a"))
    stream.transaction(items.insert("2", "a"))
    incremental, created = events(stream)

    assert ("r", "true", None, end, f'["{end - 1}","0"]') == described(initial)
    assert ("r", "incremental", None, end) == described(incremental)[:4]
    assert ("c", "false") == described(created)[:2]


def described(event):
    """The operation, and what the source says about it."""
    return event["op"], *(event["source"][name] for name in ("snapshot", "txId", "lsn", "sequence"))


def test_keys(stream, items):
    """The key has the columns of the replica identity; without one, and for a truncate, there is none."""
    loose = stream.table("loose", column("id", INT4), replica_identity="n")
    stream.transaction(
        items.insert("1", "a"),
        items.update("2", "a", key=("1", None)),
        items.delete("2", None),
        items.truncate(),
        loose.insert("1"),
        build.message(transactional=True, lsn=1, prefix="p"),
    )
    form = DebeziumFormat()
    changes = [each for part in stream.slices() for change in part.changes for each in form.split(change)]
    assert [b'{"id":1}', b'{"id":1}', b'{"id":2}', b'{"id":2}', None, None, b'{"prefix":"p"}'] == [
        form.key(change) for change in changes
    ]


def test_a_truncate_that_was_not_split(stream, items):
    """A truncate of several tables is rejected, because an event names one table."""
    others = stream.table("others", column("id"))
    stream.transaction(build.truncate(relations=[others.oid, items.oid]))
    (part,) = stream.slices()
    with pytest.raises(ValueError, match="split"):
        DebeziumFormat().event(part.changes[0])


def transactions(form, slices):
    """Return the transaction block of each event, or the metadata without its time."""
    for line in form.events(slices):
        event = json.loads(line)
        if "status" in event:
            assert event.pop("ts_ms") == 1746684801000
            yield event
        else:
            yield tuple(event["transaction"].values())


@pytest.mark.parametrize("at_once", [None, 1, 2])
def test_transaction_metadata(stream, items, at_once):
    """Its events are counted, in all and of each table, in however many slices it comes."""
    others = stream.table("others", column("id"))
    end = stream.transaction(
        items.insert("1", "a"),
        others.insert("1"),
        items.update("2", "a", key=("1", None)),
        build.message(transactional=True, lsn=1, prefix="p"),
    )
    identity = f"701:{end - 0x30}"
    counted = {"public.items": 3, "public.others": 1, "LOGICAL_DECODING_MESSAGE": 1}
    assert [
        {"status": "BEGIN", "id": identity, "event_count": None, "data_collections": None},
        (identity, 1, 1),
        (identity, 2, 1),
        (identity, 3, 2),
        (identity, 4, 3),
        (identity, 5, 1),
        {
            "status": "END",
            "id": identity,
            "event_count": 5,
            "data_collections": [
                {"data_collection": name, "event_count": count} for name, count in counted.items()
            ],
        },
    ] == list(transactions(DebeziumFormat(boundaries=True), stream.slices(at_once)))


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_counts_when_a_batch_is_written_again(stream, items, cut):
    """After an error a batch comes again, though it begins in the middle of a transaction."""
    stream.transaction(*(items.insert(str(number), "a") for number in range(4)))
    slices = stream.slices(1)
    once = list(transactions(DebeziumFormat(boundaries=True), slices))
    form = DebeziumFormat(boundaries=True)
    first = list(transactions(form, slices[:cut]))
    again = [list(transactions(form, slices[cut:])) for _ in range(3)]
    assert [once[len(first) :]] * 3 == again
    assert once[: len(first)] == first


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_counts_go_on_after_a_reconnect(stream, items, at_once):
    """The counts continue if the rest of a transaction arrives after a reconnect."""
    stream.transaction(*(items.insert(str(number), "a") for number in range(4)))
    slices, others = stream.slices(at_once), stream.again(at_once)
    once = list(transactions(DebeziumFormat(boundaries=True), slices))
    assert once == list(transactions(DebeziumFormat(boundaries=True), [slices[0], *others[1:]]))
    form = DebeziumFormat(boundaries=True)
    apart = [told for part in (slices[0], *others[1:]) for told in transactions(form, [part])]
    assert once == apart


def test_no_metadata_unless_asked_for(stream, items):
    """There is no transaction metadata by default, as in Debezium."""
    stream.transaction(items.insert("1", "a"))
    assert [None] == [event["transaction"] for event in events(stream)]


def test_other_decimals_are_refused():
    """A form that does not exist."""
    with pytest.raises(ConfigurationError, match="must be string, double or precise"):
        DebeziumFormat(decimals="exact")
