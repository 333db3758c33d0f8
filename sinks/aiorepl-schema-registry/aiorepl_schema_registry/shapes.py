"""The shape of a table: its name, and the type of each column in a schema. Pure.

=================================  =====================================
PostgreSQL                         kind
=================================  =====================================
boolean                            boolean
smallint, integer                  int
bigint, oid                        long
real, double precision             float, double
numeric(p, s) with 0 <= s <= p     decimal
bytea                              bytes
date, time                         date, time
timestamp, timestamptz             local_timestamp, timestamp
uuid                               uuid
an array                           array, of one of the other kinds
all others, and plain numeric      string: PostgreSQL's text
=================================  =====================================

A domain has the kind of its base type. ``values`` converts the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from aiorepl.pgoutput.relations import Relation
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, BUILTIN
from aiorepl_schema_registry.names import escaped

Kind = Literal[
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "bytes",
    "decimal",
    "date",
    "time",
    "timestamp",
    "local_timestamp",
    "uuid",
    "array",
]

_KINDS: Final[dict[str, Kind]] = {
    "bool": "boolean",
    "int2": "int",
    "int4": "int",
    "int8": "long",
    "oid": "long",
    "float4": "float",
    "float8": "double",
    "bytea": "bytes",
    "date": "date",
    "time": "time",
    "timestamp": "local_timestamp",
    "timestamptz": "timestamp",
    "uuid": "uuid",
}


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field.

    :param element: of an array, the type of its elements.
    :param delimiter: of an array, the character between its elements in PostgreSQL's text.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    element: FieldType | None = None
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class Field:
    """A column; ``name`` is its name in the schema."""

    column: str
    name: str
    type: FieldType


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a row or of a key.

    :param package: the namespace of the records.
    :param record: the name of the record whose schema is registered: ``Envelope``, ``Key`` or ``Message``.
    """

    package: str
    record: str
    fields: tuple[Field, ...] = ()

    @property
    def full_name(self) -> str:
        """The record's name with its namespace."""
        return f"{self.package}.{self.record}"


@dataclass(frozen=True, slots=True)
class Choices:
    """How columns are described.

    :param namespace: the first part of each record's namespace.
    :param decimals: whether numeric(p, s) is a decimal, and not a string.
    :param arrays: whether arrays are arrays, and not strings.
    """

    namespace: str
    decimals: bool
    arrays: bool

    def row(self, relation: Relation, types: Types) -> Shape:
        """Return the shape of a table's rows."""
        return Shape(
            self._package(relation), "Envelope", self._fields(relation, types, range(len(relation.columns)))
        )

    def key(self, relation: Relation, types: Types) -> Shape | None:
        """Return the shape of a table's key; ``None`` if no column identifies a row."""
        if not relation.key:
            return None
        return Shape(self._package(relation), "Key", self._fields(relation, types, relation.key))

    def message(self) -> Shape:
        """Return the shape of logical decoding messages."""
        return Shape(self.namespace, "Message")

    def _package(self, relation: Relation) -> str:
        return f"{self.namespace}.{escaped(relation.schema)}.{escaped(relation.name)}"

    def _fields(self, relation: Relation, types: Types, indexes: Iterable[int]) -> tuple[Field, ...]:
        columns = [relation.columns[index] for index in indexes]
        return tuple(
            Field(each.name, escaped(each.name), self.type_of(types, each.type_oid, each.type_modifier))
            for each in columns
        )

    def type_of(self, types: Types, oid: int, modifier: int) -> FieldType:
        """Return the type of a field for a type of PostgreSQL."""
        info = types.base(oid)
        if info is None or not types.readable(oid):
            return FieldType("string")
        if info.kind == ARRAY:
            if not self.arrays:
                return FieldType("string")
            element = types.info(info.element)
            delimiter = info.delimiter if element is None else element.delimiter
            return FieldType(
                "array", element=self.type_of(types, info.element, modifier), delimiter=delimiter
            )
        # A user-defined type may have the name of a built-in one.
        if info.oid not in BUILTIN:
            return FieldType("string")
        if info.name == "numeric":
            return self._numeric(modifier)
        return FieldType(_KINDS.get(info.name, "string"))

    def _numeric(self, modifier: int) -> FieldType:
        if modifier < 0 or not self.decimals:
            return FieldType("string")
        # The scale has eleven bits, signed since PostgreSQL 15.
        precision, scale = (modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
        if not 0 <= scale <= precision:
            return FieldType("string")
        return FieldType("decimal", precision, scale)
