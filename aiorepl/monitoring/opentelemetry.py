"""The metrics of pipelines and of Spark's queries for OpenTelemetry: the same names and labels as for Prometheus.

OpenTelemetry cannot observe a histogram, so each becomes two counters, ``…_count`` and ``…_sum``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from aiorepl.histogram import Histogram
from aiorepl.metrics import Metric
from aiorepl.monitoring.observed import Observed, observed
from aiorepl.monitoring.watch import Watch
from aiorepl.pipeline.pipeline import Pipeline

_Part = Literal["count", "sum"] | None


def observe(
    meter: Meter, pipeline: Pipeline | Observed, *, name: str | None = None, watch: Watch | None = None
) -> None:
    """Create observable instruments that read the metrics of a pipeline, or of an ``aiorepl.spark.QueryListener``.

    :param name: for a pipeline: the value of the attribute ``pipeline``; the slot's name by default.
    :param watch: for a pipeline: its watch, for the metrics of the slot and of the journal.
    """
    found = observed(pipeline, name, watch)

    def callback(metric: Metric, part: _Part = None) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            for each, labels, value in found.samples():
                if each.name == metric.name:
                    yield Observation(_number(value, part), dict(zip(metric.labels, labels, strict=True)))

        return read

    for metric in found.metrics:
        if metric.kind == "histogram":
            parts: tuple[_Part, ...] = ("count", "sum")
            for part in parts:
                meter.create_observable_counter(
                    f"{metric.name}_{part}", [callback(metric, part)], description=metric.help
                )
        elif metric.kind == "counter":
            meter.create_observable_counter(
                metric.name.removesuffix("_total"), [callback(metric)], description=metric.help
            )
        else:
            meter.create_observable_gauge(metric.name, [callback(metric)], description=metric.help)


def _number(value: float | Histogram, part: _Part) -> float:
    if isinstance(value, Histogram):
        return value.count if part == "count" else value.sum
    return value
