"""``parquet``: rows in typed columns, in Parquet files in a folder.

It works as ``s3`` with ``files = "parquet"`` and a ``file://`` URL: files by table and date, each complete and fsynced before
it has its name, and a manifest that says which files count, and holds the position.

Each file has the columns of its table, with their types (``aiorepl.formats.arrow.types``). It also has ``_op``,
``_commit_lsn``, ``_ordinal``, ``_xid``, ``_commit_ts`` and ``_unchanged``, as the tables that Spark reads, and
``_unrepresentable``: by column, PostgreSQL's text of values that the column's type cannot represent, such as ``infinity``. A new
file begins when the table's columns change.

Guarantee: as ``s3``.

See ``docs/reference/sinks/parquet.md``.
"""

from __future__ import annotations

from pathlib import Path

from aiorepl.checked import checked
from aiorepl.sizes import Size, size_of
from aiorepl_sinks.objects.encodings import ParquetEncoding
from aiorepl_sinks.objects.folder import Folder
from aiorepl_sinks.objects.manifest import LAYOUT
from aiorepl_sinks.objects.sink import ObjectSink


@checked("parquet", zero=("memory_bytes",))
class ParquetSink(ObjectSink):
    """Options:

    :param path: the folder, which is created if it does not exist. Only one sink of one slot may use it.
    :param compression: ``"zstd"``, ``"snappy"``, ``"gzip"``, ``"lz4"``, ``"brotli"`` or ``"none"``.
    :param layout: a template for the folders of tables' files. It may name the date's folder differently, for tables that
        have a column ``date``.
    :param object_bytes: the largest size of a file, in memory and uncompressed.
    :param memory_bytes: the memory for unfinished files; the rest is in the spool. Also the largest size of a row group, in
        memory and uncompressed.
    :param spill_dir: the spool's folder; the system's temporary folder by default. The spool is an unnamed file.
    :param spill_bytes: the largest size of all unfinished files together; beyond it the largest are finished early.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        compression: str = "zstd",
        layout: str = LAYOUT,
        object_bytes: Size = 128 * 1024 * 1024,
        memory_bytes: Size = 4 * 1024 * 1024,
        spill_dir: str | Path | None = None,
        spill_bytes: Size = 1024 * 1024 * 1024,
    ) -> None:
        memory_bytes = size_of("parquet: memory_bytes", memory_bytes)
        super().__init__(
            Folder(Path(path)),
            ParquetEncoding(compression, memory_bytes),
            layout=layout,
            object_bytes=size_of("parquet: object_bytes", object_bytes),
            memory_bytes=memory_bytes,
            spill_dir=spill_dir,
            spill_bytes=size_of("parquet: spill_bytes", spill_bytes),
        )
