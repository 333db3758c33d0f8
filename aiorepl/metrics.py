"""A metric and a sample of it, without any exporter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiorepl.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    :param name: its name in Prometheus, with the unit, and ``_total`` for a counter.
    :param kind: gauge, counter or histogram; the last two start at 0 with each pipeline.
    :param labels: the names of its labels, without ``pipeline``.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


Sample = tuple[Metric, tuple[str, ...], float | Histogram]
"""A metric, the values of its labels, and its value: a ``Histogram`` if the metric is one."""
