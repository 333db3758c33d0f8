"""Health checks, metrics and status over HTTP."""

from __future__ import annotations

import asyncio
import json
import zlib

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from aiorepl import Pipeline
from aiorepl.monitoring import observe
from aiorepl.monitoring.app import status_app
from aiorepl.testing import MemorySink, MemorySource


async def test_a_pipeline_that_works(monitor):
    """It is alive and ready until it ends."""
    pipeline = Pipeline(MemorySource(), [MemorySink()])
    served = monitor(pipeline)
    assert (200, 503) == ((await served.get("/livez"))[0], (await served.get("/readyz"))[0])
    async with pipeline:
        assert (200, '{"ready":true,"problems":[],"warnings":[]}') == await served.get("/readyz")
        assert (200, '{"state":"running"}') == await served.get("/livez")
    assert (503, '{"state":"stopped"}') == await served.get("/livez")
    assert (
        503,
        '{"ready":false,"problems":["the pipeline is stopped"],"warnings":[]}',
    ) == await served.get("/readyz")


async def test_a_sink_that_has_stopped(troubled):
    """The pipeline is alive and not ready; the status says which sink, and what it does. No row is in any answer."""
    await troubled.until("/status", lambda text: '"stopped"' in text and '"retrying"' in text)
    code, text = await troubled.get("/readyz")
    assert 503 == code
    assert json.loads(text)["problems"][0].startswith("sink broken has stopped: refused")
    assert 200 == (await troubled.get("/livez"))[0]
    status = await troubled.status()
    assert {"journal": "running", "good": "running", "busy": "retrying", "broken": "stopped"} == {
        sink["name"]: sink["state"] for sink in status["sinks"]
    }
    assert "degraded" == status["state"]
    assert ["received", "accepted", "durable", "slowest sink"] == [rung["name"] for rung in status["ladder"]]
    for path in ("/", "/status", "/metrics", "/readyz"):
        assert "s3cret" not in (await troubled.get(path))[1]


async def test_metrics(troubled):
    """Prometheus and OpenTelemetry get the same numbers, under names that Prometheus accepts."""
    await troubled.until("/status", lambda text: '"stopped"' in text and '"retrying"' in text)
    families = {
        family.name: family for family in text_string_to_metric_families((await troubled.get("/metrics"))[1])
    }
    up = {each.labels["sink"]: each.value for each in families["aiorepl_sink_up"].samples}
    assert {"journal": 1.0, "good": 1.0, "busy": 1.0, "broken": 0.0} == up
    changes = {each.labels["sink"]: each.value for each in families["aiorepl_sink_changes"].samples}
    assert {"journal": 1.0, "good": 1.0, "busy": 0.0, "broken": 0.0} == changes

    reader = InMemoryMetricReader()
    observe(MeterProvider([reader]).get_meter("aiorepl"), troubled.pipeline)
    data = json.loads(reader.get_metrics_data().to_json())
    found = {
        metric["name"]: metric["data"]["data_points"]
        for metric in data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    }
    assert up == {point["attributes"]["sink"]: point["value"] for point in found["aiorepl_sink_up"]}
    writes = {
        each.labels["sink"]: each.value
        for each in families["aiorepl_sink_write_seconds"].samples
        if each.name.endswith("_count")
    }
    assert writes == {
        point["attributes"]["sink"]: point["value"] for point in found["aiorepl_sink_write_seconds_count"]
    }
    assert (1.0, 0.0) == (writes["good"], writes["busy"])
    assert {"memory"} == {point["attributes"]["pipeline"] for point in found["aiorepl_sink_changes"]}


@pytest.mark.parametrize("compressed", [False, True])
async def test_events(troubled, compressed):
    """The stream begins with the status, then has the lags and rates of the last day in parts, and goes on each second, with new
    marks. No proxy may keep it back.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", int(troubled.url.rpartition(":")[2]))
    accepted = b"Accept-Encoding: gzip, br\r\n" if compressed else b""
    writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n" + accepted + b"\r\n")
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).lower()
    assert b"x-accel-buffering: no" in head
    assert compressed == (b"content-encoding: gzip" in head)
    decompress = zlib.decompressobj(wbits=31).decompress if compressed else bytes
    text, events = b"", []
    while len([event for event in events if "name" in event]) < 2:
        size = int(await asyncio.wait_for(reader.readuntil(b"\r\n"), 60), 16)
        text += decompress((await reader.readexactly(size + 2))[:-2])
        events = [json.loads(line[6:]) for line in text.decode().split("\n\n") if line]
    writer.close()
    first, *parts, second = events
    names = {"journal", "good", "busy", "broken"}
    assert [(kind, level) for kind in ("lags", "rates") for level in range(3)] == [
        (part["history"]["kind"], part["history"]["level"]) for part in parts
    ]
    assert [names, names, names] == [set(part["history"]["values"]) for part in parts[:3]]
    assert ["start"] == [mark["kind"] for mark in first["marks"]]
    assert second["time"] > first["time"]
    assert [] == first["sinks"][0]["recent_lags"]


async def test_what_happens_before_anybody_looks():
    """The pipeline is observed as long as the application is served. Mounted in another application, which has the lifespan, it is
    observed from the first request on.
    """
    async with Pipeline(MemorySource(), [MemorySink()]) as pipeline:
        app = status_app(pipeline)

        def observed() -> bool:
            return any(task.get_name().startswith("aiorepl monitor") for task in asyncio.all_tasks())

        assert not observed()
        async with app.router.lifespan_context(app):
            assert observed()
        assert not observed()
