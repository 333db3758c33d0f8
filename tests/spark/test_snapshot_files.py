"""The files of a new Delta table, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from aiorepl import ConfigurationError
from aiorepl.spark.snapshot_files import DeltaFiles

ROWS = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "v": pa.array(["a", None])})


def test_an_empty_table_of_the_same_columns(tmp_path):
    """It is used, as after a job that failed; once it has rows it is not."""
    target = str(tmp_path / "t")
    files = DeltaFiles(target, ROWS.schema, None)
    files.create()
    files.create()
    written = files.write([ROWS])
    assert written is not None
    files.commit([written])
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
        DeltaFiles(target, ROWS.schema, None).create()
