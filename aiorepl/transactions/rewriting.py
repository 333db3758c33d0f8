"""Gives messages other columns, as if the server had sent these columns. Pure.

The result has a relation of its own, and its bytes agree with that relation, so that rows, formats and the journal read
it like any other message.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import orjson

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.pgoutput.tuples import encoded_columns
from aiorepl.transactions.rows import Layout
from aiorepl.values.types import ARRAY

# Tried in this order, because a bool is an int and a datetime is a date.
_TYPES: Final[tuple[tuple[type | tuple[type, ...], int], ...]] = (
    (bool, 16),
    (int, 20),
    (float, 701),
    (str, 25),
    (Decimal, 1700),
    (bytes, 17),
    (datetime, 1184),
    (date, 1082),
    (time, 1083),
    (UUID, 2950),
    ((dict, list, tuple), 3802),
)
_NAIVE: Final = 1114
_TEXT: Final = 25


def with_columns(
    message: m.Insert | m.Update, layout: Layout, values: Mapping[str, Any]
) -> tuple[m.Insert | m.Update, Layout]:
    """Return the message with these columns of its new row set or added, and the layout that reads it.

    See ``RowChange.with_columns``.
    """
    added = tuple((name, _type(value)) for name, value in values.items() if name not in layout.indexes)
    target = layout if not added else _extended(layout, added)
    columns = {
        index: _encoded(values[name], column, target)
        for index, (name, column) in enumerate(
            zip(target.relation.names, target.relation.columns, strict=True)
        )
        if name in values
    }
    return with_encoded(message, target.relation, columns), target


def with_encoded(
    message: m.Insert | m.Update, relation: Relation, columns: Mapping[int, bytes]
) -> m.Insert | m.Update:
    """Return the message as a message of ``relation``, with these columns of its new row.

    :param relation: the message's relation, or one that has further columns after the same ones.
    :param columns: by index; each with its kind and length. Further columns must be given.
    """
    at = message.new_at
    given = encoded_columns(message.payload, at)
    added = len(relation.columns) - len(given)
    parts = [len(relation.columns).to_bytes(2, "big")]
    parts += [columns[index] if index in columns else given[index] for index in range(len(relation.columns))]
    new = b"".join(parts)
    head = message.payload[:at]
    if isinstance(message, m.Insert):
        return m.Insert(relation, at, head + new, message.xid)
    if message.old_kind and added:
        # Old and new rows are of one relation, so the old row gets the added columns as well.
        old = [*encoded_columns(message.payload, message.old_at), *[b"n"] * added]
        head = message.payload[: message.old_at] + len(old).to_bytes(2, "big") + b"".join(old) + b"N"
    return m.Update(relation, message.old_kind, message.old_at, len(head), head + new, message.xid)


def redescribed(relation: Relation, columns: Sequence[Column]) -> Relation:
    """Return the relation with these columns instead, and a Relation message that describes it."""
    used = {column.type_oid for column in columns}
    types = tuple(named for named in relation.types if named.oid in used)
    parts = [b"R", b"" if relation.xid is None else struct.pack(">I", relation.xid)]
    parts.append(struct.pack(">I", relation.oid))
    parts += [relation.namespace.encode() + b"\0", relation.name.encode() + b"\0"]
    parts += [relation.replica_identity.encode(), struct.pack(">H", len(columns))]
    for column in columns:
        parts += [bytes([column.key]), column.name.encode() + b"\0"]
        parts.append(struct.pack(">Ii", column.type_oid, column.type_modifier))
    return replace(relation, columns=tuple(columns), types=types, payload=b"".join(parts))


def _extended(layout: Layout, added: tuple[tuple[str, int], ...]) -> Layout:
    target = layout.derived.get(added)
    if target is None:
        columns = [*layout.relation.columns, *(Column(False, name, oid, -1) for name, oid in added)]
        target = Layout(redescribed(layout.relation, columns), layout.types, binary=layout.binary)
        layout.derived[added] = target
    return target


def _encoded(value: Any, column: Column, layout: Layout) -> bytes:
    """Encode a value as a column of a tuple, in text."""
    if value is None:
        return encoded_text(None)
    info = layout.types.info(column.type_oid)
    array = info is not None and info.kind == ARRAY
    text = _array(value) if array and isinstance(value, (list, tuple)) else _text(value)
    return encoded_text(text.encode())


def encoded_text(text: bytes | None) -> bytes:
    """Encode PostgreSQL's text of a value as a column of a tuple; ``None`` is NULL."""
    return b"n" if text is None else b"t" + len(text).to_bytes(4, "big") + text


def _type(value: Any) -> int:
    if isinstance(value, datetime) and value.tzinfo is None:
        return _NAIVE
    return next((oid for kind, oid in _TYPES if isinstance(value, kind)), _TEXT)


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "t" if value else "f"
        case float() if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case int() | float() | Decimal() | UUID():
            return str(value)
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat(" ")
        case date() | time():
            return value.isoformat()
        case dict() | list() | tuple():
            return orjson.dumps(value).decode()
    raise TypeError(
        f"a column cannot be set to a {type(value).__name__}: pass PostgreSQL's text of the value"
    )


def _array(values: Sequence[Any]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, (list, tuple)):
        return _array(value)
    escaped = _text(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
