"""The documents name every metric with its labels, and every statistic."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.monitoring.samples import METRICS
from aiorepl.pipeline.statistics import PipelineStatistics
from aiorepl.spark.reading.metrics import METRICS as QUERY_METRICS

DOCS = Path(__file__).parents[2] / "docs"


def named(text: str) -> dict[str, frozenset[str]]:
    """The metrics in the first column of tables: ``a_{b,c}_d{label}`` is two metrics with a label."""
    found = {}
    for cell in re.findall(r"^\| (`aiorepl_.*?) \|", text, re.MULTILINE):
        for name, labels in re.findall(r"`((?:[a-z_]|\{[a-z_,]+\}(?=_))+)(?:\{([a-z,]+)\})?`", cell):
            before, _, rest = name.partition("{")
            choices, _, after = rest.partition("}")
            for choice in choices.split(","):
                found[before + choice + after] = frozenset(labels.split(",") if labels else ())
    return found


def test_metrics():
    """docs/monitoring.md has the metrics that exist, and no others."""
    known = {metric.name: frozenset(metric.labels) - {"pipeline"} for metric in METRICS}
    known |= {metric.name: frozenset(metric.labels) - {"query"} for metric in QUERY_METRICS}

    assert named((DOCS / "monitoring.md").read_text(encoding="utf-8")) == known


@pytest.mark.parametrize(
    ("statistics", "heading"), [(PipelineStatistics, "## Statistics"), (SinkStatistics, "### Of a sink")]
)
def test_statistics(statistics, heading):
    """docs/reference/source.md has the fields that exist, and no others."""
    text = (DOCS / "reference/source.md").read_text(encoding="utf-8")
    section = re.split(r"\n##", text.partition(f"\n{heading}\n")[2])[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == {field.name for field in fields(statistics)} - {
        "name"
    }
