"""Engines read a history's files without aiorepl: Spark's own Parquet reader, and Arrow's datasets."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from aiorepl import history
from aiorepl.formats.arrow.types import arrow_type
from aiorepl.history.buffers import Bounds
from aiorepl.history.compaction import Compaction
from aiorepl.history.planning import Limits
from aiorepl.journal import Cursors, JournalReader
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column
from aiorepl.values.registry import Types

pytestmark = pytest.mark.xdist_group("spark")

COLUMNS = [
    column("id", 20, key=True),
    column("n", 23),
    column("name"),
    column("price", 1700, type_modifier=(12 << 16 | 2) + 4),
    column("big", 1700, type_modifier=(50 << 16 | 2) + 4),
    column("at", 1184),
    column("local", 1114),
    column("day", 1082),
    column("ok", 16),
    column("f", 701),
    column("clock", 1083),
    column("list", 1007),
    column("data", 17),
]
VALUES = [
    "1", "7", "ü", "12.50", "1.00", "2026-11-22 10:00:00+00", "2026-11-22 10:00:00", "1500-02-03", "t", "NaN", "24:00:00",
    "{1,NULL}", "\\x00ff",
]  # fmt: skip


def compact(journal, bounds: Bounds | None = None) -> list[str]:
    """Compact and publish everything, and return the paths of the table's files."""
    store = LocalStore(journal.folder)
    limits = Limits(publish_after=0)
    Compaction(
        JournalReader(store), store.within("history"), Cursors(store), limits=limits, bounds=bounds
    ).run()
    found = history.files(str(journal.folder), "public", "t")
    return [f"{found.url}/{file.path}" for file in found.files]


def test_spark_reads_every_type(spark, journal):
    """The types are those of the source, and the values are PostgreSQL's."""
    t = journal.stream.table("t", *COLUMNS, replica_identity="f")
    odd = ["2", *[None] * 4, "infinity", None, "infinity", *[None] * 5]
    journal.stream.transaction(t.insert(*VALUES), t.insert(*odd), t.update(*odd, old=VALUES))
    journal.write()
    compact(journal)

    frame = spark.read.parquet(f"{journal.folder}/history/*.t")

    types = [from_arrow_type(arrow_type(each.type_oid, each.type_modifier, Types())) for each in COLUMNS]
    assert [field.dataType for field in frame.schema][: len(COLUMNS)] == types
    whole, unfit, updated = frame.orderBy("_ordinal").collect()
    read = whole.asDict()
    assert [read[name] for name in ("id", "n", "name", "price", "big", "local", "day", "ok", "clock", "list", "data")] == [
        1, 7, "ü", Decimal("12.50"), "1.00", datetime(2026, 11, 22, 10), date(1500, 2, 3), True, "24:00:00", [1, None],
        b"\x00\xff",
    ]  # fmt: skip
    assert read["at"].astimezone(UTC) == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert read["f"] != read["f"]
    assert whole["_unrepresentable"] is None
    assert unfit["_unrepresentable"] == {"at": "infinity", "day": "infinity"}
    assert updated["_before"]["price"] == Decimal("12.50")


def test_columns_and_positions_are_pushed_down(spark, journal, monkeypatch):
    """A query of some columns and positions reads these columns of the row groups with these positions."""
    monkeypatch.setattr("aiorepl.history.parquet.ROW_GROUP_BYTES", 20_000)
    t = journal.stream.table("t", *COLUMNS)
    ends = [
        journal.stream.transaction(*(t.insert(str(n * 100 + row), *VALUES[1:]) for row in range(100)))
        for n in range(10)
    ]
    journal.write(block_bytes=5000)
    paths = compact(journal, Bounds(batch_bytes=5000))

    found = ds.dataset(paths)
    wanted = pc.field("_commit_lsn") >= int(ends[7])
    (fragment,) = found.get_fragments()
    groups, all_groups = fragment.split_by_row_group(wanted), fragment.split_by_row_group()
    assert len(all_groups) >= 5
    assert len(groups) < len(all_groups) / 2
    assert found.to_table(columns=["id"], filter=wanted)["id"].to_pylist() == list(range(800, 1000))

    frame = spark.read.parquet(*paths)
    query = frame.where(frame["_commit_lsn"] >= int(ends[7])).select("id")
    with redirect_stdout(io.StringIO()) as plan:
        query.explain()
    assert re.search(r"PushedFilters: \[.*GreaterThanOrEqual\(_commit_lsn", plan.getvalue())
    assert "ReadSchema: struct<id:bigint,_commit_lsn:bigint>" in plan.getvalue()
    assert sorted(row["id"] for row in query.collect()) == list(range(800, 1000))
