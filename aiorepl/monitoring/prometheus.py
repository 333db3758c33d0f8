"""The metrics of pipelines and of Spark's queries for prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from aiorepl.histogram import Histogram
from aiorepl.monitoring.observed import Observed, observed
from aiorepl.monitoring.watch import Watch
from aiorepl.pipeline.pipeline import Pipeline

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class PrometheusCollector(Collector):
    """Collects metrics when they are scraped, in any thread::

        prometheus_client.REGISTRY.register(PrometheusCollector(pipeline))

    :param pipeline: a pipeline, or an ``aiorepl.spark.QueryListener``.
    :param name: for a pipeline: the value of the label ``pipeline``; the slot's name by default.
    :param watch: for a pipeline: its watch, for the metrics of the slot and of the journal.
    """

    def __init__(
        self, pipeline: Pipeline | Observed, *, name: str | None = None, watch: Watch | None = None
    ) -> None:
        self._observed = observed(pipeline, name, watch)

    def describe(self) -> Iterator[Family]:
        """List the metrics without their values; called on registration."""
        yield from self._families().values()

    def collect(self) -> Iterator[Family]:
        """Read the statistics."""
        families = self._families()
        for metric, labels, value in self._observed.samples():
            family = families[metric.name]
            match value:
                case Histogram():
                    assert isinstance(family, HistogramMetricFamily)
                    buckets = [
                        ("+Inf" if bound == inf else str(bound), float(count))
                        for bound, count in value.cumulative()
                    ]
                    family.add_metric(labels, buckets, value.sum)
                case _:
                    assert not isinstance(family, HistogramMetricFamily)
                    family.add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)

    def _families(self) -> dict[str, Family]:
        kinds = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        return {
            metric.name: kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
            for metric in self._observed.metrics
        }
