"""Spark reads a journal in an object store, and writes a table there."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pytest
from deltalake import DeltaTable

from aiorepl.history.opening import open_compaction
from aiorepl.journal import Cursors, JournalSink
from aiorepl.sink import Batch, SinkContext
from aiorepl.spark import apply_changes, changes
from aiorepl.spark.mirroring import reducing
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

SECRET = "test-secret"


def test_a_query_and_its_restarts(spark, bucket, layer, fault, tmp_path):
    """Queries read the journal with the options' credentials, which no plan, checkpoint or error shows, and survive an expired token."""
    place, stream = bucket.location(endpoint=layer.endpoint), Stream()
    table = stream.table("t", column("id", 23, key=True))

    async def append(*keys):
        sink = JournalSink(place)
        await sink.open(SinkContext("journal", stream.position))
        stream.transaction(*(table.insert(str(key)) for key in keys))
        await sink.write(Batch(tuple(stream.slices())))
        await sink.flush()
        await sink.close()

    options = {f"config.{name}": value for name, value in place.config.items()}
    options |= {"journal": place.url, "table": "public.t"}
    checkpoint, seen = tmp_path / "checkpoint", []

    def run():
        source = spark.readStream.format("aiorepl").options(**options, consumer="query").load()
        query = source.writeStream.foreachBatch(
            lambda frame, _: seen.extend(row["id"] for row in frame.collect())
        )
        query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        query.explain(extended=True)

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        asyncio.run(append(1, 2))
        run()
        asyncio.run(append(3))
        layer.faults.append(fault("GET", "segments/", status=400, code="ExpiredToken", times=1000))
        with pytest.raises(Exception, match="the session token has expired") as expired:
            run()
        layer.faults.clear()
        run()
        batch = spark.read.format("aiorepl").options(**options).load()
        assert [1, 2, 3] == sorted(row["id"] for row in batch.collect())
        batch.explain(extended=True)
        # Without the jars of its file system, Spark cannot read the history itself.
        open_compaction(place).run()
        assert [1, 2, 3] == sorted(row["id"] for row in changes(spark, place, "public.t").collect())

    assert [1, 2, 3] == seen
    assert Cursors(place).get("query").lsn
    assert "aiorepl" in said.getvalue()
    written = "".join(path.read_text(errors="replace") for path in checkpoint.rglob("*") if path.is_file())
    assert place.url in str(expired.value)
    assert SECRET not in said.getvalue() + written + repr(batch) + str(expired.value)


@pytest.mark.parametrize("most", [2**30, 0])
def test_staged_rows_of_a_table(spark, bucket, monkeypatch, most):
    """``apply_changes`` stages rows beside a table in an object store with ``storage_options``, and deletes the staged files."""
    monkeypatch.setattr(reducing, "DRIVER_BYTES", most)
    storage = {f"AWS_{name.upper()}": value for name, value in bucket.location().config.items()}
    storage |= {"aws_allow_http": "true", "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    target = f"{bucket.location().url}/lake/t"
    rows = spark.range(5).selectExpr(
        "id",
        "'insert' AS _op",
        "id AS _commit_lsn",
        "0L AS _ordinal",
        "cast(null AS array<string>) AS _unchanged",
    )
    apply_changes(rows, target, ["id"], storage_options=storage)
    found = DeltaTable(target, storage_options=storage).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == list(range(5))
    assert not [name for name in bucket.names() if "_staging" in name]
