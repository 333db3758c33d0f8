"""Reduces the changes of one table on executors, for a batch that is too large for the driver.

Executors read the staged files and shuffle the rows by ranges of keys. Then each executor has all changes of some keys, reduces
them, and writes the result to a file in the staging folder: one part for the table's merge. If a row moved and lacks a value,
the changes of its old and of its new key go to the same executor. The driver gets descriptions, and a sample of the keys.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from aiorepl.history import parquet
from aiorepl.history.manifest import File
from aiorepl.spark.lake.table import Part, Truncate
from aiorepl.spark.mirroring.arrow_rows import map_rows
from aiorepl.spark.mirroring.changes import Changes, truncate_at, truncates_of
from aiorepl.spark.mirroring.limits import PART_BYTES
from aiorepl.spark.mirroring.packing import pack, unpack
from aiorepl.spark.mirroring.ranges import Ranges, sample
from aiorepl.spark.mirroring.reduction import reduce_changes
from aiorepl.spark.mirroring.routes import Routes
from aiorepl.spark.mirroring.shuffle import COLUMNS, columns, divide
from aiorepl.spark.mirroring.staging import SUFFIX, StagedFile
from aiorepl.storage.opening import open_store
from aiorepl.storage.store import Store

_SAMPLE: Final = pa.schema([pa.field("keys", pa.binary())])
_FOUND: Final = pa.schema([pa.field("truncates", pa.binary()), pa.field("keys", pa.binary())])
_PART: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("digest", pa.string()),
        pa.field("memory", pa.int64()),
    ]
)


def parts(
    spark: SparkSession, wanted: Changes, files: Sequence[StagedFile], truncates: Sequence[Truncate]
) -> tuple[list[Part], list[Truncate]]:
    """Reduce the changes of a table on executors; return the parts and all truncates, ascending.

    :param truncates: the truncates of files that are not in ``files``.
    """
    store = open_store(wanted.staging)
    if wanted.mode == "changelog":
        # A changelog keeps every change, so no shuffle is needed.
        return [Part(file.memory, partial(_table, wanted, file)) for file in files], []
    found = {Truncate(*each) for each in truncates}
    links: list[pa.Table] = []
    unknown = [file for file in files if file.compacted or file.moves]
    for file in files:
        if not file.compacted:
            found |= set(truncates_of(file))
    scanned = (
        _frame(spark, unknown).mapInArrow(_scanning(wanted), _schema(_FOUND)).collect() if unknown else []
    )
    for row in scanned:
        found |= {truncate_at(*each) for each in orjson.loads(bytes(row["truncates"]))}
        links.append(unpack(row["keys"]))
    routes = Routes.of((each for each in links if each.num_rows), wanted.keys)
    ascending = sorted(found)
    count = max(1, -(-sum(file.memory for file in files) // PART_BYTES))
    ranges = _ranges(spark, wanted, files, count)
    rows = _frame(spark, files).mapInArrow(_reading(wanted, routes, ranges), _schema(_routed(wanted)))
    divided = divide(rows, wanted.keys, count)
    reduced = map_rows(divided, _reducing(wanted, ascending), _schema(_PART))
    return [_part(store, *row) for row in reduced.collect()], ascending


def _ranges(spark: SparkSession, wanted: Changes, files: Sequence[StagedFile], count: int) -> Ranges:
    rows = _frame(spark, files).mapInArrow(_sampling(wanted), _schema(_SAMPLE)).collect()
    return Ranges.of([unpack(row["keys"]).column(0).combine_chunks() for row in rows], count)


def _frame(spark: SparkSession, files: Sequence[StagedFile]) -> DataFrame:
    rows = [(file.to_json(),) for file in files]
    return spark.createDataFrame(rows, "content binary").repartition(max(1, len(rows)))


def _scanning(wanted: Changes) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in _files(batches):
            truncates, keys = wanted.scan(file)
            row = [[orjson.dumps(truncates)], [pack(keys)]]
            yield pa.RecordBatch.from_arrays([pa.array(each, pa.binary()) for each in row], schema=_FOUND)

    return scan


def _sampling(wanted: Changes) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    field = wanted.common.rows.field(wanted.keys[0])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in _files(batches):
            keys = [sample(batch.column(field.name)) for batch in wanted.rows(file)]
            found = pa.table({field.name: pa.chunked_array(keys, field.type)})
            yield pa.RecordBatch.from_arrays([pa.array([pack(found)], pa.binary())], schema=_SAMPLE)

    return read


def _reading(
    wanted: Changes, routes: Routes, ranges: Ranges
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    schema = _routed(wanted)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in _files(batches):
            for found in wanted.rows(file):
                rows = found.filter(pc.not_equal(found.column("_op"), "truncate"))
                added = columns(rows, wanted.keys, routes, ranges)
                yield pa.RecordBatch.from_arrays([*rows.columns, *added], schema=schema)

    return read


def _reducing(
    wanted: Changes, truncates: Sequence[Truncate]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def reduce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        rows = pa.Table.from_batches(found).cast(wanted.common.rows)
        table = reduce_changes(rows, wanted.keys, wanted.mode, truncates).table
        if table.num_rows:
            yield _write(open_store(wanted.staging), table)

    return reduce


def _write(store: Store, table: pa.Table) -> pa.RecordBatch:
    """Write a part, and return its description."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    data, name = sink.getvalue(), f"{uuid4().hex}{SUFFIX}"
    store.write(name, data)
    described = [name, len(data), parquet.digest_of(data), table.nbytes]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(described, _PART, strict=True)], schema=_PART
    )


def _part(store: Store, name: str, size: int, digest: str, memory: int) -> Part:
    file = File(name, 0, 0, size, (0, 0), (0, 0), 0, digest)

    def read() -> pa.Table:
        return pq.read_table(io.BytesIO(parquet.read(store, file)))

    return Part(memory, read)


def _table(wanted: Changes, file: StagedFile) -> pa.Table:
    table = pa.Table.from_batches(wanted.rows(file), schema=wanted.common.rows)
    return reduce_changes(table, wanted.keys, wanted.mode).table


def _files(batches: Iterable[pa.RecordBatch]) -> Iterator[StagedFile]:
    for batch in batches:
        yield from map(StagedFile.from_json, batch.column("content").to_pylist())


def _routed(wanted: Changes) -> pa.Schema:
    return pa.schema([*wanted.common.rows, *COLUMNS])


def _schema(arrow: pa.Schema) -> Any:
    return from_arrow_schema(arrow)
