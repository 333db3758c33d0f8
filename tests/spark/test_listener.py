"""Spark's progress reports say how far a query is behind, and the listener collects them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import IntegerType, StructType

from aiorepl.journal import JournalReader
from aiorepl.monitoring import PrometheusCollector, observe
from aiorepl.spark import QueryListener
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.stream_reader import StreamReader
from aiorepl.testing.messages import column

pytestmark = pytest.mark.xdist_group("spark")

ID = column("id", 23, key=True)


def append(journal: Any, key: int) -> None:
    journal.stream.transaction(journal.stream.table("t", ID).insert(str(key)))
    journal.write()


def test_the_lag(journal) -> None:
    """The report has the journal's end, and the bytes and the age of what the query has not planned yet."""
    append(journal, 1)
    append(journal, 2)
    options = ReadOptions.parse({"journal": str(journal.folder), "table": "public.t"})
    reader = StreamReader(options, StructType().add("id", IntegerType()))
    first = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1))
    report = reader.reportLatestOffset()
    assert report["lsn"] == str(journal.stream.ends[-1])
    assert report["numBytesOutstanding"] == JournalReader(journal.folder).segments()[1].size
    assert 0 <= report["maxMsBehindLatest"] < 600_000
    reader.latestOffset(first, ReadMaxBytes(1))
    assert (0, 0) == tuple(
        reader.reportLatestOffset()[name] for name in ("numBytesOutstanding", "maxMsBehindLatest")
    )


def test_a_query_and_its_end(spark, journal, tmp_path) -> None:
    """The listener has each query's position and rows, and the first line of the error that ended it."""
    listener = QueryListener()
    spark.streams.addListener(listener)
    try:
        append(journal, 1)
        query = journal.read(spark, stream=True).writeStream.format("noop").queryName("orders")
        query = query.option("checkpointLocation", str(tmp_path / "c")).start()
        query.processAllAvailable()
        (journal.folder / "position.json").unlink()
        with pytest.raises(Exception, match=r"position\.json"):
            query.awaitTermination(240)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)
        (found,) = (each for each in listener.statistics().values() if each.name == "orders")
    finally:
        spark.streams.removeListener(listener)
    assert (found.position, found.end, found.rows, found.batch) == (
        journal.stream.ends[0],
        journal.stream.ends[0],
        1,
        0,
    )
    assert (found.bytes_behind, found.running) == (0, False)
    assert found.error is not None
    assert found.error.startswith("DamagedJournal: position.json")
    assert "\n" not in found.error
    exported(listener)


def exported(listener: QueryListener) -> None:
    """Prometheus and OpenTelemetry have the numbers of the ended query."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    registry.register(PrometheusCollector(listener))
    up, rows = (
        registry.get_sample_value(f"aiorepl_spark_query_{name}", {"query": "orders"})
        for name in ("up", "rows_total")
    )
    assert (up, rows) == (0, 1)
    observe(MeterProvider([reader]).get_meter("aiorepl"), listener)
    data = json.loads(reader.get_metrics_data().to_json())
    metrics = data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    points = {each["name"]: each["data"]["data_points"] for each in metrics}
    (lag,) = (
        each for each in points["aiorepl_spark_query_lag_bytes"] if each["attributes"]["query"] == "orders"
    )
    assert lag["value"] == 0
