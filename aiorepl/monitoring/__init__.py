"""Monitoring of a pipeline: metrics for Prometheus and OpenTelemetry, health checks, and a status page.

    app = aiorepl.monitoring.status_app(pipeline)              # an ASGI application: mount it, or serve it
    prometheus_client.REGISTRY.register(aiorepl.monitoring.PrometheusCollector(pipeline))
    aiorepl.monitoring.observe(meter, pipeline)                # OpenTelemetry
    async with aiorepl.monitoring.Watch(pipeline) as watch:    # pass it to either, for metrics of the slot and the journal

``samples`` lists the metrics, and converts statistics to them. ``observed`` gives pipelines and Spark queries one interface, which
``prometheus`` and ``opentelemetry`` export. ``watch`` reads the slot's state from the server, and the size of the journal. ``status``
and ``mirror_status`` make the contents of the status pages, and ``progress`` decides whether a pipeline is ready. ``app`` is the
ASGI application for a pipeline, ``mirror_app`` the one for a mirror in Spark; ``pages`` has their pages, and ``server`` serves either
for ``--http``. Nothing here has row data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorepl.lazy import importer

if TYPE_CHECKING:
    from aiorepl.monitoring.app import status_app
    from aiorepl.monitoring.opentelemetry import observe
    from aiorepl.monitoring.prometheus import PrometheusCollector
    from aiorepl.monitoring.watch import Watch

_HOME_OF = {
    "Watch": "aiorepl.monitoring.watch",
    "PrometheusCollector": "aiorepl.monitoring.prometheus",
    "observe": "aiorepl.monitoring.opentelemetry",
    "status_app": "aiorepl.monitoring.app",
}
_EXTRA_OF = {
    "prometheus_client": "http",
    "starlette": "http",
    "uvicorn": "http",
    "opentelemetry": "opentelemetry",
}

__all__ = ["PrometheusCollector", "Watch", "observe", "status_app"]

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept every name
    __getattr__ = importer(__name__, _HOME_OF, _EXTRA_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
