"""Prints a Protobuf file as ``proto_files`` makes it, in the language of .proto files. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_F: Final = FieldDescriptorProto
_NAMES: Final[dict[Any, str]] = {
    _F.TYPE_BOOL: "bool",
    _F.TYPE_INT32: "int32",
    _F.TYPE_INT64: "int64",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_STRING: "string",
    _F.TYPE_BYTES: "bytes",
}


def printed(file: FileDescriptorProto) -> str:
    """Return the text of a file."""
    lines = [f'syntax = "{file.syntax}";', f"package {file.package};"]
    for message in file.message_type:
        lines += ["", *_message(message)]
    return "\n".join((*lines, ""))


def _message(message: DescriptorProto) -> Iterator[str]:
    yield f"message {message.name} {{"
    if message.options.deprecated_legacy_json_field_conflicts:
        yield "  option deprecated_legacy_json_field_conflicts = true;"
    if message.reserved_range:
        yield f"  reserved {', '.join(str(each.start) for each in message.reserved_range)};"
    if message.reserved_name:
        yield f"  reserved {', '.join(map(_quoted, message.reserved_name))};"
    for field in message.field:
        label = (
            "repeated " if field.label == _F.LABEL_REPEATED else "optional " if field.proto3_optional else ""
        )
        kind = field.type_name if field.type == _F.TYPE_MESSAGE else _NAMES[field.type]
        yield f"  {label}{kind} {field.name} = {field.number} [json_name = {_quoted(field.json_name)}];"
    yield "}"


def _quoted(text: str) -> str:
    """Return a string literal; characters that are not printable are escaped as UTF-8."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each.isprintable() else _octal(each) for each in escaped) + '"'


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode())
