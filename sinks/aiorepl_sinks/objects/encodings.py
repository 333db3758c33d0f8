"""What an object is written as: JSON lines, or Parquet with the tables' own columns. Pure."""

from __future__ import annotations

import contextlib
import gzip
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

from aiorepl import Change, ConfigurationError, Position, RowChange, SchemaChange, Truncate
from aiorepl.formats import named
from aiorepl_sinks.objects.gathering import Partition, Piece, identity

zstd: Any = None
with contextlib.suppress(ImportError):  # the parquet extra does without
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

_COMPRESSORS: Final[Mapping[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "none": ("", bytes),
    "gzip": (".gz", partial(gzip.compress, compresslevel=6, mtime=0)),
    "zstd": (".zst", lambda data: bytes(zstd.compress(data))),
}
_CODECS: Final = ("none", "gzip", "zstd", "snappy", "lz4", "brotli")


class Encoding(ABC):
    """How events become objects."""

    suffix: str
    """What the names of objects end in."""

    @abstractmethod
    def at(self, position: Position) -> None:
        """The source, before the first event."""

    @abstractmethod
    def pieces(self, partition: Partition, changes: Sequence[Change]) -> Iterator[Piece]:
        """Changes of one partition, encoded.

        :raises DataError: when a column's bytes are not what its type says.
        """

    @abstractmethod
    def finish(self, chunks: Sequence[Any]) -> bytes | memoryview:
        """An object's bytes: the same for the same chunks."""


class JsonLinesEncoding(Encoding):
    """Events of any format of JSON, one a line."""

    def __init__(self, format: str | Mapping[str, Any], values: str, compression: str) -> None:  # noqa: A002
        if compression not in _COMPRESSORS:
            raise ConfigurationError(
                f"JSON lines have no compression {compression!r}: it is none, gzip or zstd"
            )
        if compression == "zstd" and zstd is None:
            raise ConfigurationError("compression zstd needs backports.zstd: pip install 'aiorepl[s3]'")
        ending, self._compress = _COMPRESSORS[compression]
        self.suffix = ".jsonl" + ending
        self._named = partial(named, format, values=values)
        self._format = self._named()
        if "json" not in self._format.content_type:
            raise ConfigurationError("objects hold JSON, one event a line: choose another format")

    def at(self, position: Position) -> None:
        self._format = self._named(position=position)

    def pieces(self, partition: Partition, changes: Sequence[Change]) -> Iterator[Piece]:
        split, event = self._format.split, self._format.event
        lines = [event(part) for change in changes for part in split(change)]
        if lines:
            data = b"\n".join(lines) + b"\n"
            first, last = identity(changes[0]), identity(changes[-1])
            yield Piece(partition, None, [data], len(data), len(lines), first, last)

    def finish(self, chunks: Sequence[Any]) -> bytes:
        return self._compress(b"".join(chunks))


class ParquetEncoding(Encoding):
    """Rows in columns of their own; ``aiorepl.formats.arrow.table`` says which types they have."""

    suffix = ".parquet"

    def __init__(self, compression: str) -> None:
        try:
            self._arrow = import_module("aiorepl.formats.arrow.table")
        except ImportError:
            raise ConfigurationError("Parquet needs pyarrow: pip install 'aiorepl[parquet]'") from None
        if compression not in _CODECS:
            raise ConfigurationError(
                f"Parquet has no compression {compression!r}: it is {', '.join(_CODECS)}"
            )
        self._compression = compression
        # By oid, the layout that was seen last and what it makes.
        self._tables: dict[int, tuple[Any, Any]] = {}

    def at(self, position: Position) -> None:
        self._tables = {}

    def pieces(self, partition: Partition, changes: Sequence[Change]) -> Iterator[Piece]:
        for table, run in self._runs(changes):
            batch = self._arrow.message_batch(run) if table is None else table.batch(run)
            first, last = identity(run[0]), identity(run[-1])
            yield Piece(partition, batch.schema, [batch], batch.nbytes, len(run), first, last)

    def finish(self, chunks: Sequence[Any]) -> memoryview:
        import pyarrow as pa
        import pyarrow.parquet as pq

        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(chunks), out, compression=self._compression)
        return memoryview(out.getvalue()).cast("B")

    def _runs(self, changes: Sequence[Change]) -> Iterator[tuple[Any, list[Change]]]:
        """The changes, as long as the table stays the same; of messages it is ``None``."""
        table: Any = None
        layout: Any = None
        run: list[Change] = []
        for change in changes:
            if isinstance(change, RowChange) and change.layout is layout:
                run.append(change)
                continue
            if isinstance(change, SchemaChange):
                continue  # it is in the schema
            found = self._table(change)
            if run and found is not table:
                yield table, run
                run = []
            table = found
            layout = change.layout if isinstance(change, RowChange) else None
            run.append(change)
        if run:
            yield table, run

    def _table(self, change: Change) -> Any:
        """The table as it was at the time; it is known from its rows alone, so a truncate may come before."""
        if isinstance(change, RowChange):
            known = self._tables.get(change.relation.oid)
            if known is None or known[0] is not change.layout:
                made = self._arrow.ArrowTable(change.layout)
                known = self._tables[change.relation.oid] = change.layout, made
            return known[1]
        if not isinstance(change, Truncate):
            return None
        (relation,) = change.relations
        known = self._tables.get(relation.oid)
        if known is not None and known[0].relation.columns == relation.columns:
            return known[1]
        return self._arrow.ArrowTable(None)
