"""The metrics of pipelines for prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from aiorepl.monitoring.samples import METRICS, samples
from aiorepl.monitoring.slot_watch import SlotWatch
from aiorepl.pipeline.pipeline import Pipeline


class PrometheusCollector(Collector):
    """Collects a pipeline's metrics when they are scraped, in any thread::

        prometheus_client.REGISTRY.register(PrometheusCollector(pipeline))

    :param name: the value of the label ``pipeline``; the slot's name by default.
    :param slot: a watch of the slot, for its metrics on the server.
    """

    def __init__(self, pipeline: Pipeline, *, name: str | None = None, slot: SlotWatch | None = None) -> None:
        self._pipeline = pipeline
        self._name = pipeline.name if name is None else name
        self._slot = slot

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """List the metrics without their values; called on registration."""
        yield from self._families().values()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Read the statistics."""
        families = self._families()
        slot = None if self._slot is None else self._slot.status
        for metric, labels, value in samples(self._pipeline.statistics(), slot, datetime.now(UTC)):
            families[metric.name].add_metric((self._name, *labels), value)
        yield from (family for family in families.values() if family.samples)

    @staticmethod
    def _families() -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        return {
            metric.name: kinds[metric.kind](metric.name, metric.help, labels=("pipeline", *metric.labels))
            for metric in METRICS
        }
