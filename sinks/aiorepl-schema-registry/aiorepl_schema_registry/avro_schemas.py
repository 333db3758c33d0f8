"""Avro schemas of shapes, and their encoders. Pure.

Every column may be null, with null as default: of an old row often the key alone is known, and an added or dropped column stays
compatible in both directions. A column whose name Avro does not allow has the name of PostgreSQL as the attribute ``column``.

Source: Avro's specification 1.12, "Logical Types" and "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any, Final

import fastavro

from aiorepl_schema_registry.envelope import MESSAGE, SOURCE, TAIL
from aiorepl_schema_registry.shapes import Field, FieldType, Kind, Shape

_LOGICAL: Final[dict[Kind, dict[str, Any]]] = {
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "local_timestamp": {"type": "long", "logicalType": "local-timestamp-micros"},
    "uuid": {"type": "string", "logicalType": "uuid"},
}


def schema_of(shape: Shape) -> dict[str, Any]:
    """Return the schema of a shape, in Avro's JSON."""
    if shape.record == "Key":
        return _record(shape, "Key", map(_column, shape.fields))
    fields = [
        {"name": "source", "type": _record(shape, "Source", map(_fixed, SOURCE), inner=True)},
        *map(_fixed, TAIL),
    ]
    if shape.record == "Message":
        content = _record(shape, "Content", map(_fixed, MESSAGE), inner=True)
        return _record(shape, "Message", [{"name": "message", "type": content}, *fields])
    row = _record(shape, "Value", map(_column, shape.fields), inner=True)
    rows: list[dict[str, Any]] = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", f"{shape.package}.Value"], "default": None},
        {"name": "unchanged", "type": {"type": "array", "items": "string"}, "default": []},
    ]
    return _record(shape, "Envelope", [*rows, *fields])


def encoder(schema: dict[str, Any], shape: Shape) -> Callable[[Mapping[str, Any]], bytes]:
    """Return a function that encodes the fields of an event or a key."""
    # The values are numbers, text and bytes already, which logical types would only inspect again.
    parsed = fastavro.parse_schema(_plain(schema), named_schemas={})
    value = f"{shape.package}.Value"
    # The name of a type spares fastavro the search for the member of a union that fits the value. An array has no name.
    kinds = {field.name: _primitive(field.type) for field in shape.fields if field.type.kind != "array"}

    def named(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: (kinds[name], each) if name in kinds else each for name, each in row.items()}

    def encode(fields: Mapping[str, Any]) -> bytes:
        out = BytesIO()
        if shape.record == "Envelope":
            rows = {
                name: (value, named(fields[name])) for name in ("before", "after") if fields[name] is not None
            }
            fastavro.schemaless_writer(out, parsed, {**fields, **rows})
        else:
            fastavro.schemaless_writer(out, parsed, named(fields) if shape.record == "Key" else dict(fields))
        return out.getvalue()

    return encode


def _primitive(field: FieldType) -> str:
    plain = _plain(_type(field))
    assert isinstance(plain, str)
    return plain


def _record(
    shape: Shape, name: str, fields: Iterable[dict[str, Any]], *, inner: bool = False
) -> dict[str, Any]:
    if inner:
        return {"type": "record", "name": name, "fields": list(fields)}
    return {"type": "record", "name": name, "namespace": shape.package, "fields": list(fields)}


def _fixed(field: tuple[str, str, bool]) -> dict[str, Any]:
    name, kind, nullable = field
    return (
        {"name": name, "type": ["null", kind], "default": None} if nullable else {"name": name, "type": kind}
    )


def _column(field: Field) -> dict[str, Any]:
    described = {"name": field.name, "type": ["null", _type(field.type)], "default": None}
    return described if field.name == field.column else described | {"column": field.column}


def _type(field: FieldType) -> Any:
    if field.kind == "decimal":
        return {"type": "bytes", "logicalType": "decimal", "precision": field.precision, "scale": field.scale}
    if field.kind == "array":
        assert field.element is not None
        return {"type": "array", "items": ["null", _type(field.element)]}
    return _LOGICAL.get(field.kind, field.kind)


def _plain(schema: Any) -> Any:
    """Return a schema without logical types; the bytes of its values are the same."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "logicalType" in schema:
        return schema["type"]
    return {
        name: _plain(each) if name in ("type", "items", "fields") else each for name, each in schema.items()
    }
