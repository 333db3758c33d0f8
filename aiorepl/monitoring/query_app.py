"""The ASGI application of ``aiorepl spark mirror --http``.

    /status     the statistics of the streaming queries, as JSON
    /livez      200 while the process answers
    /readyz     200 while a query runs, else 503 with the reasons
    /metrics    for Prometheus

Like the application for pipelines, it is read-only and has no authentication. It shows no row data.
"""

from __future__ import annotations

from dataclasses import asdict

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aiorepl.monitoring.prometheus import PrometheusCollector
from aiorepl.spark.reading.listener import QueryListener

_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def query_app(listener: QueryListener) -> Starlette:
    """Return the ASGI application for the queries of a session."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(listener))

    async def status(request: Request) -> Response:
        queries = [
            asdict(query)
            | {
                name: None if lsn is None else str(lsn)
                for name in ("position", "end")
                for lsn in [getattr(query, name)]
            }
            for query in listener.statistics().values()
        ]
        return JSONResponse({"queries": queries}, headers=_HEADERS)

    async def livez(request: Request) -> Response:
        return JSONResponse({"alive": True}, headers=_HEADERS)

    async def readyz(request: Request) -> Response:
        queries = listener.statistics().values()
        problems = [
            f"the query {each.name} has ended: {each.error}" for each in queries if each.error is not None
        ]
        if not any(each.running for each in queries):
            problems = problems or ["no query runs"]
        return JSONResponse(
            {"ready": not problems, "problems": problems}, 503 if problems else 200, headers=_HEADERS
        )

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={**_HEADERS, "Content-Type": content_type})

    handlers = {"/status": status, "/livez": livez, "/readyz": readyz, "/metrics": metrics}
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])
