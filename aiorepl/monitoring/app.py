"""The ASGI application: health checks, metrics and the status page of a pipeline.

    /           the status page
    /events     its contents as server-sent events, one each second
    /status     the same once, as JSON
    /livez      200, or 503 once the pipeline has ended
    /readyz     200 while the pipeline makes progress, else 503 with the reasons; also warnings
    /metrics    for Prometheus

The application is read-only, except for further routes, and has no authentication: everybody who can reach the address sees table
names, positions and errors, but no row data. Serve it on a loopback address, or behind a proxy that authenticates.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aiorepl.cancellation import cancel_and_wait
from aiorepl.monitoring.axis import Axis
from aiorepl.monitoring.pages import EVENT_SECONDS, HEADERS, events, page, timed
from aiorepl.monitoring.progress import Readiness, alive
from aiorepl.monitoring.prometheus import PrometheusCollector
from aiorepl.monitoring.rates import Rates
from aiorepl.monitoring.status import status
from aiorepl.monitoring.trends import RECONNECT, Trends
from aiorepl.monitoring.watch import Watch
from aiorepl.pipeline.pipeline import Pipeline


def status_app(pipeline: Pipeline, more: Sequence[Route] = ()) -> Starlette:
    """Return the ASGI application for a pipeline. Mount it in another one, or serve it with any ASGI server.

    :param more: further routes, such as those of ``aiorepl run`` that change the pipeline.
    """
    monitor = _Monitor(pipeline)
    return Starlette(
        routes=[
            Route("/", monitor.page),
            Route("/events", monitor.events),
            Route("/status", monitor.status),
            Route("/livez", monitor.livez),
            Route("/readyz", monitor.readyz),
            Route("/metrics", monitor.metrics),
            *more,
        ],
        lifespan=monitor.lifespan,
    )


class _Monitor:
    """Observes a pipeline from the start of the server, or if the application is mounted in another one, from the first request, to
    the pipeline's end.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._readiness = Readiness()
        self._rates = Rates()
        self._watch = Watch(pipeline)
        self._trends = Trends()
        self._axis = Axis()
        self._registry = CollectorRegistry()
        self._registry.register(PrometheusCollector(pipeline, watch=self._watch))
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Observe as long as the server runs."""
        self._begin()
        try:
            yield
        finally:
            if self._task is not None:
                await cancel_and_wait(self._task)

    async def page(self, request: Request) -> Response:
        """Return the status page."""
        self._begin()
        return page("pipeline")

    async def events(self, request: Request) -> Response:
        """Stream the status, and at first the lags and rates of the last day."""
        self._begin()
        return events(request, partial(self._describe, recent=False), self._trends, self._axis)

    async def status(self, request: Request) -> Response:
        """Return the status once."""
        self._begin()
        return JSONResponse(self._describe() | timed(self._axis), headers=HEADERS)

    async def livez(self, request: Request) -> Response:
        """Return whether the pipeline runs."""
        self._begin()
        state = self._pipeline.state
        return JSONResponse({"state": state.value}, 200 if alive(state) else 503, headers=HEADERS)

    async def readyz(self, request: Request) -> Response:
        """Return whether the pipeline makes progress."""
        self._begin()
        problems, warnings = self._problems()
        told = {"ready": not problems, "problems": problems, "warnings": warnings}
        return JSONResponse(told, 503 if problems else 200, headers=HEADERS)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the format that the client accepts."""
        self._begin()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={**HEADERS, "Content-Type": content_type})

    def _begin(self) -> None:
        # A mounted application has no lifespan of its own.
        if self._task is None and alive(self._pipeline.state):
            self._task = asyncio.create_task(self._observe(), name=f"aiorepl monitor {self._pipeline.name}")

    async def _observe(self) -> None:
        async with self._watch:
            while alive(self._pipeline.state):
                statistics, now = self._pipeline.statistics(), time.monotonic()
                self._readiness.observe(statistics, now)
                self._rates.observe(statistics, now)
                self._trends.observe(
                    self._axis.now(),
                    {name: lag.durable for name, lag in statistics.lags.items()},
                    self._rates.describe(now)["now"],
                    {RECONNECT: statistics.reconnects},
                    statistics.uptime_seconds,
                )
                await asyncio.sleep(EVENT_SECONDS)
        await self._watch.end()

    def _problems(self) -> tuple[list[str], list[str]]:
        now = self._pipeline.statistics(), time.monotonic(), self._watch.slot
        return self._readiness.problems(*now), self._readiness.warnings(*now)

    def _describe(self, *, recent: bool = True) -> dict[str, Any]:
        problems, warnings = self._problems()
        return status(
            self._pipeline.name,
            self._pipeline.statistics(),
            self._watch.slot,
            self._watch.journal,
            problems + warnings,
            datetime.now(UTC),
            self._rates.describe(time.monotonic()),
            self._pipeline.source.address,
            self._trends,
            recent=recent,
        )
