"""The encodings of objects: JSON lines, or Parquet with the tables' own columns. Pure."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

from aiorepl import Change, ConfigurationError, Position, RowChange, SchemaChange, TableRows, Truncate
from aiorepl.formats import Values, named
from aiorepl.formats.arrow.parts_file import PartsFile
from aiorepl_sinks.objects.buffer import Partition, Piece, identity

zstd: Any = None
with contextlib.suppress(ImportError):  # the parquet extra does not install it
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

_CODECS: Final = ("none", "gzip", "zstd", "snappy", "lz4", "brotli")
_MIN_ROW_GROUP_BYTES: Final = 1024 * 1024
# The largest dictionary of a column. Larger dictionaries cost memory and time, and hardly ever save space.
_DICTIONARY_BYTES: Final = 16 * 1024
# Smaller than Arrow's default, 1 MiB: one page of each column is in memory, both plain and compressed.
_PAGE_BYTES: Final = 128 * 1024
_BUFFER_BYTES: Final = 256 * 1024
_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"


class _Compressor(Protocol):
    def compress(self, data: Any, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Uncompressed:
    def compress(self, data: Any, /) -> bytes:
        return bytes(data)

    def flush(self) -> bytes:
        return b""


def _zstd(size: int) -> _Compressor:
    compressor: _Compressor = zstd.ZstdCompressor()
    # Writes the size into the frame's header. Some readers need it.
    compressor.set_pledged_input_size(size)  # type: ignore[attr-defined]
    return compressor


_COMPRESSORS: Final[Mapping[str, tuple[str, Callable[[int], _Compressor]]]] = {
    "none": ("", lambda _: _Uncompressed()),
    "gzip": (".gz", lambda _: zlib.compressobj(6, wbits=31)),
    "zstd": (".zst", _zstd),
}


class Encoding(ABC):
    """Encodes changes as pieces of objects, and pieces as the objects' bytes."""

    suffix: str
    """The suffix of objects' names."""

    @abstractmethod
    def at(self, position: Position) -> None:
        """Set the source, before the first event."""

    @abstractmethod
    def pieces(self, partition: Partition, changes: Sequence[Change]) -> Iterator[Piece]:
        """Encode changes of one partition.

        :raises DataError: if a column's bytes are invalid for its type.
        """

    @abstractmethod
    def finish(self, piece: Piece, chunks: Iterable[Any]) -> Iterator[bytes]:
        """Yield an object's bytes in parts. The same chunks give the same bytes.

        :param chunks: the piece's chunks as bytes, whether from memory or from the spool.
        """


class JsonLinesEncoding(Encoding):
    """One event per line, in any JSON format."""

    def __init__(self, format: str | Mapping[str, Any], values: Values, compression: str) -> None:  # noqa: A002
        if compression not in _COMPRESSORS:
            raise ConfigurationError(f"compression of JSON lines is none, gzip or zstd, not {compression!r}")
        if compression == "zstd" and zstd is None:
            raise ConfigurationError("compression zstd needs backports.zstd: pip install 'aiorepl[s3]'")
        ending, self._compressor = _COMPRESSORS[compression]
        self.suffix = ".jsonl" + ending
        self._named = partial(named, format, values=values)
        self._format = self._named()
        if not self._format.is_text or "json" not in self._format.content_type:
            raise ConfigurationError("objects contain JSON, one event per line: set a JSON format")

    def at(self, position: Position) -> None:
        self._format = self._named(position=position)

    def pieces(self, partition: Partition, changes: Sequence[Change]) -> Iterator[Piece]:
        split, event = self._format.split, self._format.event
        texts = [text for change in changes for part in split(change) for text in (event(part), b"\n")]
        if texts:
            count, data = len(texts) // 2, b"".join(texts)
            del texts  # a large event must not be in memory twice
            first, last = identity(changes[0]), identity(changes[-1])
            yield Piece(partition, None, [data], len(data), count, first, last)

    def finish(self, piece: Piece, chunks: Iterable[Any]) -> Iterator[bytes]:
        compressor = self._compressor(piece.size)
        for chunk in chunks:
            if compressed := compressor.compress(chunk):
                yield compressed
        yield compressor.flush()


class ParquetEncoding(Encoding):
    """One row per change, in typed columns (``aiorepl.formats.arrow.table``).

    :param row_group_bytes: the largest size of a row group, in memory and uncompressed.
    """

    suffix = ".parquet"

    def __init__(self, compression: str, row_group_bytes: int) -> None:
        try:
            with _system_allocator():
                self._arrow = import_module("aiorepl.formats.arrow.table")
        except ImportError:
            raise ConfigurationError("Parquet needs pyarrow: pip install 'aiorepl[parquet]'") from None
        if compression not in _CODECS:
            raise ConfigurationError(
                f"compression of Parquet is one of {', '.join(_CODECS)}, not {compression!r}"
            )
        self._compression = compression
        self._row_group_bytes = max(row_group_bytes, _MIN_ROW_GROUP_BYTES)
        # By a table's oid, its last layout and the Arrow table of that layout.
        self._tables: dict[int, tuple[Any, Any]] = {}

    def at(self, position: Position) -> None:
        self._tables = {}

    def pieces(self, partition: Partition, changes: Sequence[Change]) -> Iterator[Piece]:
        for table, run in self._runs(changes):
            batch = self._arrow.message_batch(run) if table is None else table.batch(run)
            first, last = identity(run[0]), identity(run[-1])
            # Serialized at once, so that the piece has the same size in memory and in the spool.
            message = memoryview(batch.serialize())
            yield Piece(partition, batch.schema, [message], len(message), len(run), first, last)

    def finish(self, piece: Piece, chunks: Iterable[Any]) -> Iterator[bytes]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink, pool = PartsFile(), pa.default_memory_pool()
        options: dict[str, Any] = {
            "compression": self._compression,
            "dictionary_pagesize_limit": _DICTIONARY_BYTES,
            "data_page_size": _PAGE_BYTES,
        }
        if piece.size > self._row_group_bytes:
            pool.release_unused()  # the piece's chunks are in the spool now
        # Buffered by Arrow, because each call of the Python file waits for the GIL.
        out = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), _BUFFER_BYTES)
        with pq.ParquetWriter(out, piece.shape, **options) as writer:
            batches: list[Any] = []
            size = 0
            for chunk in chunks:
                if batches and size + len(chunk) > self._row_group_bytes:
                    writer.write_table(pa.Table.from_batches(batches))
                    batches, size = [], 0
                    yield from sink.take()
                    pool.release_unused()
                batches.append(pa.ipc.read_record_batch(pa.py_buffer(chunk), piece.shape))
                size += len(chunk)
            if batches:
                writer.write_table(pa.Table.from_batches(batches))
        out.flush()
        yield from sink.take()

    def _runs(self, changes: Sequence[Change]) -> Iterator[tuple[Any, Sequence[Change]]]:
        """Split changes into runs of one Arrow table each; the table of messages is ``None``."""
        if isinstance(changes, TableRows):
            yield self._table(changes[0]), changes
            return
        table: Any = None
        layout: Any = None
        run: list[Change] = []
        for change in changes:
            if isinstance(change, RowChange) and change.layout is layout:
                run.append(change)
                continue
            if isinstance(change, SchemaChange):
                continue  # the file's schema has the new columns
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
        """Return the Arrow table of a change. Only rows have a layout, so the layout may be unknown at a truncate."""
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


@contextlib.contextmanager
def _system_allocator() -> Iterator[None]:
    """Make Arrow use the system's allocator, if it is first imported here.

    Its own allocator keeps several times the memory that is in use. A user who has imported Arrow before, or has set its
    environment variable, has chosen another one.
    """
    if _POOL in os.environ:
        yield
        return
    os.environ[_POOL] = "system"
    try:
        yield
    finally:
        del os.environ[_POOL]
