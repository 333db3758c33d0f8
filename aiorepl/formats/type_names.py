"""SQL names of types, with their modifiers: ``character varying(20)``, ``numeric(12,2)[]``.

Source: format_type.c, and the typmodout functions of the types.
"""

from __future__ import annotations

import re
from typing import Final

from aiorepl.pgoutput.relations import Relation
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, NAME_ONLY, TypeInfo

CatalogName = tuple[str, str]
"""A type's schema and its name in pg_type, such as ``("pg_catalog", "_int4")``."""

_SPELLED: Final = {
    "bit": "bit",
    "bool": "boolean",
    "bpchar": "character",
    "char": '"char"',
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "varbit": "bit varying",
    "varchar": "character varying",
}
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_$]*")
# Schemas on the default search path; format_type() omits them.
_VISIBLE: Final = ("pg_catalog", "public", "")

# The bit of each field in an interval's modifier, in SQL's order.
_FIELDS: Final = {"year": 2, "month": 1, "day": 3, "hour": 10, "minute": 11, "second": 12}
_ANY_FIELDS: Final = 0x7FFF
_ANY_PRECISION: Final = 0xFFFF


def catalog_names(relation: Relation, types: Types | None = None) -> tuple[CatalogName | None, ...]:
    """Return the type of each column of a relation: for a domain, the base type; ``None`` if the type is unknown.

    :param types: the types of the rows; ``None``: the types that the server has sent with the relation.
    """
    if types is None:
        sent = (TypeInfo(each.oid, each.namespace, each.name, NAME_ONLY) for each in relation.types)
        types = Types(sent)
    found = [types.base(column.type_oid) for column in relation.columns]
    return tuple(None if info is None else (info.namespace or "pg_catalog", info.name) for info in found)


def type_name(types: Types, oid: int, modifier: int = -1) -> str:
    """Return the result of ``format_type`` as wal2json writes it; the oid of an unknown type."""
    info = types.info(oid)
    if info is None:
        return str(oid)
    if info.kind == ARRAY:
        return f"{_quoted_name(types, info.element, modifier)}[]"
    name = _quoted_name(types, oid, modifier)
    # wal2json mistakes quotes around the whole name for JSON's.
    return name[1:-1] if name.startswith('"') and name.endswith('"') else name


def _quoted_name(types: Types, oid: int, modifier: int) -> str:
    info = types.info(oid)
    if info is None:
        return str(oid)
    if info.namespace == "pg_catalog":
        if info.name == "bpchar" and modifier < 0:
            return "bpchar"
        name = _SPELLED.get(info.name, info.name)
        return name if modifier < 0 else _modified(info.name, name, modifier)
    name = _quote(info.name)
    return name if info.namespace in _VISIBLE else f"{_quote(info.namespace)}.{name}"


def _modified(name: str, spelled: str, modifier: int) -> str:
    if name in ("varchar", "bpchar"):
        return f"{spelled}({modifier - 4})"
    if name == "numeric":
        # The scale has eleven bits, signed since PostgreSQL 15.
        scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024
        return f"{spelled}({(modifier - 4) >> 16},{scale})"
    if name in ("bit", "varbit"):
        return f"{spelled}({modifier})"
    if name in ("time", "timetz", "timestamp", "timestamptz"):
        word, _, rest = spelled.partition(" ")
        return f"{word}({modifier}) {rest}"
    if name == "interval":
        return spelled + _interval(modifier)
    return spelled


def _interval(modifier: int) -> str:
    """Return the suffix of an interval: ``year to month``, ``(3)``, ``day to second(3)`` …"""
    fields, precision = modifier >> 16 & _ANY_FIELDS, modifier & _ANY_PRECISION
    text = "" if precision == _ANY_PRECISION else f"({precision})"
    named = [] if fields == _ANY_FIELDS else [field for field, bit in _FIELDS.items() if fields & 1 << bit]
    if not named:
        return text
    return f" {named[0]}{f' to {named[-1]}' if len(named) > 1 else ''}{text}"


def _quote(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    return '"' + name.replace('"', '""') + '"'
