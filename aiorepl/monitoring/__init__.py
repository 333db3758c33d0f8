"""Monitoring of a pipeline: metrics for Prometheus and OpenTelemetry, health checks, and a status page.

    app = aiorepl.monitoring.status_app(pipeline)              # an ASGI application: mount it, or serve it
    prometheus_client.REGISTRY.register(aiorepl.monitoring.PrometheusCollector(pipeline))
    aiorepl.monitoring.observe(meter, pipeline)                # OpenTelemetry

``samples`` has the list of metrics, and converts statistics to them; ``prometheus`` and ``opentelemetry`` export them.
``slot_watch`` reads the slot's state from the server. ``status`` makes the contents of the status page, ``progress`` decides
whether the pipeline is ready, ``app`` answers requests, and ``server`` serves the application for ``aiorepl run --http``. Nothing
here has row data.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorepl.monitoring.app import status_app
    from aiorepl.monitoring.opentelemetry import observe
    from aiorepl.monitoring.prometheus import PrometheusCollector

_HOME_OF = {
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

__all__ = ["PrometheusCollector", "observe", "status_app"]

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept every name

    def __getattr__(name: str) -> object:
        try:
            home = _HOME_OF[name]
        except KeyError:
            raise AttributeError(f"module 'aiorepl.monitoring' has no attribute {name!r}") from None
        try:
            return getattr(import_module(home), name)
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package not in _EXTRA_OF:
                raise
            raise ImportError(
                f"aiorepl.monitoring.{name} needs {package}: pip install 'aiorepl[{_EXTRA_OF[package]}]'",
                name=missing.name,
            ) from missing
