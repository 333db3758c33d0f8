"""Field numbers in Protobuf: a column keeps its number, and no other column gets it."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from aiorepl_schema_registry.numbers import Numbers, numbers_of
from aiorepl_schema_registry.proto_files import file_of
from aiorepl_schema_registry.proto_text import printed
from aiorepl_schema_registry.shapes import Field, FieldType, Shape


def shape(*columns, record="Envelope", package="a.public.t"):
    return Shape(package, record, tuple(Field(column, column, FieldType("string")) for column in columns))


def next_version(each, texts):
    """Return the text of the schema of a shape, after the texts of earlier versions."""
    known = Numbers()
    for text in reversed(texts):
        if (numbers := numbers_of(text, each)) is not None:
            known.add_earlier(numbers)
    return printed(file_of(each, known.for_names(field.name for field in each.fields)))


def evolve(*shapes):
    """Return the numbers of each shape in turn."""
    texts = []
    for each in shapes:
        texts.append(next_version(each, texts))
    return [numbers_of(text, each) for each, text in zip(shapes, texts, strict=True)]


def test_a_dropped_column_keeps_its_number():
    """A new column never gets the number of a dropped one, which is reserved."""
    _, dropped, added, back = evolve(
        shape("id", "b", "c"), shape("id", "b"), shape("id", "b", "d"), shape("c", "d")
    )
    assert dropped == Numbers({"id": 1, "b": 2}, {3}, {"c"})
    assert added == Numbers({"id": 1, "b": 2, "d": 4}, {3}, {"c"})
    assert back == Numbers({"c": 3, "d": 4}, {1, 2}, {"id", "b"})


def test_numbers_of_deleted_versions():
    """A number that is only reserved stays unused, after the version that used it was deleted from the registry."""
    texts = [next_version(shape("id", "b"), [])]
    texts = [next_version(shape("id"), texts)]
    assert numbers_of(next_version(shape("id", "c"), texts), shape()) == Numbers(
        {"id": 1, "c": 3}, {2}, {"b"}
    )


def test_reserved_numbers():
    """The numbers that Protobuf reserves are left out."""
    (numbers,) = evolve(shape(*(f"c{number}" for number in range(19_001))))
    assert numbers.fields["c18998"] == 18_999
    assert numbers.fields["c18999"] == 20_000


def test_other_schemas_of_the_subject():
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
          reserved 40, 50 to 51;
          reserved "old";
        }
        message Key { string b = 9; }
    """
    texts = [text, *(next_version(each, []) for each in (other, key))]
    found = numbers_of(next_version(shape("a", "b"), texts), shape())
    # The field of the message within the row does no harm.
    assert found == Numbers({"a": 7, "b": 52}, {3, 40, 50, 51}, {"in", "old"})


def test_json_names_that_protoc_compares():
    """Columns whose names JSON would spell alike do not stop protoc."""
    described = file_of(shape("a_1", "a1"), Numbers({"a_1": 1, "a1": 2}))
    assert "option deprecated_legacy_json_field_conflicts = true;" in printed(described)
    assert "deprecated" not in printed(file_of(shape("a_1", "b"), Numbers({"a_1": 1, "b": 2})))
    assert isinstance(described, FileDescriptorProto)
