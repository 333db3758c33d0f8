"""Writes rows to new data files of a table. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from aiorepl.spark.lake.statistics import Collector

_ROW_GROUP_ROWS: Final = 256 * 1024
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
FILE_BYTES: Final = 128 * 1024 * 1024
"""The size at which a file ends."""
_OPEN_FILES: Final = 32

F = TypeVar("F")
K = TypeVar("K", bound=Hashable)


class FileWriter(ABC, Generic[F, K]):
    """Writes rows to files. One file is open at a time, or one for each partition."""

    def __init__(self) -> None:
        self._open: dict[K, OpenFile] = {}
        self._done: list[F] = []

    def write(self, rows: pa.Table) -> None:
        for values, some in self._divided(rows) if rows.num_rows else ():
            if values not in self._open and len(self._open) >= _OPEN_FILES:
                self._close_all()
            if values not in self._open:
                self._open[values] = self._created(values)
            file = self._open[values]
            file.write(some)
            if file.size >= FILE_BYTES:
                self._close(values)

    def finish(self) -> list[F]:
        """Complete the files, and return them; after a failure, all that were begun."""
        self._close_all()
        return self._done

    def _close_all(self) -> None:
        for values in list(self._open):
            self._close(values)

    def _close(self, values: K) -> None:
        file = self._open.pop(values)
        file.close()
        self._done.append(self._completed(values, file))

    @abstractmethod
    def _divided(self, rows: pa.Table) -> Iterable[tuple[K, pa.Table]]:
        """Divide rows by their partitions' values."""

    @abstractmethod
    def _created(self, values: K) -> OpenFile:
        """Create the file of a partition."""

    @abstractmethod
    def _completed(self, values: K, file: OpenFile) -> F:
        """Return the description of a complete file."""


class OpenFile:
    """One file that is being written.

    :param out: opens the file.
    :param schema: the file's columns, in the order of the rows' columns.
    :param options: the options of ``ParquetWriter``.
    """

    def __init__(
        self,
        path: str,
        out: AbstractContextManager[Any],
        schema: pa.Schema,
        options: Mapping[str, Any],
        statistics: Collector,
    ) -> None:
        self.path = path
        self.statistics = statistics
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._stack = ExitStack()
        self._out = self._stack.enter_context(out)
        self._writer = pq.ParquetWriter(self._out, schema, store_schema=False, **options)
        self.size = 0
        """The bytes that were written so far."""

    def write(self, rows: pa.Table) -> None:
        """Write rows."""
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= _ROW_GROUP_ROWS or self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        with self._stack:
            self._flush()
            self._writer.close()
            self.size = int(self._out.tell())

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self.statistics.add(rows)
            stored = rows.rename_columns(self._schema.names).cast(self._schema)
            self._writer.write_table(stored, row_group_size=_ROW_GROUP_ROWS)
            self._waiting, self._rows, self._bytes = [], 0, 0
            self.size = int(self._out.tell())
