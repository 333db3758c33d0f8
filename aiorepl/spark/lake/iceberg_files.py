"""The files of a snapshot of an Iceberg table: data files with their statistics, and position deletes. Uses pyiceberg; not Spark.

The writer's statistics are exact or absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table.delete_file_index import DeleteFileIndex, _referenced_data_file_path
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.concurrent import ExecutorFactory
from pyroaring import BitMap64

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.statistics import Bounds, Collector, shortened

PATH, POSITION = "file_path", "pos"
"""The columns of a file with position deletes."""


@dataclass(frozen=True)
class IcebergFile:
    """A data file.

    :param deletes: the files with position deletes that may mark the data file's rows.
    """

    data: DataFile
    deletes: tuple[DataFile, ...] = ()

    @property
    def path(self) -> str:
        return self.data.file_path

    @property
    def size(self) -> int:
        return self.data.file_size_in_bytes

    @property
    def rows(self) -> int:
        return self.data.record_count

    @property
    def partition(self) -> tuple[int, Record]:
        """The partition spec's id, and the values of the partition."""
        return self.data.spec_id, self.data.partition


@dataclass(frozen=True)
class Manifest:
    """A manifest, and its entries without the deleted ones."""

    file: ManifestFile
    entries: Sequence[ManifestEntry]


class IcebergFiles:
    """The files of the current snapshot.

    :ivar manifests: the manifests with files.

    :raises ConfigurationError: there are files of a kind that a mirror cannot read.
    """

    def __init__(self, io: FileIO, metadata: TableMetadata) -> None:
        self._io = io
        self._known: dict[str, Mapping[str, BitMap64]] = {}
        snapshot = metadata.current_snapshot()
        listed = [] if snapshot is None else snapshot.manifests(io)
        entries = ExecutorFactory.get_or_create().map(lambda each: each.fetch_manifest_entry(io), listed)
        self.manifests = [Manifest(file, found) for file, found in zip(listed, entries, strict=True) if found]
        for each in self.of(ManifestContent.DATA) + self.of(ManifestContent.DELETES):
            _require_readable(each.data_file)

    def of(self, content: ManifestContent) -> list[ManifestEntry]:
        """Return the entries of all manifests of a kind."""
        return [entry for each in self.manifests if each.file.content == content for entry in each.entries]

    @cached_property
    def files(self) -> list[IcebergFile]:
        index = DeleteFileIndex()
        for entry in self.of(ManifestContent.DELETES):
            index.add_delete_file(entry, entry.data_file.partition)
        found = []
        for entry in self.of(ManifestContent.DATA):
            file, number = entry.data_file, entry.sequence_number or 0
            found.append(IcebergFile(file, tuple(index.for_data_file(number, file, file.partition))))
        return found

    def owners(self) -> dict[str, str]:
        """Return, by the path of each file with position deletes of a single data file, the data file's path."""
        found = {}
        for entry in self.of(ManifestContent.DELETES):
            path = _referenced_data_file_path(entry.data_file)
            if path is not None:
                found[entry.data_file.file_path] = path
        return found

    def dead(self, file: IcebergFile) -> BitMap64:
        """Return the positions of a file's deleted rows."""
        nothing = BitMap64()
        return BitMap64.union(
            nothing, *(self.positions(each).get(file.path, nothing) for each in file.deletes)
        )

    def positions(self, deletes: DataFile) -> Mapping[str, BitMap64]:
        """Return the positions in a file with position deletes, by the path of the data file."""
        if deletes.file_path not in self._known:
            self._known[deletes.file_path] = _positions(self._io, deletes)
        return self._known[deletes.file_path]


def _positions(io: FileIO, deletes: DataFile) -> dict[str, BitMap64]:
    with io.new_input(deletes.file_path).open() as opened:
        rows = pq.read_table(opened, columns=[PATH, POSITION]).combine_chunks()
    if not rows.num_rows:
        return {}
    paths = rows[PATH].combine_chunks().cast(pa.string()).dictionary_encode()
    codes, positions = paths.indices.to_numpy(), rows[POSITION].to_numpy().astype(np.uint64)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(paths.dictionary) + 1))
    return {
        path: BitMap64(positions[order[start:end]])
        for path, start, end in zip(paths.dictionary.to_pylist(), starts, starts[1:], strict=False)
    }


def _require_readable(file: DataFile) -> None:
    if file.content == DataFileContent.EQUALITY_DELETES:
        problem = "equality deletes, as Flink writes them"
    elif file.file_format != FileFormat.PARQUET:
        problem = f"files of the format {file.file_format.value}"
    else:
        return
    raise ConfigurationError(
        f"the Iceberg table has {problem}, which a mirror cannot read ({file.file_path}): rewrite its data files with "
        "another engine, or choose another target"
    )


_EPOCH: Final = date(1970, 1, 1)
_DAYS: Final = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_DAY: Final = 86_400_000_000
_INTEGERS: Final = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)
_FLOATS: Final = (FloatType, DoubleType)


def has_bounds(kind: pa.DataType) -> bool:
    """Whether columns of a type have bounds."""
    kinds = pa.types
    return bool(
        kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_decimal(kind)
        or kinds.is_string(kind)
        or kinds.is_date32(kind)
        or kinds.is_timestamp(kind)
    )


def statistics_of(statistics: Collector, fields: Mapping[str, NestedField]) -> dict[str, Any]:
    """Return the statistics of a file as arguments of ``DataFile``.

    :param fields: by name, the table's fields.
    """
    least, greatest = {}, {}
    for name, found in statistics.bounds.items():
        kind: Any = fields[name].field_type
        values = _storable(found[0], kind), _storable(found[1], kind, upper=True)
        if None not in values:
            number = fields[name].field_id
            least[number], greatest[number] = (to_bytes(kind, value) for value in values)
    numbers = {fields[field.name].field_id: field for field in statistics.fields}
    return {
        "record_count": statistics.rows,
        "value_counts": dict.fromkeys(numbers, statistics.rows),
        "null_value_counts": {number: statistics.nulls[field.name] for number, field in numbers.items()},
        # A column with bounds has no NaN.
        "nan_value_counts": {
            number: 0
            for number, field in numbers.items()
            if pa.types.is_floating(field.type) and number in least
        },
        "lower_bounds": least,
        "upper_bounds": greatest,
    }


def bounds(file: DataFile, field: NestedField) -> Bounds | None:
    """Return the least and the greatest value of a column; ``None`` if they are unknown, or cannot be read."""
    found = [(each or {}).get(field.field_id) for each in (file.lower_bounds, file.upper_bounds)]
    try:
        least, greatest = (None if data is None else _parsed(data, field.field_type) for data in found)
    except ValueError:
        return None
    return None if least is None or greatest is None else (least, greatest)


def _storable(value: Any, kind: Any, *, upper: bool = False) -> Any:
    """Return a bound in a form that every reader can use; ``None`` if there is none."""
    if isinstance(value, str):
        return shortened(value, upper=upper)
    if isinstance(value, float) and value == 0:
        # Some readers count -0 as less than 0, so a zero gets the sign that includes both.
        return 0.0 if upper else -0.0
    if isinstance(kind, DateType):
        return value if _DAYS[0] <= value <= _DAYS[1] else None
    if isinstance(kind, (TimestampType, TimestamptzType)):
        return value if _DAYS[0] * _DAY <= value < (_DAYS[1] + 1) * _DAY else None
    return value


def _parsed(data: bytes, kind: Any) -> Any:
    # The column may have been narrower when the file was written.
    if isinstance(kind, _INTEGERS):
        return int.from_bytes(data, "little", signed=True)
    if isinstance(kind, _FLOATS):
        return from_bytes(FloatType() if len(data) == 4 else DoubleType(), data)
    if isinstance(kind, (DecimalType, StringType)):
        return from_bytes(kind, data)
    return None
