"""Column types as SQL that means the same on every server, and the changes of types that keep every value. Pure.

The SQL names each type with its schema, so it does not depend on search_path. Lengths and precisions are computed here from the type
modifier: the source's server is not asked, and the target calls nothing but the built-in typmodin function of the type.

Source: the typmodin functions of the types: varchar.c, numeric.c, varbit.c, timestamp.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiorepl_sinks.postgres.identifiers import quoted

_CATALOG: Final = "pg_catalog"
_FAMILIES: Final = (("int2", "int4", "int8"), ("float4", "float8"))
_TIMES: Final = ("time", "timetz", "timestamp", "timestamptz")
# For each type of the target: the types of the source whose values PostgreSQL rounds or cuts without an error.
_ROUNDED: Final[Mapping[str, tuple[str, ...]]] = {
    "numeric": ("float4", "float8"),
    "float4": ("float8", "numeric", "int4", "int8"),
    "float8": ("numeric", "int8"),
    "date": ("timestamp", "timestamptz"),
    "time": ("timestamp", "timestamptz"),
    "name": ("varchar", "text"),
}
_ANY_PRECISION: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type with its modifier.

    :param namespace: the schema of the type.
    :param name: the name of the type in pg_type, such as ``int4`` or ``_int4``.
    :param modifier: ``atttypmod``; -1: no modifier.
    """

    namespace: str
    name: str
    modifier: int = -1

    @property
    def sql(self) -> str:
        """The type in SQL, with its length or precision."""
        numbers = self._numbers() if self.namespace == _CATALOG and self.modifier >= 0 else []
        listed = f"({', '.join(map(str, numbers))})" if numbers else ""
        return f"{quoted(self.namespace)}.{quoted(self.name)}{listed}"

    def widens(self, other: ColumnType) -> bool:
        """Whether ALTER COLUMN … TYPE from ``other`` to this type is possible, and keeps every value and its text form."""
        if self == other or {self.namespace, other.namespace} != {_CATALOG}:
            return False
        if self.name == other.name:
            return self._longer(other)
        if self.name == "text":
            return other.name == "varchar"
        for family in _FAMILIES:
            if self.name in family and other.name in family:
                return family.index(self.name) > family.index(other.name)
        return False

    def rounds(self, other: ColumnType) -> bool:
        """Whether this type accepts values of ``other`` without an error, and rounds or cuts some of them."""
        if {self.namespace, other.namespace} != {_CATALOG}:
            return False
        if self.name == other.name == "numeric" and self.modifier >= 0:
            return other.modifier < 0 or other._numbers()[1] > self._numbers()[1]
        if self.name in _TIMES and other.name in _TIMES and self.modifier >= 0:
            return other.modifier < 0 or other.modifier > self.modifier
        if self.name == "numeric" and self.modifier < 0:
            return False
        return other.name in _ROUNDED.get(self.name, ())

    def _longer(self, other: ColumnType) -> bool:
        if self.name not in ("varchar", "numeric") or other.modifier < 0:
            return False
        if self.modifier < 0:
            return True
        if self.name == "varchar":
            return self.modifier > other.modifier
        (precision, scale), (before, scale_before) = self._numbers(), other._numbers()
        return scale >= scale_before and precision - scale >= before - scale_before

    def _numbers(self) -> list[int]:
        """Return the modifier as SQL writes it: the numbers in parentheses after the name of the type."""
        name, modifier = self.name.removeprefix("_"), self.modifier
        if name in ("varchar", "bpchar"):
            return [modifier - 4]
        if name == "numeric":
            # The scale has eleven bits, signed since PostgreSQL 15.
            return [(modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 1024) - 1024]
        if name in ("bit", "varbit", "time", "timetz", "timestamp", "timestamptz"):
            return [modifier]
        if name == "interval":
            fields, precision = modifier >> 16 & 0x7FFF, modifier & 0xFFFF
            return [fields] if precision == _ANY_PRECISION else [fields, precision]
        return []

    def __str__(self) -> str:
        return self.sql


def column_type(named: tuple[str, str], modifier: int) -> ColumnType:
    """Return the type of a column of the source.

    A type that is not built in gets no modifier, because only the type's own functions can interpret it.

    :param named: the type's schema and name.
    """
    # The modifier of a masked column is lower than -1, and belongs to the method.
    return ColumnType(*named, max(modifier, -1) if named[0] == _CATALOG else -1)
