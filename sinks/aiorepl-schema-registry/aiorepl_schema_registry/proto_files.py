"""Protobuf files of shapes, and their encoders. Pure.

Every column is ``optional``: NULL is an absent field. Times are numbers as in Avro, and numeric is text. An array is a message, because
repeated fields can neither be absent nor have elements that are NULL. A column's own name is its ``json_name``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from aiorepl_schema_registry.envelope import MESSAGE, SOURCE, TAIL
from aiorepl_schema_registry.numbers import Numbers
from aiorepl_schema_registry.shapes import FieldType, Shape

_F: Final = FieldDescriptorProto
_TYPES: Final[dict[str, Any]] = {
    "boolean": _F.TYPE_BOOL,
    "int": _F.TYPE_INT32,
    "long": _F.TYPE_INT64,
    "float": _F.TYPE_FLOAT,
    "double": _F.TYPE_DOUBLE,
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
    "date": _F.TYPE_INT32,
    "time": _F.TYPE_INT64,
    "timestamp": _F.TYPE_INT64,
    "local_timestamp": _F.TYPE_INT64,
    "uuid": _F.TYPE_STRING,
}
_ARRAYS: Final = {
    _F.TYPE_BOOL: "Bool",
    _F.TYPE_INT32: "Int32",
    _F.TYPE_INT64: "Int64",
    _F.TYPE_FLOAT: "Float",
    _F.TYPE_DOUBLE: "Double",
    _F.TYPE_STRING: "String",
    _F.TYPE_BYTES: "Bytes",
}


def file_of(shape: Shape, numbers: Numbers) -> FileDescriptorProto:
    """Return the description of the file that is registered. Its first message is the shape's record."""
    row = DescriptorProto(name="Key" if shape.record == "Key" else "Value")
    elements = set()
    for field in sorted(shape.fields, key=lambda each: numbers.fields[each.name]):
        if field.type.kind == "array":
            kind = _element(field.type)
            elements.add(kind)
            _add(
                row, field.name, numbers.fields[field.name], message=f".{shape.package}.{_ARRAYS[kind]}Array"
            )
        else:
            _add(row, field.name, numbers.fields[field.name], _TYPES[field.type.kind])
        row.field[-1].json_name = field.name if field.column.startswith("[") else field.column
    # protoc compares names as JSON spells them by default, too: a_1 and a1 are both a1.
    if len({_camel(field.name) for field in shape.fields}) < len(shape.fields):
        row.options.deprecated_legacy_json_field_conflicts = True
    for number in sorted(numbers.reserved):
        row.reserved_range.add(start=number, end=number + 1)
    row.reserved_name.extend(sorted(numbers.reserved_names))
    arrays = [message for kind in sorted(elements) for message in _array(shape.package, kind)]
    file = FileDescriptorProto(name=f"{shape.full_name}.proto", package=shape.package, syntax="proto3")
    file.message_type.extend([row, *arrays] if shape.record == "Key" else [*_event(shape, row), *arrays])
    for message in file.message_type:
        _add_presence(message)
    return file


def encoder(file: FileDescriptorProto, shape: Shape) -> Callable[[Mapping[str, Any]], bytes]:
    """Return a function that encodes the fields of an event or a key."""
    pool = DescriptorPool()
    pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName(shape.full_name))
    arrays = {field.name for field in shape.fields if field.type.kind == "array"}

    def wrapped(row: Mapping[str, Any]) -> Mapping[str, Any]:
        if not arrays:
            return row
        return {name: _elements(value) if name in arrays else value for name, value in row.items()}

    def encode(fields: Mapping[str, Any]) -> bytes:
        if shape.record == "Key":
            made = message(**wrapped(fields))
        else:
            rows = {
                name: wrapped(fields[name]) for name in ("before", "after") if fields.get(name) is not None
            }
            made = message(**{**fields, **rows})
        # Deterministic: the fields come in the order of their numbers, and there are no maps.
        # Called on the class, because a column may be called SerializeToString.
        encoded: bytes = message.SerializeToString(made, deterministic=True)
        return encoded

    return encode


def _elements(values: list[Any]) -> dict[str, Any]:
    return {"elements": [{} if value is None else {"value": value} for value in values]}


def _element(field: FieldType) -> Any:
    assert field.element is not None
    return _TYPES[field.element.kind]


def _event(shape: Shape, row: DescriptorProto) -> list[DescriptorProto]:
    source = DescriptorProto(name="Source")
    _fixed(source, SOURCE, 1)
    event = DescriptorProto(name=shape.record)
    if shape.record == "Message":
        content = DescriptorProto(name="Content")
        _fixed(content, MESSAGE, 1)
        _add(event, "message", 1, message=f".{shape.package}.Content")
        inner = [content]
    else:
        _add(event, "before", 1, message=f".{shape.package}.Value")
        _add(event, "after", 2, message=f".{shape.package}.Value")
        event.field.add(
            name="unchanged", number=3, type=_F.TYPE_STRING, label=_F.LABEL_REPEATED, json_name="unchanged"
        )
        inner = [row]
    _add(event, "source", 4, message=f".{shape.package}.Source")
    _fixed(event, TAIL, 5)
    return [event, *inner, source]


def _fixed(message: DescriptorProto, fields: Iterable[tuple[str, str, bool]], first: int) -> None:
    for number, (name, kind, nullable) in enumerate(fields, first):
        _add(message, name, number, _TYPES[kind], optional=nullable)


def _array(package: str, kind: Any) -> tuple[DescriptorProto, DescriptorProto]:
    name = _ARRAYS[kind]
    array, element = DescriptorProto(name=f"{name}Array"), DescriptorProto(name=f"{name}Element")
    array.field.add(
        name="elements",
        number=1,
        type=_F.TYPE_MESSAGE,
        type_name=f".{package}.{name}Element",
        label=_F.LABEL_REPEATED,
        json_name="elements",
    )
    _add(element, "value", 1, kind)
    return array, element


def _add(
    to: DescriptorProto,
    name: str,
    number: int,
    kind: Any = _F.TYPE_MESSAGE,
    *,
    message: str = "",
    optional: bool = True,
) -> None:
    field = to.field.add(name=name, number=number, type=kind, label=_F.LABEL_OPTIONAL, json_name=name)
    if message:
        field.type_name = message
    elif optional:
        field.proto3_optional = True


def _add_presence(message: DescriptorProto) -> None:
    """Add the oneofs that stand for the presence of optional fields, with the names that protoc gives them."""
    taken = {field.name for field in message.field}
    for field in message.field:
        if field.proto3_optional:
            name = field.name if field.name.startswith("_") else f"_{field.name}"
            while name in taken:
                name = f"X{name}"
            taken.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)


def _camel(name: str) -> str:
    """Return the default name of a field in JSON."""
    return re.sub(r"_+(.?)", lambda match: match[1].upper(), name)
