"""The interface that exporters read: the metrics of a pipeline or a Spark query, with all labels, and their samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from aiorepl.metrics import Metric, Sample
from aiorepl.monitoring.samples import METRICS, samples
from aiorepl.monitoring.watch import Watch
from aiorepl.pipeline.pipeline import Pipeline

_OF_PIPELINES: Final = tuple(replace(metric, labels=("pipeline", *metric.labels)) for metric in METRICS)
_LABELLED: Final = {metric.name: metric for metric in _OF_PIPELINES}


class Observed(Protocol):
    """Something with metrics, such as ``aiorepl.spark.QueryListener``."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """All metrics, each with all its labels."""

    def samples(self) -> Iterator[Sample]:
        """Return the current values of the metrics. Thread-safe."""


class ObservedPipeline:
    """A pipeline; its metrics have the label ``pipeline``.

    :param name: the label's value; the slot's name by default.
    """

    metrics = _OF_PIPELINES

    def __init__(self, pipeline: Pipeline, name: str | None = None, watch: Watch | None = None) -> None:
        self._pipeline = pipeline
        self._name = pipeline.name if name is None else name
        self._watch = watch

    def samples(self) -> Iterator[Sample]:
        """Read the statistics."""
        watch = self._watch
        slot, journal = (None, None) if watch is None else (watch.slot, watch.journal)
        for metric, labels, value in samples(self._pipeline.statistics(), slot, journal, datetime.now(UTC)):
            yield _LABELLED[metric.name], (self._name, *labels), value


def observed(given: Pipeline | Observed, name: str | None, watch: Watch | None) -> Observed:
    """Return the object that an exporter reads.

    :param name: for a pipeline only, as is ``watch``.
    """
    return ObservedPipeline(given, name, watch) if isinstance(given, Pipeline) else given
