"""The metrics of pipelines for OpenTelemetry: the same names and labels as for Prometheus.

OpenTelemetry cannot observe a histogram, so each becomes two counters, ``…_count`` and ``…_sum``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Literal

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from aiorepl.histogram import Histogram
from aiorepl.monitoring.samples import METRICS, Metric, samples
from aiorepl.monitoring.watch import Watch
from aiorepl.pipeline.pipeline import Pipeline

_Part = Literal["count", "sum"] | None


def observe(meter: Meter, pipeline: Pipeline, *, name: str | None = None, watch: Watch | None = None) -> None:
    """Create observable instruments that read a pipeline's statistics.

    :param name: the value of the attribute ``pipeline``; the slot's name by default.
    :param watch: a watch of the pipeline, for the metrics of the slot and of the journal.
    """
    label = pipeline.name if name is None else name

    def callback(metric: Metric, part: _Part = None) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            slot, journal = (None, None) if watch is None else (watch.slot, watch.journal)
            for each, labels, value in samples(pipeline.statistics(), slot, journal, datetime.now(UTC)):
                if each is metric:
                    attributes = {"pipeline": label, **dict(zip(metric.labels, labels, strict=True))}
                    yield Observation(_number(value, part), attributes)

        return read

    for metric in METRICS:
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
