"""Converts the columns of a history file to the columns that a query wants. Pure.

Columns are matched as in ``typed``: by attribute number, or by name if it is not known. For a value that its column's type cannot
represent, and for a type without a Parquet type, a file has PostgreSQL's text. Such text is converted like the journal's. So are
numbers, because their text equals PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.collected import BEFORE
from aiorepl.formats.arrow.columns import Convert
from aiorepl.formats.arrow.hidden import masked_values, printable
from aiorepl.formats.arrow.number_texts import number_texts
from aiorepl.formats.arrow.types import META, UNREPRESENTABLE
from aiorepl.formats.arrow.widening import casts
from aiorepl.history import HistoryFile
from aiorepl.pgoutput.relations import Mask
from aiorepl.spark.lake.rows import relisted
from aiorepl.spark.reading.columns import assembled, column, renamed
from aiorepl.spark.reading.typed import Typed
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo

_INTEGERS: Final = (pa.int16(), pa.int32(), pa.int64())


class FileColumns:
    """The wanted columns of one file.

    :ivar relation: the file's description.
    :ivar indexes: by wanted name, the column's index in ``relation``.
    :ivar renamed: by a column's name in the file, its present name.
    :ivar read: the columns of the file that are needed.
    :ivar keys: the names of the key's columns in the file, if the query names the key and updates may have changed it.
    :param types: as in ``Compacted``.
    """

    def __init__(self, typed: Typed, file: HistoryFile, types: tuple[TypeInfo, ...]) -> None:
        relation = file.relation()
        assert relation is not None
        self._typed = typed
        self.relation = relation
        self._types = Types(types)
        names = typed.names(relation)
        self.indexes = {name: index for index, name in enumerate(names) if name in typed.schema.names}
        self._fields = [file.schema.field(index) for index in range(len(names))]
        self.renamed = {
            field.name: name for field, name in zip(self._fields, names, strict=True) if field.name != name
        }
        whole = BEFORE in file.schema.names and not relation.key
        self.keys = tuple(
            field.name
            for field, name in zip(self._fields, names, strict=True)
            if whole and name in typed.keys
        )
        metadata = [name for name in typed.schema.names if name in META.names]
        needed = ["_op", "_commit_lsn", "_ordinal", *metadata, *([BEFORE, "_unchanged"] if self.keys else [])]
        columns = [self._fields[index].name for index in self.indexes.values()]
        self.read = list(dict.fromkeys([*columns, *self.keys, *needed, UNREPRESENTABLE.name]))

    @property
    def wanted(self) -> pa.Schema:
        """The columns that the query wants."""
        return self._typed.schema

    @property
    def missing(self) -> Mapping[str, pa.Array]:
        """By column, its value in older rows, as in ``Newest``."""
        return self._typed.newest.missing

    def field(self, name: str) -> pa.Field:
        """Return the field of the file that a wanted column is read from."""
        return self._fields[self.indexes[name]]

    def mask(self, name: str) -> Mask | None:
        """Return the mask of a wanted column; ``None`` if it is not masked."""
        return self._typed.mask(name)

    def require_convertible(self) -> None:
        """Check the columns' types.

        :raises ConfigurationError: a column's type in the file differs from the wanted type, and cannot be converted to it.
        """
        for name, index in self.indexes.items():
            found = self._fields[index].type
            if self.mask(name) is not None and printable(found):
                continue
            if unconvertible(found, self._typed.schema.field(name).type):
                raise ConfigurationError(
                    f"the history has the column {name!r} of {self.relation} as {self._fields[index].type}: read it as that, and "
                    f"convert it, because its text is no longer there to be read as {self._typed.schema.field(name).type}"
                )

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the file.

        :raises DataError: a value does not fit into the wanted type.
        """
        own = {name: self._column(batch, self.wanted.field(name)) for name in self.indexes}
        metadata = {name: batch[name] for name in META.names if name in batch.schema.names}
        if "_unchanged" in metadata:
            metadata["_unchanged"] = renamed(metadata["_unchanged"], self.renamed)
        return assembled(self.wanted, own, self.missing, metadata)

    def _column(self, batch: pa.RecordBatch, wanted: pa.Field) -> Any:
        index = self.indexes[wanted.name]
        found = batch[self._fields[index].name]
        mask = self.mask(wanted.name)
        if mask is not None:
            return masked_values(found, batch[UNREPRESENTABLE.name], self._fields[index].name, mask)
        if found.type == wanted.type:
            converted = found
        elif casts(found.type, wanted.type):
            converted = found.cast(wanted.type)
        elif _of_text(found.type):
            converted = self._of_elements(index, wanted.type, found)
        else:
            texts = found if pa.types.is_string(found.type) else number_texts(found)
            converted = self._of_texts(index, wanted.type, _bytes(texts.to_pylist()))
        unfit = batch[UNREPRESENTABLE.name]
        if unfit.null_count == batch.num_rows:
            return converted
        name = self._fields[index].name
        texts = [dict(each or ()).get(name) for each in unfit.to_pylist()]
        if not any(text is not None for text in texts):
            return converted
        return pc.coalesce(converted, self._of_texts(index, wanted.type, _bytes(texts)))

    def _of_texts(self, index: int, wanted: pa.DataType, texts: Sequence[bytes | None]) -> Any:
        return self._converter(index, self.relation.columns[index].type_oid, wanted)(texts)

    def _of_elements(self, index: int, wanted: pa.DataType, lists: Any) -> Any:
        """Convert lists of texts: earlier releases stored arrays of composites in this form."""
        info = self._types.base(self.relation.columns[index].type_oid)
        element = 0 if info is None else info.element
        texts = _bytes(pc.list_flatten(lists).to_pylist())
        values = self._converter(index, element, wanted.value_type)(texts)
        return relisted(lists, values, wanted)

    def _converter(self, index: int, oid: int, wanted: pa.DataType) -> Convert:
        name = f"{self.relation}.{self.relation.columns[index].name}"
        return column(name, oid, self._types, wanted, null=self._typed.null)


def unconvertible(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether some value of a file's column cannot be converted to ``wanted`` without loss."""
    if found == wanted or pa.types.is_string(found):
        return False
    if casts(found, wanted) or (_of_text(found) and pa.types.is_list(wanted)):
        return False
    return not (_printable(found) and (pa.types.is_string(wanted) or _printable(wanted)))


def _of_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_string(kind.value_type))


def _printable(kind: pa.DataType) -> bool:
    """Whether the text of every value of a type equals PostgreSQL's text."""
    return kind in _INTEGERS or pa.types.is_decimal(kind) or kind in (pa.float32(), pa.float64())


def _bytes(texts: Sequence[str | None]) -> list[bytes | None]:
    return [None if text is None else text.encode() for text in texts]
