"""The metrics of pipelines for OpenTelemetry: the same names and labels as for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from aiorepl.monitoring.samples import METRICS, Metric, samples
from aiorepl.monitoring.slot_watch import SlotWatch
from aiorepl.pipeline.pipeline import Pipeline


def observe(
    meter: Meter, pipeline: Pipeline, *, name: str | None = None, slot: SlotWatch | None = None
) -> None:
    """Create observable instruments that read a pipeline's statistics.

    :param name: the value of the attribute ``pipeline``; the slot's name by default.
    :param slot: a watch of the slot, for its metrics on the server.
    """
    label = pipeline.name if name is None else name

    def callback(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            status = None if slot is None else slot.status
            for each, labels, value in samples(pipeline.statistics(), status, datetime.now(UTC)):
                if each is metric:
                    yield Observation(
                        value, {"pipeline": label, **dict(zip(metric.labels, labels, strict=True))}
                    )

        return read

    for metric in METRICS:
        create = (
            meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        )
        create(metric.name.removesuffix("_total"), [callback(metric)], description=metric.help)
