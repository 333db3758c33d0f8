"""Results as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from contestants import OURS
from goals import Goal

_HEADS: Final = (
    "s",
    "of limit",
    "rows/s",
    "start, s",
    "start and all, of limit",
    "µs CPU a row",
    "walsender's",
    "of walsender's",
    "peak MiB",
)


def workload(name: str, found: dict[str, Any]) -> str:
    """Return the table of a workload's contestants. Seconds are counted from the beginning of the stream."""
    rows = [_contestant(name, each) for name, each in found["contestants"].items()]
    return f"### {name}: {found['rows']:,} rows\n\n" + "\n".join(_table(("", *_HEADS), rows))


def _contestant(name: str, each: dict[str, Any]) -> list[str]:
    share = each["cpu_of_walsender"]
    return [
        f"aiorepl {name}" if name in OURS else name,
        f"{each['seconds']:.2f}",
        f"{statistics.median(each['of_limit']):.2f}",
        f"{each['rows_per_second']:,}",
        f"{each['seconds_to_start']:.2f}",
        f"{statistics.median(each['of_limit_with_start']):.2f}",
        f"{each['cpu_microseconds_per_row']:.2f}",
        f"{each['walsender_microseconds_per_row']:.2f}",
        f"{statistics.median(share):.2f}" if share else "",
        f"{each['peak_mib']:.0f}",
    ]


def latency(found: dict[str, Any]) -> str:
    """Return the table of latencies."""
    rows = [
        [f"{int(rate):,} rows/s, {name}", *(f"{each[part]:.2f}" for part in ("p50", "p99", "max"))]
        for rate, readers in found.items()
        for name, each in readers.items()
    ]
    return "\n".join(_table(("commit to sink, ms", "p50", "p99", "max"), rows))


def standing(found: dict[str, Any]) -> str:
    """Return the table of measurements without load."""
    many = f"{found['pipelines']} quiet pipelines in a process"
    rows = [
        ["import aiorepl, ms", f"{found['import_ms']:.1f}"],
        ["import aiorepl.Pipeline and all it needs, ms", f"{found['import_pipeline_ms']:.1f}"],
        ["from there until it streams, ms", f"{found['start_ms']:.1f}"],
        [f"{many}, % of a core", f"{found['idle_cpu_percent']:.2f}"],
        [f"{many}, MiB", f"{found['memory_mib']:.0f}"],
    ]
    return "\n".join(_table(("without load", ""), rows))


def goals(found: Sequence[Goal]) -> str:
    """Return the goals that were missed, and the number that was reached."""
    reached: dict[str, list[Goal]] = {}
    for goal in found:
        reached.setdefault(goal.name, []).append(goal)
    rows = []
    for name, each in reached.items():
        missed = [f"{goal.where}: {goal.found:.2f}" for goal in each if not goal.reached]
        worst = max(each, key=lambda goal: goal.found)
        rows.append(
            [
                name,
                f"{worst.most:g}",
                f"{len(each) - len(missed)} of {len(each)}",
                f"{worst.found:.2f} ({worst.where})",
                "; ".join(missed) or "none",
            ]
        )
    return "\n".join(_table(("goal", "at most", "reached", "worst", "missed"), rows))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    lines = [list(heads), *map(list, rows)]
    widths = [max(3, *(len(line[place]) for line in lines)) for place in range(len(heads))]
    rule = ["-" * width if place == 0 else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    for line in (lines[0], rule, *lines[1:]):
        cells = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield f"| {' | '.join(cells)} |"
