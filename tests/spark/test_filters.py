"""Filters on metadata columns are applied by the source, exactly, and blocks outside of the positions are not read."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from aiorepl.formats.arrow.types import META
from aiorepl.lsn import LSN
from aiorepl.spark.reading.batch_reader import pushed
from aiorepl.spark.reading.source import FilteringDataSource
from aiorepl.testing.messages import column

pytestmark = pytest.mark.xdist_group("spark")

SCHEMA = pa.schema([pa.field("id", pa.int32()), *META])
POSITION, OP, TIME = ("_commit_lsn",), ("_op",), ("_commit_ts",)


def test_what_is_pushed() -> None:
    """Bounds come from the position; what is not exact, or not a metadata column, is left to Spark."""
    rest = [
        EqualTo(("id",), 1),
        Not(EqualTo(OP, "delete")),
        GreaterThan(TIME, dt.datetime(2026, 11, 22)),
        EqualTo(("_commit_lsn", "x"), 1),
    ]
    found = pushed([GreaterThan(POSITION, 4), LessThanOrEqual(POSITION, 8), *rest], SCHEMA, table=True)
    assert (found.after, found.until, found.rest) == (LSN(5), LSN(9), tuple(rest))
    assert (LSN(5), LSN(6)) == (
        pushed([EqualTo(POSITION, 5)], SCHEMA, table=True).after,
        pushed([EqualTo(POSITION, 5)], SCHEMA, table=True).until,
    )
    assert pushed([EqualTo(OP, "delete")], SCHEMA, table=False).wanted is None


def test_rows_and_blocks(journal) -> None:
    """The rows are those that Spark would select, from fewer blocks."""
    t = journal.stream.table("t", column("id", 23, key=True))
    for key in range(4):
        journal.stream.transaction(t.insert(str(key)), t.delete(str(key)))
    journal.write(block_bytes=1)
    source = FilteringDataSource(CaseInsensitiveDict({"path": str(journal.folder), "table": "public.t"}))

    def read(*filters):
        reader = source.reader(source.schema())
        assert () == reader.pushFilters(list(filters))
        partitions = reader.partitions()
        rows = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
        return rows, sum(len(span.blocks) for each in partitions for span in each.spans)

    whole, blocks = read()
    second = whole[2]["_commit_lsn"]
    assert ([row for row in whole if row["_commit_lsn"] >= second], True) == _fewer(
        read(GreaterThanOrEqual(POSITION, second)), blocks
    )
    assert ([row for row in whole if row["_commit_lsn"] < second], True) == _fewer(
        read(LessThan(POSITION, second)), blocks
    )
    assert read(LessThan(POSITION, 0)) == ([], 0)
    time = whole[4]["_commit_ts"]
    selected = read(In(OP, ("delete", "truncate")), IsNotNull(OP), GreaterThan(TIME, time))[0]
    assert selected == [row for row in whole if row["_op"] == "delete" and row["_commit_ts"] > time]


def _fewer(read, blocks):
    return read[0], read[1] < blocks


def test_spark_pushes_them(spark, journal) -> None:
    """Spark's plan has no filter of its own for what the source applies."""
    t = journal.stream.table("t", column("id", 23, key=True))
    journal.stream.transaction(t.insert("1"), t.insert("2"), t.delete("1"))
    journal.write()
    frame = journal.read(spark).where("_op = 'insert' AND _commit_lsn > 0 AND id > 1")
    assert [2] == [row["id"] for row in frame.collect()]
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "id" in plan.partition("Filter")[2].partition("\n")[0]
    assert "_op" not in plan.partition("Filter")[2].partition("\n")[0]
