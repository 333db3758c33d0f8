"""The files of a new Delta table, without Spark."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema

from aiorepl import ConfigurationError
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.snapshot.chunks import DeltaFiles

DECIMALS = {"n": pa.decimal128(9, 2), "d": pa.decimal128(18, 0), "h": pa.decimal128(38, 5)}
ROWS = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "v": pa.array(["a", None])})


def test_an_empty_table_of_the_same_columns(tmp_path):
    """It is used, as after a job that failed; once it has rows it is not."""
    target = str(tmp_path / "t")
    files = DeltaFiles(DeltaFolder(target), ROWS.schema)
    files.create()
    files.create()
    files.commit(files.write([ROWS]))
    assert ROWS.to_pylist() == DeltaTable(target).to_pyarrow_table().to_pylist()
    with pytest.raises(ConfigurationError, match="has rows already"):
        files.create()


@pytest.mark.parametrize(
    ("fields", "partitions"),
    [
        ([("id", pa.int32()), ("other", pa.string())], None),
        ([("id", pa.int32()), ("v", pa.string()), ("w", pa.string())], None),
        ([("id", pa.int64()), ("v", pa.string())], None),
        ([("id", pa.int32()), ("v", pa.string())], ["id"]),
    ],
    ids=["other name", "more columns", "other type", "partitioned"],
)
def test_an_empty_table_of_other_columns(tmp_path, fields, partitions):
    """It is refused, because the columns that it lacks would be lost."""
    target = str(tmp_path / "t")
    DeltaTable.create(target, schema=Schema.from_arrow(pa.schema(fields)), partition_by=partitions)
    with pytest.raises(ConfigurationError, match="other columns than the snapshot, or partitions: delete it"):
        DeltaFiles(DeltaFolder(target), ROWS.schema).create()


def test_tasks_that_fail_or_run_twice(tmp_path):
    """The table has the files that are committed, and no other that a task has left behind."""
    target = str(tmp_path / "t")
    files = DeltaFiles(DeltaFolder(target), ROWS.schema)
    files.create()

    def fails():
        yield ROWS
        raise ConnectionError

    with pytest.raises(ConnectionError):
        files.write(fails())
    _, [again] = files.write([ROWS]), files.write([ROWS])
    files.commit([again])
    assert ROWS.to_pylist() == DeltaTable(target).to_pyarrow_table().to_pylist()
    assert {again.path} == {Path(uri).name for uri in DeltaTable(target).file_uris()}


def test_the_columns_of_a_file(tmp_path):
    """Decimals of up to 18 digits are integers, and texts have no statistics."""
    rows = pa.record_batch(
        {
            "t": pa.array(["a", "b"]),
            **{name: pa.array([Decimal(-7), None], kind) for name, kind in DECIMALS.items()},
        }
    )
    files = DeltaFiles(DeltaFolder(str(tmp_path / "t")), rows.schema)
    files.create()
    [written] = files.write([rows])
    group = pq.ParquetFile(tmp_path / "t" / written.path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert ["BYTE_ARRAY", "INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"] == [
        each.physical_type for each in columns
    ]
    assert [False, True, True, True] == [each.is_stats_set for each in columns]
    files.commit([written])
    assert rows.to_pylist() == DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
