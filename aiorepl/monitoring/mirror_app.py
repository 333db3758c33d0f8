"""The ASGI application of ``aiorepl spark mirror --http``.

    /           the status page
    /events     its contents as server-sent events, one each second
    /status     the same once, as JSON
    /livez      200 while the process answers
    /readyz     200 while the query runs and the journal can be read, else 503 with the reasons
    /metrics    the metrics of the streaming queries, for Prometheus

Like the application for pipelines, it is read-only and has no authentication. It shows no row data.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aiorepl.monitoring.axis import Axis
from aiorepl.monitoring.mirror_status import mirror_status, problems
from aiorepl.monitoring.pages import EVENT_SECONDS, HEADERS, events, page, timed
from aiorepl.monitoring.prometheus import PrometheusCollector
from aiorepl.monitoring.trends import RESTART, Trends
from aiorepl.spark.mirroring.running import MirrorRunner
from aiorepl.spark.mirroring.statistics import MirrorStatistics
from aiorepl.spark.reading.listener import QueryListener


def mirror_app(runner: MirrorRunner, listener: QueryListener) -> Starlette:
    """Return the ASGI application for a mirror.

    :param listener: collects the statistics of the mirror's query.
    """
    monitor = _Monitor(runner, listener)
    handlers = {
        "/": monitor.page,
        "/events": monitor.events,
        "/status": monitor.status,
        "/livez": monitor.livez,
        "/readyz": monitor.readyz,
        "/metrics": monitor.metrics,
    }
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])


class _Monitor:
    """Observes a mirror once a second, from the first request on. All clients share this, because it reads the journal."""

    def __init__(self, runner: MirrorRunner, listener: QueryListener) -> None:
        self._runner = runner
        self._listener = listener
        self._trends = Trends()
        self._axis = Axis()
        self._registry = CollectorRegistry()
        self._registry.register(PrometheusCollector(listener))
        self._statistics: MirrorStatistics | None = None
        self._observing: asyncio.Task[None] | None = None
        self._began = time.monotonic()

    async def page(self, request: Request) -> Response:
        """Return the status page."""
        await self._observed()
        return page("mirror")

    async def events(self, request: Request) -> Response:
        """Stream the status, and at first the lags of the last day."""
        await self._observed()
        return events(request, self._describe, self._trends, self._axis)

    async def status(self, request: Request) -> Response:
        """Return the status once."""
        await self._observed()
        return JSONResponse(self._describe() | timed(self._axis), headers=HEADERS)

    async def livez(self, request: Request) -> Response:
        """Return 200: the process answers."""
        return JSONResponse({"alive": True}, headers=HEADERS)

    async def readyz(self, request: Request) -> Response:
        """Return whether the query runs and the journal can be read."""
        found = problems(await self._observed())
        return JSONResponse({"ready": not found, "problems": found}, 503 if found else 200, headers=HEADERS)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the format that the client accepts."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={**HEADERS, "Content-Type": content_type})

    async def _observed(self) -> MirrorStatistics:
        if self._statistics is None or self._observing is None or self._observing.done():
            statistics = await self._observe()
            if self._observing is None or self._observing.done():
                self._observing = asyncio.create_task(self._observe_always(), name="aiorepl mirror monitor")
            return statistics
        return self._statistics

    async def _observe_always(self) -> None:
        while True:
            await asyncio.sleep(EVENT_SECONDS)
            await self._observe()

    async def _observe(self) -> MirrorStatistics:
        self._statistics = statistics = await asyncio.to_thread(self._runner.statistics)
        lags = {} if statistics.bytes_behind is None else {"mirror": statistics.bytes_behind}
        self._trends.observe(
            self._axis.now(),
            lags,
            counts={RESTART: statistics.restarts},
            uptime_seconds=time.monotonic() - self._began,
        )
        return statistics

    def _describe(self) -> dict[str, Any]:
        assert self._statistics is not None
        query = self._listener.statistics().get(self._runner.query or "")
        return mirror_status(self._statistics, query)
