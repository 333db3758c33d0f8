"""The native event of a schema change."""

from __future__ import annotations

import orjson
from jsonschema import Draft202012Validator

from aiorepl.formats import native_schema
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.schema_changes import SchemaTracker


def test_what_it_says():
    """The table as it is, what is different, and the identity of the row that shows it."""
    stream, tracker = Stream(), SchemaTracker()
    table = stream.table("t", column("id", 23, key=True), column("a"), column("b", 23))
    stream.transaction(table.insert("1", "x", "2"))
    table = stream.table(
        "u", column("id", 20, key=True), column("c"), column("b", 23), column("d", 16), replaces=table
    )
    stream.transaction(table.insert("1", "x", "2", "t"), table.insert("2", "x", "2", "t"))
    first, second = (
        [orjson.loads(event) for event in NativeFormat().events([tracker.announced(part)])]
        for part in stream.slices()
    )

    for event in (*first, *second):
        Draft202012Validator(native_schema()).validate(event)
    assert ["schema", "insert"] == [event["kind"] for event in first]
    assert (True, [], [], None) == tuple(first[0][name] for name in ("first", "added", "dropped", "was"))
    schema, insert, _ = second
    common = ("xid", "commit_lsn", "ordinal", "commit_time", "origin", "schema", "table")
    assert [insert[name] for name in common] == [schema.pop(name) for name in common]
    assert {
        "kind": "schema",
        "first": False,
        "columns": [
            {"name": "id", "type": "int8", "modifier": -1, "key": True},
            {"name": "c", "type": "text", "modifier": -1, "key": False},
            {"name": "b", "type": "int4", "modifier": -1, "key": False},
            {"name": "d", "type": "bool", "modifier": -1, "key": False},
        ],
        "replica_identity": "d",
        "added": ["c", "d"],
        "dropped": ["a"],
        "retyped": [{"name": "id", "from": "int4", "to": "int8"}],
        "renamed": [],
        "key": None,
        "was": {"schema": "public", "table": "t"},
    } == schema
