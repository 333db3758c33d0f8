"""Consumers that know the registry and the bytes alone: Confluent's deserializers, and protoc for the schemas of Protobuf."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import fastavro
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc


class Readers:
    """Read events by what the registry has, as a program does that knows nothing of aiorepl."""

    def __init__(self, client):
        self.client = client
        self._avro = AvroDeserializer(self.client)
        self._plain = {}
        self._classes = {}

    def text(self, event):
        """Return the schema of an event, as the registry has it."""
        assert event[0] == 0
        return self.client.get_schema(int.from_bytes(event[1:5], "big")).schema_str

    def avro(self, event):
        return self._avro(event, None)

    def plain_avro(self, event):
        """Read without logical types: dates and times are numbers of any size."""
        text = self.text(event)
        if text not in self._plain:
            schema = json.loads(
                text, object_hook=lambda each: {k: v for k, v in each.items() if k != "logicalType"}
            )
            self._plain[text] = fastavro.parse_schema(schema, named_schemas={}), _columns(json.loads(text))
        schema, columns = self._plain[text]
        found = fastavro.schemaless_reader(io.BytesIO(event[5:]), schema)
        return found | {
            row: {columns[name]: value for name, value in found[row].items()}
            for row in ("before", "after")
            if found.get(row) is not None
        }

    def protobuf(self, event):
        return ProtobufDeserializer(self.message(event), {"use.deprecated.format": False})(event, None)

    def protobuf_fields(self, event):
        """Read Protobuf as a dictionary; NULL is ``None``."""
        return _fields(self.protobuf(event))

    def message(self, event):
        """Return the class of the first message, as protoc compiles it."""
        text = self.text(event)
        if text not in self._classes:
            pool = DescriptorPool()
            file = compiled(text)
            pool.Add(file)
            self._classes[text] = GetMessageClass(
                pool.FindMessageTypeByName(f"{file.package}.{file.message_type[0].name}")
            )
        return self._classes[text]


def _fields(message):
    return {field.json_name: _field(message, field) for field in type(message).DESCRIPTOR.fields}


def _field(message, field):
    value = getattr(message, field.name)
    if field.is_repeated:
        return list(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.message_type is None:
        return value
    if field.message_type.name.endswith("Array"):
        return [each.value if each.HasField("value") else None for each in value.elements]
    return _fields(value)


def _columns(schema):
    """Return the columns of a row by the names of fields."""
    for field in schema["fields"]:
        if field["name"] == "before":
            return {each["name"]: each.get("column", each["name"]) for each in field["type"][1]["fields"]}
    return {}


def compiled(text):
    """Return the file that protoc makes of the text of a schema."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file.proto").write_text(text)
        result = Path(folder) / "set"
        assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={result}", "file.proto"]) == 0
        return FileDescriptorSet.FromString(result.read_bytes()).file[0]
