"""What an object is written as: JSON lines, or Parquet with the tables' own columns. Pure."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

from aiorepl import Change, ConfigurationError, Position, RowChange, SchemaChange, Truncate
from aiorepl.formats import named
from aiorepl_sinks.objects.buffer import Partition, Piece, identity

zstd: Any = None
with contextlib.suppress(ImportError):  # the parquet extra does without
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

_CODECS: Final = ("none", "gzip", "zstd", "snappy", "lz4", "brotli")
_ROW_GROUP_BYTES_AT_LEAST: Final = 1024 * 1024
# Of a column with more different values than fit in that no dictionary is made: it is memory and time, and hardly ever
# less space.
_DICTIONARY_BYTES: Final = 16 * 1024
# Smaller than Arrow's own, 1 MiB: of each column one is in memory, plain and compressed.
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
    made: _Compressor = zstd.ZstdCompressor()
    # It stands in front then, and there are readers that ask for it.
    made.set_pledged_input_size(size)  # type: ignore[attr-defined]
    return made


_COMPRESSORS: Final[Mapping[str, tuple[str, Callable[[int], _Compressor]]]] = {
    "none": ("", lambda _: _Uncompressed()),
    "gzip": (".gz", lambda _: zlib.compressobj(6, wbits=31)),
    "zstd": (".zst", _zstd),
}


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
    def finish(self, piece: Piece, chunks: Iterable[Any]) -> Iterator[bytes]:
        """An object's bytes, bit by bit: the same for the same chunks.

        :param chunks: those of the piece, wherever they were.
        """


class JsonLinesEncoding(Encoding):
    """Events of any format of JSON, one a line."""

    def __init__(self, format: str | Mapping[str, Any], values: str, compression: str) -> None:  # noqa: A002
        if compression not in _COMPRESSORS:
            raise ConfigurationError(
                f"JSON lines have no compression {compression!r}: it is none, gzip or zstd"
            )
        if compression == "zstd" and zstd is None:
            raise ConfigurationError("compression zstd needs backports.zstd: pip install 'aiorepl[s3]'")
        ending, self._compressor = _COMPRESSORS[compression]
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

    def finish(self, piece: Piece, chunks: Iterable[Any]) -> Iterator[bytes]:
        compressor = self._compressor(piece.size)
        for chunk in chunks:
            if compressed := compressor.compress(chunk):
                yield compressed
        yield compressor.flush()


class ParquetEncoding(Encoding):
    """Rows in columns of their own; ``aiorepl.formats.arrow.table`` says which types they have.

    :param row_group_bytes: begin a new row group before this much is in one, as it is in memory.
    """

    suffix = ".parquet"

    def __init__(self, compression: str, row_group_bytes: int) -> None:
        try:
            with _plain_memory():
                self._arrow = import_module("aiorepl.formats.arrow.table")
        except ImportError:
            raise ConfigurationError("Parquet needs pyarrow: pip install 'aiorepl[parquet]'") from None
        if compression not in _CODECS:
            raise ConfigurationError(
                f"Parquet has no compression {compression!r}: it is {', '.join(_CODECS)}"
            )
        self._compression = compression
        self._row_group_bytes = max(row_group_bytes, _ROW_GROUP_BYTES_AT_LEAST)
        # By oid, the layout that was seen last and what it makes.
        self._tables: dict[int, tuple[Any, Any]] = {}

    def at(self, position: Position) -> None:
        self._tables = {}

    def pieces(self, partition: Partition, changes: Sequence[Change]) -> Iterator[Piece]:
        for table, run in self._runs(changes):
            batch = self._arrow.message_batch(run) if table is None else table.batch(run)
            first, last = identity(run[0]), identity(run[-1])
            # As a message: then it is as large as it is said to be, in memory and in the spool.
            message = memoryview(batch.serialize())
            yield Piece(partition, batch.schema, [message], len(message), len(run), first, last)

    def finish(self, piece: Piece, chunks: Iterable[Any]) -> Iterator[bytes]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        written, pool = _Written(), pa.default_memory_pool()
        options: dict[str, Any] = {
            "compression": self._compression,
            "dictionary_pagesize_limit": _DICTIONARY_BYTES,
            "data_page_size": _PAGE_BYTES,
        }
        if piece.size > self._row_group_bytes:
            pool.release_unused()  # what was gathered is in the spool now
        # Gathered on Arrow's side: each call of ours waits until it is this thread's turn to run Python.
        out = pa.BufferedOutputStream(pa.PythonFile(written, "w"), _BUFFER_BYTES)
        with pq.ParquetWriter(out, piece.shape, **options) as writer:
            batches: list[Any] = []
            size = 0
            for chunk in chunks:
                if batches and size + len(chunk) > self._row_group_bytes:
                    writer.write_table(pa.Table.from_batches(batches))
                    batches, size = [], 0
                    yield from written.taken()
                    pool.release_unused()
                batches.append(pa.ipc.read_record_batch(pa.py_buffer(chunk), piece.shape))
                size += len(chunk)
            if batches:
                writer.write_table(pa.Table.from_batches(batches))
        out.flush()
        yield from written.taken()

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


@contextlib.contextmanager
def _plain_memory() -> Iterator[None]:
    """Have Arrow, if it is imported here, take its memory as Python does: what it brings along keeps several times what
    we ever use at once. Whoever has imported it before, or has set its variable, has chosen.
    """
    if _POOL in os.environ:
        yield
        return
    os.environ[_POOL] = "system"
    try:
        yield
    finally:
        del os.environ[_POOL]


class _Written(io.RawIOBase):
    """A file that is taken away as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> list[bytes]:
        """What was written since this was asked last."""
        taken, self._parts = self._parts, []
        return taken
