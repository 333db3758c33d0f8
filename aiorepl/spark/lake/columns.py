"""The columns of a target, and the steps by which it follows altered source columns. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow import widening
from aiorepl.formats.arrow.types import META
from aiorepl.spark.lake.table import (
    DELETED,
    IS_CURRENT,
    KEPT,
    NUMBER,
    ORIGIN,
    VALID_FROM,
    VALID_TO,
    VALID_TO_LSN,
    VALID_TO_ORDINAL,
    Mode,
)

OP, COMMIT_LSN, ORDINAL, XID, COMMIT_TS, UNCHANGED = META.names

_POSITION: Final = [pa.field(COMMIT_LSN, pa.int64()), pa.field(ORDINAL, pa.int64())]
_TIME: Final = pa.timestamp("us", tz="UTC")
ADDED: Final[Mapping[Mode, list[pa.Field]]] = {
    "current": _POSITION,
    "soft_delete": [*_POSITION, pa.field(DELETED, pa.bool_())],
    "history": [
        *_POSITION,
        pa.field(VALID_FROM, _TIME),
        pa.field(VALID_TO, _TIME),
        pa.field(VALID_TO_LSN, pa.int64()),
        pa.field(VALID_TO_ORDINAL, pa.int64()),
        pa.field(IS_CURRENT, pa.bool_()),
    ],
    "changelog": [field.with_nullable(True) for field in META],
}
"""By mode, the columns that a target has besides the source's columns."""
MODE_COLUMNS: Final = frozenset(field.name for fields in ADDED.values() for field in fields)


def mode_of(columns: Collection[str]) -> Mode:
    """Return the mode that has added these columns to a target.

    :param columns: names; without the source's columns, if one of these may have the name of a mode's column.
    """
    if OP in columns:
        return "changelog"
    return "soft_delete" if DELETED in columns else "history" if IS_CURRENT in columns else "current"


def target_schema(source: pa.Schema, mode: Mode) -> pa.Schema:
    """Return the columns of a new target.

    :param source: the source's columns; its metadata columns are left out.
    :raises ConfigurationError: a column has the name of a column that the mode adds.
    """
    added = ADDED[mode]
    fields = [field.with_nullable(True) for field in source if field.name not in META.names]
    reserved = {field.name for field in (*added, *META)} | {KEPT, ORIGIN}
    seen: set[str] = set()
    for name in (field.name for field in fields):
        # Column names in lakes are case-insensitive.
        if name.lower() in reserved or name.lower().startswith("_aiorepl_"):
            raise ConfigurationError(
                f"the table has a column {name!r}, but the mirror needs this name for a column of its own: leave it out of the "
                "publication, or rename it in the DataFrame of apply_changes"
            )
        if name.lower() in seen:
            raise ConfigurationError(
                f"the table has two columns {name!r} that differ in case only: leave one out of the publication"
            )
        seen.add(name.lower())
    return pa.schema([*fields, *added])


@dataclass(frozen=True, slots=True)
class Evolution:
    """The steps that change a target's present columns to the wanted columns.

    :param schema: all columns after the steps.
    :param renamed: by a column's present name, its new name.
    :param widened: by a column's new name, its new type.
    :param added: the columns that are new.
    :param filled: by a new column's name, its value in existing rows, if that is not null.
    :param numbered: by name, the attribute number of a column whose number was not known yet.
    """

    schema: pa.Schema
    renamed: Mapping[str, str]
    widened: Mapping[str, pa.DataType]
    added: tuple[pa.Field, ...]
    filled: Mapping[str, pa.Scalar]
    numbered: Mapping[str, str]

    @property
    def rewrites(self) -> bool:
        """Whether a format that cannot rename, widen or fill columns in its metadata has to rewrite the rows."""
        return bool(self.renamed or self.widened or self.filled)


def evolution(
    present: pa.Schema, wanted: pa.Schema, defaults: Mapping[str, pa.Scalar] | None = None
) -> Evolution:
    """Find the steps after which rows of ``wanted`` fit.

    A column of ``wanted`` is matched to the present column with its attribute number, or with its name if one of the two numbers
    is unknown. If the name belongs to another number, that column was dropped: it stays under the name ``name_dropped_number``.

    :raises ConfigurationError: a column's new type cannot hold all of the present values.
    """
    by_number = {number: field for field in present if (number := number_of(field)) is not None}
    taken = {field.name for field in present} | {field.name for field in wanted}
    matched: dict[str, pa.Field] = {}
    added, numbered = [], {}
    aside: dict[str, str] = {}
    for field in wanted:
        number = number_of(field)
        found = None if number is None else by_number.get(number)
        if found is None and field.name in present.names:
            named = present.field(field.name)
            if number is None or number_of(named) is None:
                found = named
                if number is not None:
                    numbered[field.name] = number
            else:
                aside[field.name] = _free(f"{field.name}_dropped_{number_of(named)}", taken)
        if found is None:
            added.append(field.with_nullable(True))
        else:
            matched[found.name] = field
    fields, renamed, widened = [], {}, {}
    for field in present:
        wants = matched.get(field.name)
        name = aside.get(field.name, field.name) if wants is None else wants.name
        if wants is None and name == field.name and name in {each.name for each in matched.values()}:
            # This column was dropped, and another one was renamed to its name.
            name = _free(f"{name}_dropped_{number_of(field) or 0}", taken)
        if name != field.name:
            renamed[field.name] = name
        kind = field.type if wants is None else wider(field.type, wants.type)
        if kind is None:
            assert wants is not None
            raise ConfigurationError(
                f"column {name!r} of the target is {field.type}, and in the changes it is {wants.type}: move the target away "
                "and mirror the table again, or cast the column in the DataFrame of apply_changes"
            )
        if kind != field.type:
            widened[name] = kind
        metadata = {**(field.metadata or {}), **({} if wants is None else wants.metadata or {})}
        fields.append(pa.field(name, kind, metadata=metadata or None))
    filled = {
        field.name: value
        for field in added
        if (value := (defaults or {}).get(field.name)) is not None and value.is_valid
    }
    return Evolution(pa.schema([*fields, *added]), renamed, widened, tuple(added), filled, numbered)


def number_of(field: pa.Field) -> str | None:
    """Return the attribute number of a field, as text."""
    found = (field.metadata or {}).get(NUMBER.encode())
    return None if found is None else found.decode()


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both types, preferably one of the two; ``None`` if there is none."""
    return widening.wider(one, other, _scalar)


def _scalar(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    kinds = pa.types
    for narrow, wide in ((one, other), (other, one)):
        if kinds.is_integer(narrow):
            if kinds.is_integer(wide) and narrow.bit_width <= wide.bit_width:
                return wide
            if kinds.is_floating(wide) and narrow.bit_width < wide.bit_width:
                return wide
            if kinds.is_decimal(wide):
                return _decimal(_DIGITS[narrow.bit_width], 0, wide)
        # A value becomes text only if PostgreSQL has one text for it. The text of dates and floats depends on settings.
        if kinds.is_string(wide) and (
            kinds.is_integer(narrow) or kinds.is_decimal(narrow) or kinds.is_boolean(narrow)
        ):
            return wide
        if kinds.is_float32(narrow) and kinds.is_float64(wide):
            return wide
        if kinds.is_date32(narrow) and wide == pa.timestamp("us"):
            return wide
    if kinds.is_decimal(one) and kinds.is_decimal(other):
        return _decimal(one.precision, one.scale, other)
    return None


_DIGITS: Final = {16: 5, 32: 10, 64: 19}


def _decimal(precision: int, scale: int, other: pa.DataType) -> pa.DataType:
    """Return a decimal with the digits of both types; beyond 38 digits, text, as for numeric without precision."""
    whole, fraction = max(precision - scale, other.precision - other.scale), max(scale, other.scale)
    return pa.decimal128(whole + fraction, fraction) if whole + fraction <= 38 else pa.string()


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
