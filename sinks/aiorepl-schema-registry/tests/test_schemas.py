"""Schemas and subjects as the registry has them, and names of columns that are special in schemas."""

from __future__ import annotations

import json
import uuid

import pytest

from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl_schema_registry.avro import AvroFormat
from aiorepl_schema_registry.numbers import Numbers
from aiorepl_schema_registry.proto_files import file_of
from aiorepl_schema_registry.protobuf import ProtobufFormat
from aiorepl_schema_registry.shapes import Field, FieldType, Shape

FORMATS = [AvroFormat, ProtobufFormat]


@pytest.mark.parametrize("make", FORMATS)
async def test_subjects(make, registry_url, client, topic, written):
    """The subject is the topic, the record, or both."""
    space = f"n{uuid.uuid4().hex}"
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.transaction(table.insert("1"))
    slices = stream.slices()
    for subject in ("topic", "record", "topic_record"):
        await written(make(registry_url, subject=subject, namespace=space), slices, topic)
    expected = {
        *(f"{topic}-{part}" for part in ("key", "value")),
        *(
            f"{prefix}{space}.public.t.{record}"
            for prefix in ("", f"{topic}-")
            for record in ("Key", "Envelope")
        ),
    }
    assert {subject for subject in client.get_subjects() if topic in subject or space in subject} == expected


async def test_protoc_reads_what_was_written(registry_url, readers, topic, written):
    """Protoc makes of the registered text the description with which events are encoded."""
    names = (
        "id",
        "_id",
        "X_id",
        'a "b" \\ \n é',
        "[x]",
        "message",
        "self",
        "SerializeToString",
        "a_1",
        "a1",
        "Int64Array",
    )
    stream = Stream()
    table = stream.table(
        "t", *(column(name, 1016 if name == "Int64Array" else 20, key=name == "id") for name in names)
    )
    stream.transaction(table.insert(*(None for _ in names)))
    ((_, event),) = await written(ProtobufFormat(registry_url), stream.slices(), topic)
    described = readers.message(event).DESCRIPTOR.file
    long, array = FieldType("long"), FieldType("array", element=FieldType("long"))
    fields = tuple(
        Field(name, escaped, array if name == "Int64Array" else long)
        for name, escaped in zip(names, _names(described), strict=True)
    )
    expected = file_of(
        Shape("aiorepl.public.t", "Envelope", fields),
        Numbers({each.name: n for n, each in enumerate(fields, 1)}),
    )
    expected.name = described.name
    found = type(expected)()
    described.CopyToProto(found)
    assert found == expected
    assert [each.json_name for each in described.message_types_by_name["Value"].fields] == [
        "_x5B_x_x5D_" if name == "[x]" else name for name in names
    ]


@pytest.mark.parametrize("make", FORMATS)
async def test_names_of_methods(make, registry_url, readers, topic, written):
    """A column may have the name of a method or an argument of the libraries."""
    names = ("SerializeToString", "self", "name", "type", "DESCRIPTOR")
    stream = Stream()
    table = stream.table("t", *(column(name, 23, key=name == names[0]) for name in names))
    stream.transaction(table.insert("1", "2", "3", "4", "5"))
    ((key, event),) = await written(make(registry_url), stream.slices(), topic)
    read = readers.avro if make is AvroFormat else readers.protobuf_fields
    assert list(read(key).values()) == [1]
    assert list(read(event)["after"].values()) == [1, 2, 3, 4, 5]


async def test_avro_names(registry_url, readers, topic, written):
    """A column whose name Avro does not have is marked with its own name."""
    stream = Stream()
    table = stream.table("t", column("Id.1", 23, key=True))
    stream.transaction(table.insert("1"))
    ((key, _),) = await written(AvroFormat(registry_url), stream.slices(), topic)
    assert json.loads(readers.text(key))["fields"] == [
        {"name": "Id_x2E_1", "type": ["null", "int"], "default": None, "column": "Id.1"}
    ]


def _names(file):
    return [field.name for field in file.message_types_by_name["Value"].fields]
