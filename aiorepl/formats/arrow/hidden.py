"""Drops and masks the columns of rows in Arrow form. Pure.

A mask is a function of the text that PostgreSQL prints for a value, so a value has the same mask in a message, in a block of a
journal, and in a file of the history. NULL is not masked, and neither is a value that the server did not send.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.epoch import EPOCH_MICROSECONDS, EPOCH_SECONDS
from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.constants import texts as constant_texts
from aiorepl.formats.arrow.number_texts import number_texts
from aiorepl.pgoutput.relations import Mask, Relation
from aiorepl.pgoutput.tuples import BINARY
from aiorepl.values.registry import Types

_UNREPRESENTABLE, _UNCHANGED, _BEFORE = "_unrepresentable", "_unchanged", "_before"
_NUMBER: Final = b"PARQUET:field_id"
_BUILTIN: Final = Types()
_EPOCH_DAYS: Final = EPOCH_SECONDS // 86_400

DROPPED: Final = ""
"""The name of a dropped column, which no column of a table has."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The dropped and masked columns of one description of a table.

    :param target: the description without the dropped columns; masked columns are text.
    :param kept: for each column of the source's description, whether ``target`` has it.
    :param masks: by index of a masked column in the source's description, the function of its method.
    """

    target: Relation
    kept: Sequence[bool]
    masks: Mapping[int, Mask]

    def kinds(self, kinds: Sequence[pa.DataType]) -> list[pa.DataType]:
        """Return the Arrow types of the target's columns.

        :param kinds: the Arrow types of the source's columns.
        """
        return [
            pa.string() if index in self.masks else kind
            for index, kind in enumerate(kinds)
            if self.kept[index]
        ]


def masked(texts: Any, mask: Mask) -> Any:
    """Return an array with the mask of each text. NULL stays.

    :param texts: an array of Arrow's type ``string``.
    """
    # Equal values have equal masks, so each is computed once.
    encoded = texts.dictionary_encode()
    distinct = encoded.dictionary.cast(pa.binary()).to_pylist()
    return pa.array(list(map(mask, distinct)), pa.string()).take(encoded.indices)


def printable(kind: pa.DataType) -> bool:
    """Whether ``printed`` returns PostgreSQL's text of every value of an Arrow type."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def printed(values: Any) -> Any:
    """Return the text that PostgreSQL prints for each value of a column in a file of the history.

    :param values: an array of a type that is ``printable``.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_boolean(kind):
        return constant_texts(("f", "t")).take(values.cast(pa.int8()))
    if pa.types.is_binary(kind):
        found = [None if each is None else "\\x" + each.hex() for each in values.to_pylist()]
    elif pa.types.is_date32(kind):
        form = _BUILTIN.text(1082, BINARY)
        days = values.cast(pa.int32()).to_pylist()
        found = [None if each is None else form(struct.pack(">i", each - _EPOCH_DAYS)) for each in days]
    elif pa.types.is_timestamp(kind):
        form = _BUILTIN.text(1114 if kind.tz is None else 1184, BINARY)
        times = values.cast(pa.int64()).to_pylist()
        found = [
            None if each is None else form(struct.pack(">q", each - EPOCH_MICROSECONDS)) for each in times
        ]
    else:
        return number_texts(values)
    return pa.array(found, pa.string())


def masked_values(values: Any, unfit: Any, name: str, mask: Mask) -> Any:
    """Return the masks of the values of a column in a file of the history.

    :param values: the column; its type is ``printable``.
    :param unfit: the file's column ``_unrepresentable``.
    :param name: the name under which ``unfit`` has texts of this column.
    """
    texts = printed(values)
    if unfit.null_count < len(unfit):
        found = [dict(each or ()).get(name) for each in unfit.to_pylist()]
        texts = pc.coalesce(texts, pa.array(found, pa.string()))
    return masked(texts, mask)


class HiddenFile:
    """Drops and masks the columns of one file of the history.

    :param relation: the file's description.
    :param schema: the file's columns.
    :raises ConfigurationError: a masked column has a type from which PostgreSQL's text cannot be restored.
    """

    def __init__(self, hidden: Hidden, relation: Relation, schema: pa.Schema) -> None:
        self._hidden = hidden
        self._source = schema
        own = [schema.field(index) for index in range(len(relation.columns))]
        self._masked = {own[index].name: mask for index, mask in hidden.masks.items()}
        self._gone = {field.name for field, kept in zip(own, hidden.kept, strict=True) if not kept}
        for field in own:
            if field.name in self._masked and not printable(field.type):
                raise ConfigurationError(
                    f"the history has the column {field.name!r} of {relation} as {field.type}, without PostgreSQL's text, from which a "
                    "mask is computed: drop the column, or start with changes that the journal has in segments"
                )
        self.schema = pa.schema([self._field(field) for field in schema if field.name not in self._gone])

    @property
    def description(self) -> tuple[bytes, ...]:
        """The Relation message of the rows, and the Type messages that it uses."""
        target = self._hidden.target
        return target.payload, *(each.payload for each in target.types)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the file with the columns of ``schema``."""
        unfit = batch[_UNREPRESENTABLE]
        arrays = []
        for field in self._source:
            values = batch[field.name]
            if field.name in self._gone:
                continue
            if field.name in self._masked:
                values = masked_values(values, unfit, field.name, self._masked[field.name])
            elif field.name == _UNCHANGED and self._gone:
                values = _without(values, self._gone)
            elif field.name == _UNREPRESENTABLE:
                values = self._fitting(values)
            elif field.name == _BEFORE:
                values = self._before(values, unfit)
            arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _field(self, field: pa.Field) -> pa.Field:
        if field.name == _BEFORE:
            inner = [each for each in field.type if each.name not in self._gone]
            return field.with_type(
                pa.struct(
                    [each.with_type(pa.string()) if each.name in self._masked else each for each in inner]
                )
            )
        if field.name not in self._masked:
            return field
        number = (field.metadata or {}).get(_NUMBER)
        # The field's metadata has the missing value unmasked, so only the column's number is kept.
        return pa.field(field.name, pa.string(), metadata=None if number is None else {_NUMBER: number})

    def _before(self, rows: Any, unfit: Any) -> Any:
        if rows.null_count == len(rows):
            return pa.nulls(len(rows), self.schema.field(_BEFORE).type)
        kind = self.schema.field(_BEFORE).type
        values = [
            masked_values(
                pc.struct_field(rows, each.name), unfit, f"{_BEFORE}.{each.name}", self._masked[each.name]
            )
            if each.name in self._masked
            else pc.struct_field(rows, each.name)
            for each in kind
        ]
        return pa.StructArray.from_arrays(values, fields=list(kind), mask=rows.is_null())

    def _fitting(self, unfit: Any) -> Any:
        if unfit.null_count == len(unfit):
            return unfit
        hidden = {*self._gone, *self._masked}
        hidden |= {f"{_BEFORE}.{name}" for name in hidden}
        rows = [
            [(name, text) for name, text in each or () if name not in hidden] or None
            for each in unfit.to_pylist()
        ]
        return pa.array(rows, unfit.type)


def without_dropped(lists: Any, columns: Sequence[object | None]) -> Any:
    """Remove ``DROPPED`` from lists of column names.

    :param columns: one item for each column of the table; ``None`` for a dropped column.
    """
    return _without(lists, {DROPPED}) if any(each is None for each in columns) else lists


def _without(lists: Any, names: set[str]) -> Any:
    if not len(lists.values):
        return lists
    rows = [
        None if each is None else [name for name in each if name not in names] for each in lists.to_pylist()
    ]
    return pa.array(rows, lists.type)
