"""Reduces a micro-batch on the driver, or on executors if it is large, without collecting its rows through Spark.

Executors write the batch's rows once, to files in a staging folder, and Spark returns the names. The driver reads and reduces a
small batch. For a large one, executors read the files again, divide the rows by ranges of keys, reduce them, and write the parts to
files too. Each attempt at a task uses new file names, so files of failed attempts are never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from aiorepl.spark.lake.table import Mode, Part, Place, Truncate
from aiorepl.spark.mirroring.arrow_rows import map_rows
from aiorepl.spark.mirroring.limits import DRIVER_BYTES, PART_BYTES
from aiorepl.spark.mirroring.packing import pack, unpack
from aiorepl.spark.mirroring.ranges import Ranges, sample
from aiorepl.spark.mirroring.reduction import linked_keys, reduce_changes, truncates_of
from aiorepl.spark.mirroring.routes import Routes
from aiorepl.spark.mirroring.shuffle import COLUMNS, columns, divide

_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
_COLUMNS: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("truncates", pa.binary()),
        pa.field("linked", pa.binary()),
        pa.field("sample", pa.binary()),
    ]
)
_DDL: Final = "name string, size long, lsn long, ordinal long, truncates binary, linked binary, sample binary"


@dataclass(frozen=True, slots=True)
class Folder:
    """The staging folder; pickled to executors.

    :param url: a path or URL where executors can write.
    :param storage: deltalake's options, if the folder is in an object store; may contain credentials.
    """

    url: str
    storage: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        return f"<staging folder {self.url}>"

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> str:
        """Write rows to a new file, and return its name."""
        files = self._files()
        name = f"{uuid4().hex}.parquet"
        with (
            files.open_output_stream(name) as out,
            pq.ParquetWriter(out, schema, compression="lz4") as writer,
        ):
            for table in _row_groups(batches, schema):
                writer.write_table(table)
        return name

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        """Read a file, a row group in memory at a time."""
        with self._files().open_input_file(name) as opened:
            file = pq.ParquetFile(opened)
            for number in range(file.num_row_groups):
                yield from file.read_row_group(number).to_batches()

    def table(self, name: str) -> pa.Table:
        """Read a file."""
        with self._files().open_input_file(name) as opened:
            return pq.ParquetFile(opened).read()

    def clear(self) -> None:
        """Delete all files. Their batches were applied, or will be staged again."""
        files = self._files()
        for info in files.get_file_info(FileSelector("", allow_not_found=True)):
            if info.type == FileType.File:
                files.delete_file(info.path)

    def _files(self) -> PyFileSystem:
        if "://" not in self.url:
            path = Path(self.url)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
        storage = None if self.storage is None else dict(self.storage)
        return PyFileSystem(DeltaStorageHandler(self.url, storage))


class _Staged(NamedTuple):
    name: str
    size: int
    last: Place


class Batch(NamedTuple):
    """A batch that was reduced.

    :param last: the position of the last change; ``None``: the batch has no changes.
    """

    parts: Sequence[Part]
    truncates: tuple[Truncate, ...]
    last: Place | None


def reduce_batch(batch: DataFrame, folder: Folder, keys: Sequence[str], mode: Mode) -> Batch:
    """Read a batch once, and reduce it.

    :raises ConfigurationError: a key is null.
    """
    staged: list[_Staged] = []
    truncates: set[Truncate] = set()
    links: list[pa.Table] = []
    samples: list[pa.Array] = []
    for row in map_rows(batch, partial(_stage, folder, tuple(keys)), _DDL).collect():
        staged.append(_Staged(row.name, row.size, (row.lsn, row.ordinal)))
        truncates.update(_truncates(row.truncates))
        if row.linked is not None:
            links.append(unpack(row.linked))
        if row.sample is not None:
            samples.append(unpack(row.sample).column(0).combine_chunks())
    if not staged:
        return Batch((), (), None)
    last = max(each.last for each in staged)
    total = sum(each.size for each in staged)
    if mode == "changelog":
        parts = [Part(each.size, partial(folder.table, each.name)) for each in staged]
        return Batch(parts, tuple(sorted(truncates)), last)
    if total <= DRIVER_BYTES:
        rows = pa.concat_tables([folder.table(each.name) for each in staged])
        reduced = reduce_changes(rows, keys, mode, sorted(truncates))
        return Batch(reduced.parts(PART_BYTES), reduced.truncates, last)
    routes = Routes.of(links, keys)
    schema = StructType([*batch.schema.fields, *from_arrow_schema(COLUMNS).fields])
    count = -(-total // PART_BYTES)
    names = _names(batch.sparkSession, [each.name for each in staged])
    ranges = Ranges.of(samples, count)
    rows = names.mapInArrow(partial(_routed, folder, tuple(keys), routes, ranges), schema)
    divided = divide(rows, keys, count)
    found = sorted(truncates)
    reduce = partial(_reduce, folder, tuple(keys), mode, found)
    reduced_rows = map_rows(divided, reduce, _DDL).collect()
    parts = [Part(row.size, partial(folder.table, row.name)) for row in reduced_rows]
    return Batch(parts, tuple(found), last)


def _stage(
    folder: Folder, keys: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition to a file. Runs on executors."""
    size, last = 0, (0, 0)
    truncates: list[Truncate] = []
    links: list[pa.Table] = []
    samples: list[pa.Array] = []

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal size, last
        for batch in chain([first], batches):
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch])
            size += batch.nbytes
            last = max(last, _last(batch))
            truncates.extend(truncates_of(table))
            links.append(linked_keys(table, keys))
            samples.extend(sample(batch[name]) for name in keys[:1])
            yield batch

    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    name = folder.write(watched(), first.schema)
    linked = pa.concat_tables(links)
    sampled = pa.table({"keys": pa.concat_arrays(samples)}) if samples else None
    yield _described(name, size, last, truncates, linked if linked.num_rows else None, sampled=sampled)


def _routed(
    folder: Folder, keys: Sequence[str], routes: Routes, ranges: Ranges, names: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read files, and append the columns of ``shuffle``. Runs on executors."""
    for name in (name for batch in names for name in batch["name"].to_pylist()):
        for batch in folder.read(name):
            rows = batch.filter(pc.not_equal(batch["_op"], "truncate"))
            added = columns(rows, keys, routes, ranges)
            yield pa.RecordBatch.from_arrays(
                [*rows.columns, *added], schema=pa.schema([*rows.schema, *COLUMNS])
            )


def _reduce(
    folder: Folder,
    keys: Sequence[str],
    mode: Mode,
    truncates: Sequence[Truncate],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Reduce the changes of some keys, and write each part to a file of its own. Runs on executors."""
    waiting = [batch for batch in batches if batch.num_rows]
    if not waiting:
        return
    reduced = reduce_changes(pa.Table.from_batches(waiting), keys, mode, truncates)
    waiting.clear()
    for part in reduced.parts(PART_BYTES):
        table = part.read()
        name = folder.write(table.to_batches(), table.schema)
        yield _described(name, part.size, (0, 0), (), None)


def _last(batch: pa.RecordBatch) -> Place:
    lsn = pc.max(batch["_commit_lsn"])
    newest = batch.filter(pc.equal(batch["_commit_lsn"], lsn))
    return lsn.as_py(), pc.max(newest["_ordinal"]).as_py()


def _described(
    name: str,
    size: int,
    last: Place,
    truncates: Sequence[Truncate],
    linked: pa.Table | None,
    sampled: pa.Table | None = None,
) -> pa.RecordBatch:
    arrow = pa.Table.from_pylist([each._asdict() for each in truncates], schema=_TRUNCATES)
    row = {
        "name": name,
        "size": size,
        "lsn": last[0],
        "ordinal": last[1],
        "truncates": pack(arrow),
        "linked": None if linked is None else pack(linked),
        "sample": None if sampled is None else pack(sampled),
    }
    return pa.RecordBatch.from_pylist([row], schema=_COLUMNS)


_TRUNCATES: Final = pa.schema(
    [
        pa.field("lsn", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
    ]
)


def _truncates(data: bytes) -> list[Truncate]:
    return [Truncate(**row) for row in unpack(data).to_pylist()]


def _names(spark: SparkSession, names: Sequence[str]) -> DataFrame:
    """Return a DataFrame of names, with a partition for each name."""
    rows = spark.createDataFrame([(name,) for name in names], "name string")
    return rows.repartition(len(names), "name")


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)
