"""``changes``: a table's changes as one DataFrame.

Spark's own Parquet reader reads the compacted part, which has the transactions that ended up to an LSN. The data source reads
the tail, which begins there. The files and the end of the tail are planned once, so the DataFrame returns the same rows each
time it is used, and each row once. A pending file that is merged meanwhile is kept for a day.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Final, Literal, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import MapType, StringType, StructField, StructType

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.types import UNREPRESENTABLE
from aiorepl.formats.arrow.widening import casts
from aiorepl.history import HistoryFile, HistoryFiles
from aiorepl.journal.reader import JournalReader
from aiorepl.lsn import LSN
from aiorepl.spark.reading.columns import GONE
from aiorepl.spark.reading.compacted import covering
from aiorepl.spark.reading.described import Described, describe
from aiorepl.spark.reading.file_columns import FileColumns
from aiorepl.spark.reading.options import ReadOptions, journal_options, positions
from aiorepl.spark.reading.planner import CHOOSE_START, Planner, log_gaps
from aiorepl.spark.reading.schema import COMMIT_LSN, META, OP, UNCHANGED, described_schema, quoted
from aiorepl.storage.objects.location import ObjectStore

_MAP: Final = MapType(StringType(), StringType())
_PATTERN: Final = re.compile(r"[][{}*?\\]")
_LITERALS: Final = (bool, int, float, str, Decimal)
# Set here, because the session's setting could be LEGACY, which is for files of Spark 2.
_OPTIONS: Final = {"parquet.page.verify-checksum.enabled": "true", "datetimeRebaseMode": "CORRECTED"}
_NO_FILE_SYSTEM: Final = (
    "No FileSystem for scheme",
    "ClassNotFoundException",
    "UnsupportedFileSystemException",
)


@checked("changes", own=("spark",))
def changes(
    spark: SparkSession,
    journal: str | os.PathLike[str] | ObjectStore,
    table: str,
    *,
    start: str | LSN | None = None,
    end: str | LSN | None = None,
    keys: list[str] | tuple[str, ...] = (),
    schema: StructType | str | None = None,
    unrepresentable: Literal["error", "null"] = "error",
    drop: list[str] | tuple[str, ...] = (),
    mask: list[str] | tuple[str, ...] | Mapping[str, str] = (),
    keep: list[str] | tuple[str, ...] = (),
    secret: str | None = None,
    encryption_key: str | None = None,
) -> DataFrame:
    """Return a table's changes as ``format("aiorepl")`` does, but read the compacted part with Spark's own Parquet reader.

    A stream can continue from its end: pass ``end=position`` here, and ``.option("startingPosition", position)`` to the stream.

    :param journal: the folder or URL of the pipeline's journal.
    :param table: ``schema.table``.
    :param start: ``earliest``, or after an LSN; the default is the journal's beginning.
    :param end: up to an LSN; the default is the journal's end now.
    :param keys: the columns that identify a row under REPLICA IDENTITY FULL.
    :param schema: the columns to read, instead of the table's.
    :param unrepresentable: ``error`` or ``null``, for values that a column's type cannot hold.
    :param drop: the exact names ``schema.table.column`` of columns that are left out.
    :param mask: the exact names of columns that are masked, as in a sink's selection: a list, or a mapping to the methods.
    :param keep: patterns of columns that are neither dropped nor masked.
    :param secret: ``file:`` and the path of a file on the driver. The file contains the key of the masks.
    :param encryption_key: likewise, the key of the method ``encrypt``.
    :raises ConfigurationError: an option is malformed, or the table is not in the journal.
    :raises JournalError: the journal is damaged, or does not continue from ``start``.
    """
    quoted = ",".join('"' + key.replace('"', '""') + '"' for key in keys)
    masks = (
        [f"{pattern} = {method}" for pattern, method in mask.items()] if isinstance(mask, Mapping) else mask
    )
    given = {
        "table": table,
        "unrepresentable": unrepresentable,
        "keys": quoted,
        "drop": ",".join(drop),
        "mask": ",".join(masks),
        "keep": ",".join(keep),
        "secret": secret,
        "encryptionKey": encryption_key,
    }
    texts = journal_options(journal) | {name: text for name, text in given.items() if text}
    options = ReadOptions.parse(texts | positions(start, end))
    assert options.table is not None
    reader = JournalReader(options.journal)
    described = describe(reader, options.journal, options.table)
    if schema is not None:
        wanted = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    elif described is not None:
        wanted = described_schema(described.relation, described.kinds, options.selected)
    else:
        raise ConfigurationError(
            f"table {options.table} is not in the journal {reader.url}: wait for a change of it"
        )
    return _planned(spark, Planner(options, wanted), reader, described, texts, wanted)


def _planned(
    spark: SparkSession,
    planner: Planner,
    reader: JournalReader,
    described: Described | None,
    texts: Mapping[str, str],
    wanted: StructType,
) -> DataFrame:
    options = planner.options
    first = begin = planner.start(reader).lsn
    chain = planner.readable(reader, begin, "a new query", CHOOSE_START)
    last = planner.last(reader, chain)

    def source(begin: LSN, end: LSN) -> DataFrame:
        # Without a position, the source begins at the journal's beginning, or fails if the beginning was pruned. ``earliest``
        # would mean the oldest segment at the time of reading.
        between = positions(begin or None, end)
        return spark.read.format("aiorepl").schema(wanted).options(**texts, **between).load()

    parts: list[DataFrame] = []
    found = None
    if described is not None and options.table is not None and begin < last:
        found = covering(options.journal, options.table, chain, begin, last)
    if found is not None and described is not None:
        typed = planner.typed(reader)
        columns = [FileColumns(typed, file, described.types) for file in found.files]
        stop = min(found.end, last)
        native = LSN(max([begin, *_ends_of_others(found.files, columns)]))
        scans = _scans(spark, found, columns, wanted, native, stop, null=options.null)
        if scans is not None:
            if native > begin:
                parts.append(source(begin, min(native, stop)))
            log_gaps(chain, native, stop)
            parts += scans
            begin = stop
    if begin < last:
        parts.append(source(begin, last))
    return reduce(DataFrame.union, parts or [source(first, first)])


def _ends_of_others(files: Sequence[HistoryFile], columns: Sequence[FileColumns]) -> Iterator[LSN]:
    """Return the ends of the files that only the data source can read. Spark's reader reads the files after the last of these ends."""
    for file, each in zip(files, columns, strict=True):
        if not _native(each):
            yield LSN(file.last[0] + 1)


def _native(columns: FileColumns) -> bool:
    """Whether Spark's expressions give the same values as ``FileColumns.convert``."""
    names = [*columns.read, *columns.wanted.names]
    if columns.keys or len({name.lower() for name in names}) < len(set(names)):
        # To Spark's Parquet reader, names that differ only in case are one column.
        return False
    for wanted in columns.wanted:
        if columns.mask(wanted.name) is not None:
            # An expression of Spark that masks would show the key in the plan.
            return False
        if wanted.name in columns.indexes:
            found = columns.field(wanted.name).type
            # Spark casts a struct's fields by position, not by name.
            if found != wanted.type and (pa.types.is_nested(found) or not casts(found, wanted.type)):
                return False
        elif wanted.name in columns.missing and not isinstance(
            columns.missing[wanted.name][0].as_py(), _LITERALS
        ):
            return False
    return True


def _scans(
    spark: SparkSession,
    found: HistoryFiles,
    columns: Sequence[FileColumns],
    wanted: StructType,
    begin: LSN,
    end: LSN,
    *,
    null: bool,
) -> list[DataFrame] | None:
    """Read a history's rows from ``begin`` to ``end``; ``None`` if Spark has no file system for the files.

    :param columns: of each file.
    :param null: whether a value that its column's type cannot hold is null, and not an error.
    """
    versions: dict[tuple[tuple[bytes, ...], bytes], list[tuple[HistoryFile, FileColumns]]] = {}
    for file, each in zip(found.files, columns, strict=True):
        if file.last[0] >= begin:
            key = file.description, file.schema.serialize().to_pybytes()
            versions.setdefault(key, []).append((file, each))
    within = (f.col(COMMIT_LSN) >= int(begin)) & (f.col(COMMIT_LSN) < int(end))
    scans = [
        _scan(spark, found.url, [file for file, _ in pairs], pairs[0][1], wanted, within, null=null)
        for pairs in versions.values()
    ]
    return None if None in scans else [scan for scan in scans if scan is not None]


def _scan(
    spark: SparkSession,
    url: str,
    files: Sequence[HistoryFile],
    columns: FileColumns,
    wanted: StructType,
    within: Column,
    *,
    null: bool,
) -> DataFrame | None:
    """Read files of one version; ``None`` if Spark has no file system for them.

    :param within: the condition that selects the rows.
    """
    own = [
        StructField(columns.field(name).name, from_arrow_type(columns.field(name).type))
        for name in columns.indexes
    ]
    schema = StructType([*own, *META.fields]).add(UNREPRESENTABLE.name, _MAP)
    try:
        frame = spark.read.schema(schema).options(**_OPTIONS)
        read = frame.parquet(*(f"{_hadoop(url)}/{file.path}" for file in files)).where(within)
        assert read.schema
    except Exception as error:
        if "://" in url and any(text in str(error) for text in _NO_FILE_SYSTEM):
            return None
        raise
    if not null:
        names = [field.name for field in own]
        fits = f.col(UNREPRESENTABLE.name).isNull() | ~f.exists(
            f.map_keys(UNREPRESENTABLE.name), lambda name: name.isin(names)
        )
        refused = f.raise_error(
            f.lit(
                f"{columns.relation}: a value does not fit into its column's type: read the column as string with the data "
                "source, or set unrepresentable to null"
            )
        )
        # ``when``: Spark may evaluate conditions in any order, and a value that does not fit is no error outside the range.
        read = read.where(f.when(within, fits | refused.cast("boolean")))
    return read.select(*(_column(columns, field) for field in wanted.fields))


def _column(columns: FileColumns, field: StructField) -> Column:
    name = field.name
    if name in columns.indexes:
        found = f.col(quoted(columns.field(name).name))
    elif name in columns.missing:
        value = f.lit(columns.missing[name][0].as_py()).cast(field.dataType)
        found = f.when(~f.col(OP).isin(GONE.to_pylist()), value)
    elif name == UNCHANGED and columns.renamed:
        now = f.create_map(*(f.lit(each) for pair in columns.renamed.items() for each in pair))
        found = f.transform(f.col(UNCHANGED), lambda each: f.coalesce(now[each], each))
    elif name in META.names:
        found = f.col(name)
    else:
        found = f.lit(None)
    # The metadata columns need no cast: only their nullability differs, which Parquet does not store.
    converted = found if name in META.names else found.cast(field.dataType)
    return converted.alias(name, metadata=field.metadata or {})


def _hadoop(url: str) -> str:
    """Return the folder's URL for Spark's file systems, with the characters of glob patterns escaped."""
    scheme, mark, rest = _PATTERN.sub(r"\\\g<0>", url).partition("://")
    if not mark:
        return f"file:{scheme}"
    return f"{'s3a' if scheme == 's3' else scheme}://{rest}"
