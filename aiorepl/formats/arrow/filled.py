"""Arrow arrays of the columns that ``binary_columns`` and ``text_columns`` fill. Pure.

If a column refuses a value, the value's text is converted as in ``columns``; equal values are converted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from aiorepl.formats.arrow import binary_columns as b
from aiorepl.formats.arrow import text_columns as t
from aiorepl.formats.arrow.columns import Convert, Unrepresentable, converter
from aiorepl.pgoutput.tuples import BINARY, TEXT
from aiorepl.transactions.rows import Layout
from aiorepl.values.forms import AS_TEXT
from aiorepl.values.registry import Types

Maker = Callable[[int], b.Column]
Refuse = Callable[[int, str], None]
"""Takes the row and the text of a value that the column's type cannot represent. Unless the function raises, the row becomes null."""

_WIDTHS: Final = {pa.int16(): 2, pa.int32(): 4, pa.int64(): 8}
_INTEGERS: Final = ("int2", "int4", "int8", "oid")
_FLOATS: Final = (pa.float32(), pa.float64())
_TEXTS: Final[dict[str, tuple[pa.DataType, Maker]]] = {
    "bool": (pa.bool_(), t.Boolean),
    "bytea": (pa.binary(), t.Hex),
    "date": (pa.date32(), t.Date),
    "timestamp": (pa.timestamp("us"), t.Timestamp),
    "timestamptz": (pa.timestamp("us", tz="UTC"), t.Timestamp),
}
_BINARIES: Final[dict[str, tuple[pa.DataType, Maker]]] = {
    "int2": (pa.int16(), b.Int16),
    "int4": (pa.int32(), b.Int32),
    "int8": (pa.int64(), b.Int64),
    "oid": (pa.int64(), b.Oid),
    "float4": (pa.float32(), b.Int32),
    "float8": (pa.float64(), b.Int64),
    "bool": (pa.bool_(), b.Boolean),
    "bytea": (pa.binary(), b.Bytes),
    "date": (pa.date32(), b.Date),
    "timestamp": (pa.timestamp("us"), b.Timestamp),
    "timestamptz": (pa.timestamp("us", tz="UTC"), b.Timestamp),
}


class FilledColumn:
    """One column of a table.

    :param index: the column's index in the relation.
    :param wanted: the Arrow type of the column's arrays.
    :param null: replace a value, or an array's element, that the type cannot represent by null, instead of refusing it.
    """

    def __init__(self, layout: Layout, index: int, wanted: pa.DataType, *, null: bool = False) -> None:
        self._relation = layout.relation
        self._index = index
        self._oid = layout.relation.columns[index].type_oid
        self._types = layout.types
        self._wanted = wanted
        self._makers: dict[int, Maker] = {}
        self._writer = layout.types.writer(self._oid, BINARY)
        self._convert: Convert = converter(self._oid, layout.types, wanted, null=null)

    def make(self, kind: int, rows: int) -> b.Column:
        """Make a column for values of one kind, text or binary."""
        maker = self._makers.get(kind)
        if maker is None:
            maker = self._makers[kind] = _maker(self._oid, self._types, self._wanted, kind)
        return maker(rows)

    def array(
        self, column: b.Column, rows: int, data: Any, kind_of: Callable[[int], int], refuse: Refuse
    ) -> Any:
        """Return the array of a column that was filled.

        :param rows: the number of rows.
        :param data: the bytes with its values.
        :param kind_of: returns the kind of the value that starts at a position.
        :param refuse: receives the values that the type cannot represent.
        :raises DataError: a value does not match its type; names the relation and the column.
        """
        refused = self._refused(column, data, kind_of)
        if type(column) is b.Column:
            return self._of_texts(refused, rows, refuse)
        array = self._buffers(column, rows)
        if array.type != self._wanted:
            try:
                array = array.cast(self._wanted)
            except pa.ArrowInvalid:  # some text is not a number
                texts = (
                    (row, text.encode()) for row, text in enumerate(array.to_pylist()) if text is not None
                )
                return self._of_texts(chain(texts, refused), rows, refuse)
        if column.refused:
            found = self._of_texts(refused, rows, refuse)
            if found.null_count < rows:
                array = array.fill_null(found)
        return array

    def _buffers(self, column: b.Column, rows: int) -> Any:
        """Return the column's buffers as an array. Floating-point numbers that were sent as text are still text."""
        wanted = self._wanted
        kind = pa.string() if wanted in _FLOATS and column.offsets is not None else wanted
        buffers = [pa.py_buffer(column.valid) if column.nulls else None]
        if column.offsets is not None:
            buffers.append(pa.py_buffer(column.offsets))
        buffers.append(pa.py_buffer(column.values))
        return pa.Array.from_buffers(kind, rows, buffers, column.nulls)

    def _refused(
        self, column: b.Column, data: Any, kind_of: Callable[[int], int]
    ) -> Iterator[tuple[int, bytes]]:
        for row, start, end in column.refused:
            raw = bytes(data[start:end])
            yield row, raw if kind_of(start) == TEXT else self._print(raw)

    def _of_texts(self, found: Iterable[tuple[int, bytes]], rows: int, refuse: Refuse) -> Any:
        numbers: dict[bytes, int] = {}
        indexes: list[int | None] = [None] * rows
        for row, text in found:
            indexes[row] = numbers.setdefault(text, len(numbers))
        if not numbers:
            return pa.nulls(rows, self._wanted)
        texts = list(numbers)
        wrong: set[int] = set()
        try:
            values = self._convert(texts)
        except Unrepresentable:
            wrong = {number for number, text in enumerate(texts) if not self._fits(text)}
            values = self._convert([None if number in wrong else text for number, text in enumerate(texts)])
        if wrong:
            for row, number in enumerate(indexes):
                if number in wrong:
                    refuse(row, texts[number].decode("utf-8", "backslashreplace"))
        return values.take(pa.array(indexes, pa.int32()))

    def _fits(self, text: bytes) -> bool:
        try:
            self._convert((text,))
        except Unrepresentable:
            return False
        return True

    def _print(self, raw: bytes) -> bytes:
        if self._writer is None:
            return self._checked(raw)
        # The text stays bytes: it may not be UTF-8 (or may contain a text that is not).
        text = bytearray()
        try:
            self._writer.put(text, raw)
        except Exception:  # noqa: BLE001 - raised again as a DataError
            return self._checked(raw)
        return bytes(text)

    def _checked(self, raw: bytes) -> bytes:
        try:
            return self._types.text(self._oid, BINARY)(raw).encode()
        except ValueError as error:
            raise self._relation.column_error(self._index, error) from None


def filled_columns(layout: Layout, fields: Sequence[pa.Field], *, null: bool = False) -> list[FilledColumn]:
    """Return a ``FilledColumn`` for each column of a table, with the type of its field."""
    return [FilledColumn(layout, index, field.type, null=null) for index, field in enumerate(fields)]


def _maker(oid: int, types: Types, wanted: pa.DataType, kind: int) -> Maker:
    if kind == TEXT and pa.types.is_string(wanted):
        return b.Text
    info = types.base(oid)
    if info is None or not types.readable(oid):
        return b.Column
    if pa.types.is_string(wanted):
        if info.name == "jsonb" and info.namespace == "pg_catalog":
            return b.Jsonb
        form = types.writer(oid, BINARY)
        if form is AS_TEXT:
            return b.Text
        return b.Column if form is None else partial(b.Printed, form=form)
    if info.namespace != "pg_catalog":
        return b.Column
    if pa.types.is_decimal128(wanted):
        if info.name != "numeric":
            return b.Column
        module: Any = t if kind == TEXT else b
        return partial(module.Decimal128, precision=wanted.precision, scale=wanted.scale)
    if kind == TEXT:
        if wanted in _WIDTHS and info.name in _INTEGERS:
            return partial(t.Integer, size=_WIDTHS[wanted])
        if wanted in _FLOATS and info.name in ("float4", "float8"):
            return b.Text
    known = (_TEXTS if kind == TEXT else _BINARIES).get(info.name)
    return b.Column if known is None or known[0] != wanted else known[1]
