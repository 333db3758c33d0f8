"""``parquet``: rows in typed columns, in Parquet files of a folder.

What ``s3`` does with ``files = "parquet"`` and a ``file://`` URL: files by table and date, each under its name only when
it is whole and fsynced, and a manifest that says which files count and up to where the stream is in them.

Each file has the columns of its table, in types of their own (``aiorepl.formats.arrow.types``), and ``_op``,
``_commit_lsn``, ``_ordinal``, ``_xid``, ``_commit_ts``, ``_unchanged`` as in the tables that Spark reads, and
``_unrepresentable``: PostgreSQL's text of values that their column's type cannot hold, as ``infinity``, by column. A new
file begins when the table's columns change.

Guarantee: as ``s3``.
"""

from __future__ import annotations

from pathlib import Path

from aiorepl_sinks.objects.encodings import ParquetEncoding
from aiorepl_sinks.objects.folder import Folder
from aiorepl_sinks.objects.manifest import LAYOUT
from aiorepl_sinks.objects.sink import ObjectSink


class ParquetSink(ObjectSink):
    """Options:

    :param path: the folder; it is made if it is missing. It belongs to one sink of one slot.
    :param compression: ``"zstd"``, ``"snappy"``, ``"gzip"``, ``"lz4"``, ``"brotli"`` or ``"none"``.
    :param layout: where a table's files are. A table with a column ``date`` may want another name there.
    :param object_bytes: begin a new file before this much is in one, as it is in memory, uncompressed.
    :param memory_bytes: what of unfinished files is kept in memory; the rest goes to ``spill_dir``. As much is in a row
        group of Parquet, as it is in memory, uncompressed.
    :param spill_dir: the folder for that, in a file that has no name there; the system's temporary folder unless given.
    :param spill_bytes: what all unfinished files together may be; the largest are finished early.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        compression: str = "zstd",
        layout: str = LAYOUT,
        object_bytes: int = 128 * 1024 * 1024,
        memory_bytes: int = 4 * 1024 * 1024,
        spill_dir: str | Path | None = None,
        spill_bytes: int = 1024 * 1024 * 1024,
    ) -> None:
        super().__init__(
            Folder(Path(path)),
            ParquetEncoding(compression, memory_bytes),
            layout=layout,
            object_bytes=object_bytes,
            memory_bytes=memory_bytes,
            spill_dir=spill_dir,
            spill_bytes=spill_bytes,
        )
