"""The types that the option ``types`` of a mirror chooses for columns, instead of the journal's types. Pure.

Values are converted exactly; only ``double`` is the nearest number. A value that the type cannot represent raises ``Unrepresentable``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError, DataError
from aiorepl.formats.arrow.columns import Unrepresentable, converter
from aiorepl.formats.arrow.hidden import printable, printed
from aiorepl.spark.lake.columns import MODE_COLUMNS, number_of
from aiorepl.spark.lake.rows import relisted
from aiorepl.table_name import TableName
from aiorepl.transforms.patterns import Patterns
from aiorepl.values.registry import Types
from aiorepl.values.types import BUILTIN

_NUMERIC: Final = 1700
_NUMERICS: Final = (_NUMERIC, 1231)
_TIMESTAMP: Final = "timestamp"
_DECIMAL: Final = re.compile(r"decimal\((\d+), *(\d+)\)")
_MOST_DIGITS: Final = 38

Choices = tuple[tuple[Patterns, str], ...]
"""The types by pattern of columns; the first pattern that matches applies."""


def choices_of(types: Mapping[str, str]) -> Choices:
    """Check the option ``types``.

    :raises ConfigurationError: a pattern is malformed, or a type is unknown.
    """
    for pattern, text in types.items():
        if text.lower() == "variant":
            raise ConfigurationError(
                f"types: {pattern!r} cannot be variant, because deltalake and pyiceberg do not support it: use string, and parse_json in Spark"
            )
        if text != _TIMESTAMP and _kind(text) is None:
            raise ConfigurationError(
                f"types: {pattern!r} has the type {text!r}: expected string, double, timestamp, or decimal(p,s) with at most {_MOST_DIGITS} "
                "digits"
            )
    return tuple((Patterns("types", (pattern,), 3), text) for pattern, text in types.items())


@dataclass(frozen=True)
class ColumnTypes:
    """The types that the option ``types`` chooses for one table's columns."""

    table: TableName
    choices: Choices

    def of(self, column: str) -> str | None:
        """Return the type of a column as the user wrote it; ``None`` if no pattern matches the column."""
        name = (self.table.schema, self.table.name, column)
        return next((text for patterns, text in self.choices if patterns.match(name)), None)

    def kind(self, column: str, found: pa.DataType, oid: int) -> pa.DataType:
        """Return the Arrow type of a column.

        :param found: the column's type in the journal.
        :param oid: its type in PostgreSQL.
        :raises ConfigurationError: the column cannot have the type of the option.
        """
        text = self.of(column)
        if text is None:
            return found
        element = found.value_type if pa.types.is_list(found) else found
        # The base type of a domain is not known here. The description of a truncate does not even have the Arrow type.
        numeric = pa.types.is_string(element) and (oid in _NUMERICS or oid not in BUILTIN)
        numeric = numeric or pa.types.is_decimal(element)
        kind = element if text == _TIMESTAMP else _kind(text)
        if text == _TIMESTAMP:
            fits = pa.types.is_timestamp(element) or oid not in BUILTIN
        elif pa.types.is_string(kind):
            fits = printable(element)
        elif pa.types.is_decimal(kind):
            fits = numeric or pa.types.is_integer(element)
        else:
            fits = numeric or pa.types.is_floating(element)
        if not fits:
            raise ConfigurationError(
                f"types: {self.table}.{column} is {found} and cannot be {text}: decimal(p,s) is for numeric and integers, double for numeric and "
                "floats, timestamp for timestamps, and string for every type except composites; for an array, name the type of its elements"
            )
        return pa.list_(pa.field("element", kind)) if pa.types.is_list(found) else kind

    def recorded(self, columns: pa.Schema) -> dict[str, str]:
        """Return, by column of a target, the type that the option chooses."""
        return {
            name: text
            for name in columns.names
            if name not in MODE_COLUMNS and (text := self.of(name)) is not None
        }

    def require_same(
        self, columns: pa.Schema, before: Mapping[str, str], source: pa.Schema | None = None
    ) -> None:
        """Check that the columns of a target have the types that the option chooses.

        :param columns: the target's columns.
        :param before: the types of the option with which the last batch was written, as ``recorded`` returned them.
        :param source: the source's columns, of which some may have been renamed since that batch.
        :raises ConfigurationError: a column has another type.
        """
        present = {number: field.name for field in source or () if (number := number_of(field)) is not None}
        for field in columns:
            if field.name in MODE_COLUMNS:
                continue
            name = present.get(number_of(field) or "", field.name)
            text, former = self.of(name), before.get(field.name)
            element = field.type.value_type if pa.types.is_list(field.type) else field.type
            if text is None:
                same = former is None
            else:
                same = pa.types.is_timestamp(element) if text == _TIMESTAMP else element == _kind(text)
            if not same:
                raise ConfigurationError(
                    f"types: the column {name!r} of {self.table} is {field.type} in the target (types had {former or 'no pattern for it'}), and "
                    f"types now has {text or 'no pattern for it'}: restore the former type, or begin the table again with an empty target (aiorepl "
                    "spark mirror --restart-table) and a snapshot"
                )


def converted(values: Any, kind: pa.DataType, *, null: bool) -> Any:
    """Convert a column of the journal.

    :param values: an array.
    :param kind: the type, as ``ColumnTypes.kind`` returned it.
    :param null: replace a value that the type cannot represent by null.
    :raises Unrepresentable: the type cannot represent a value, and ``null`` is not set.
    """
    if values.type == kind:
        return values
    if pa.types.is_floating(values.type) and pa.types.is_floating(kind):
        # The text of a float has fewer digits than the number.
        return values.cast(kind)
    if pa.types.is_list(kind):
        return relisted(values, converted(pc.list_flatten(values), kind.value_type, null=null), kind)
    texts = printed(values)
    if pa.types.is_string(kind):
        return texts
    try:
        found = texts.cast(kind)
    except pa.ArrowInvalid:
        raw = [None if text is None else text.encode() for text in texts.to_pylist()]
        found = converter(_NUMERIC, Types(), kind, null=null)(raw)
    if pa.types.is_floating(kind):
        # The nearest number of a text with too many digits before or after the point would be infinity or 0.
        infinite = pc.and_(pc.is_inf(found), pc.invert(pc.ends_with(texts, "Infinity")))
        lost = pc.or_(infinite, pc.and_(pc.equal(found, 0), pc.match_substring_regex(texts, "[1-9]")))
        if pc.any(lost).as_py():
            if not null:
                raise Unrepresentable
            found = pc.if_else(lost, pa.scalar(None, kind), found)
    return found


def _kind(text: str) -> pa.DataType | None:
    if (digits := _DECIMAL.fullmatch(text)) is not None:
        precision, scale = map(int, digits.groups())
        return (
            pa.decimal128(precision, scale) if scale <= precision and 0 < precision <= _MOST_DIGITS else None
        )
    return {"string": pa.string(), "double": pa.float64()}.get(text)


_OIDS: Final[tuple[tuple[Callable[[Any], bool], tuple[int, int]], ...]] = (
    (pa.types.is_boolean, (16, 1000)),
    (pa.types.is_int16, (21, 1005)),
    (pa.types.is_int32, (23, 1007)),
    (pa.types.is_int64, (20, 1016)),
    (pa.types.is_float32, (700, 1021)),
    (pa.types.is_float64, (701, 1022)),
    (pa.types.is_decimal, (1700, 1231)),
    (pa.types.is_date32, (1082, 1182)),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is None, (1114, 1115)),
    (pa.types.is_timestamp, (1184, 1185)),
    (pa.types.is_binary, (17, 1001)),
    (pa.types.is_string, (25, 1009)),
)
"""By Arrow type: the oids of the built-in type and of its array type, whose input the text is. The column may be a domain."""


def default(name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a column in rows from before it was added.

    :param name: the column, for errors.
    :raises DataError: the text cannot be read as the column's type, or the value does not fit into the type.
    """
    is_list = pa.types.is_list(kind)
    base = kind.value_type if is_list else kind
    oid = next((oids[is_list] for known, oids in _OIDS if known(base)), None)
    try:
        if oid is None:
            raise Unrepresentable
        return converter(oid, Types(), kind, null=False)([text.encode()])[0]
    except (Unrepresentable, ValueError):
        raise DataError(
            f"{name}: its value in rows from before it was added cannot be read as {kind}: add the column to the target"
        ) from None
