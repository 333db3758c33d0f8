"""The metrics of pipelines for prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from aiorepl.histogram import Histogram
from aiorepl.monitoring.samples import METRICS, samples
from aiorepl.monitoring.watch import Watch
from aiorepl.pipeline.pipeline import Pipeline

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class PrometheusCollector(Collector):
    """Collects a pipeline's metrics when they are scraped, in any thread::

        prometheus_client.REGISTRY.register(PrometheusCollector(pipeline))

    :param name: the value of the label ``pipeline``; the slot's name by default.
    :param watch: a watch of the pipeline, for the metrics of the slot and of the journal.
    """

    def __init__(self, pipeline: Pipeline, *, name: str | None = None, watch: Watch | None = None) -> None:
        self._pipeline = pipeline
        self._name = pipeline.name if name is None else name
        self._watch = watch

    def describe(self) -> Iterator[Family]:
        """List the metrics without their values; called on registration."""
        yield from self._families().values()

    def collect(self) -> Iterator[Family]:
        """Read the statistics."""
        families = self._families()
        watch = self._watch
        slot, journal = (None, None) if watch is None else (watch.slot, watch.journal)
        for metric, labels, value in samples(self._pipeline.statistics(), slot, journal, datetime.now(UTC)):
            family, values = families[metric.name], (self._name, *labels)
            match value:
                case Histogram():
                    assert isinstance(family, HistogramMetricFamily)
                    buckets = [
                        ("+Inf" if bound == inf else str(bound), float(count))
                        for bound, count in value.cumulative()
                    ]
                    family.add_metric(values, buckets, value.sum)
                case _:
                    assert not isinstance(family, HistogramMetricFamily)
                    family.add_metric(values, value)
        yield from (family for family in families.values() if family.samples)

    @staticmethod
    def _families() -> dict[str, Family]:
        kinds = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        return {
            metric.name: kinds[metric.kind](metric.name, metric.help, labels=("pipeline", *metric.labels))
            for metric in METRICS
        }
