"""A journal in an object store, read by Spark."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pytest

from aiorepl.history.opening import open_compaction
from aiorepl.journal import Cursors, JournalSink
from aiorepl.sink import Batch, SinkContext
from aiorepl.spark import changes
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
