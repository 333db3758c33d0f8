"""Field numbers in Protobuf: a column keeps its number, and no other column gets it."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from aiorepl_schema_registry.numbers import numbered
from aiorepl_schema_registry.proto_files import file_of
from aiorepl_schema_registry.proto_text import printed
from aiorepl_schema_registry.shapes import Field, FieldType, Shape


def shape(*columns, record="Envelope", package="a.public.t"):
    return Shape(package, record, tuple(Field(column, column, FieldType("string")) for column in columns))


async def earlier(*texts):
    for text in reversed(texts):
        yield text


async def evolve(*shapes):
    """Return the numbers of each shape in turn."""
    texts, made = [], []
    for each in shapes:
        numbers = await numbered(each, earlier(*texts))
        texts.append(printed(file_of(each, numbers)))
        made.append(numbers)
    return made


async def test_a_dropped_column_keeps_its_number():
    """A new column never gets the number of a dropped one, and an old version finds its numbers again."""
    first = shape("id", "b", "c")
    *_, dropped, added, again, back = await evolve(first, shape("id", "b"), shape("id", "b", "d"), first, shape("c", "d"))
    assert dropped == {"id": 1, "b": 2}
    assert added == {"id": 1, "b": 2, "d": 4}
    assert again == {"id": 1, "b": 2, "c": 3}
    assert back == {"c": 3, "d": 4}


async def test_reserved_numbers():
    """The numbers that Protobuf reserves are left out."""
    (numbers,) = await evolve(shape(*(f"c{number}" for number in range(19_001))))
    assert numbers["c18998"] == 18_999
    assert numbers["c18999"] == 20_000


async def test_other_schemas_of_the_subject():
    """Keys, rows of other tables, strings and comments have no numbers of this row."""
    other = shape("z", "a", package="a.public.u")
    key = shape("y", "a", record="Key")
    text = """
        syntax = "proto3"; // message Value { string a = 8; }
        package a.public.t; /* message Value { string a = 9; } */
        message Envelope { Value after = 2; }
        message Value {
          message Inner { string in = 3; }
          optional string a = 7 [json_name = "} b = 5;"];
          reserved 40;
        }
        message Key { string b = 9; }
    """
    texts = [printed(file_of(each, await numbered(each, earlier()))) for each in (other, key)]
    assert await numbered(shape("a", "b"), earlier(text, *texts)) == {"a": 7, "b": 8}


def test_json_names_that_protoc_compares():
    """Columns whose names JSON would spell alike do not stop protoc."""
    described = file_of(shape("a_1", "a1"), {"a_1": 1, "a1": 2})
    assert "option deprecated_legacy_json_field_conflicts = true;" in printed(described)
    assert "deprecated" not in printed(file_of(shape("a_1", "b"), {"a_1": 1, "b": 2}))
    assert isinstance(described, FileDescriptorProto)
