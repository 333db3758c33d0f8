"""The status of a pipeline in a terminal, as ``/status`` returns it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from math import log2
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aiorepl.errors import printable
from aiorepl.sizes import format_size

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "retrying": "yellow",
    "failed": "bold red",
    "stopped": "red",
}


def rendered(status: dict[str, Any]) -> RenderableType:
    """Lay out the answer of ``/status``."""
    title = Text.assemble(
        (printable(status["name"]), "bold"),
        "  ",
        (status["state"], _STYLES[status["state"]]),
        *_about(status),
    )
    # Text, not markup, and printable: errors and names come from elsewhere.
    problems = [
        Text(f"! {printable(text)}", "red") for text in (status["error"], *status["problems"]) if text
    ]
    return Group(
        title,
        *problems,
        "",
        _throughput(status),
        "",
        _ladder(status),
        "",
        _sinks(status),
        *_memory(status),
        *_slot(status),
        *_journal(status),
        *_rows(status),
        *_snapshots(status),
    )


def _about(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    server, uptime = status["server"], status["uptime_seconds"]
    found = (
        server["address"],
        server["database"] and f"database {server['database']}",
        server["version"] and f"PostgreSQL {server['version'].split()[0]}",
        uptime is not None and f"up {timedelta(seconds=int(uptime))}",
    )
    yield from ((f"  {printable(text)}", "dim") for text in found if text)


def _throughput(status: dict[str, Any]) -> RenderableType:
    rates = status["rates"] or {}
    table = Table("throughput", "now", "last minute", "5 min", box=None, padding=(0, 2, 0, 0))
    spans, recent = [rates.get("now"), rates.get("minute")], rates.get("recent", {})
    rows = (f"{each['rows']:,.0f} rows/s" if each else "unknown" for each in spans)
    table.add_row("rows", *rows, _sparkline(recent.get("rows", ())))
    sizes = (f"{format_size(round(each['bytes']))}/s" if each else "unknown" for each in spans)
    table.add_row("bytes", *sizes, _sparkline(recent.get("bytes", ())))
    changed, left = rates.get("change_seconds"), rates.get("snapshot_seconds")
    table.add_row("last change", "none yet" if changed is None else f"{changed:,.0f} s ago")
    if left is not None:
        table.add_row("snapshot", f"{timedelta(seconds=int(left))} left")
    return table


def _sparkline(values: Sequence[int | None]) -> str:
    """Draw values, the oldest first, on a logarithmic scale: a block is the larger one of two, and a space if both are unknown."""
    pairs = [
        [value for value in pair if value is not None] for pair in zip(values[::2], values[1::2], strict=True)
    ]
    top = log2(1 + max((max(pair) for pair in pairs if pair), default=0)) or 1.0
    steps = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[round(steps * log2(1 + max(pair)) / top)] if pair else " " for pair in pairs
    ).lstrip()


def _ladder(status: dict[str, Any]) -> RenderableType:
    table = Table("position", "LSN", "behind", box=None, padding=(0, 2, 0, 0))
    for rung in status["ladder"]:
        name = f"{rung['name']}: {printable(rung['sink'])}" if "sink" in rung else rung["name"]
        table.add_row(Text(name), rung["lsn"], format_size(rung["behind"]) if rung["behind"] else "")
    return table


def _sinks(status: dict[str, Any]) -> RenderableType:
    table = Table("sink", "state", box=None, padding=(0, 2, 0, 0))
    for name in ("lag", "seconds", "changes", "retries", "dead letters"):
        table.add_column(name, justify="right")
    table.add_column("lag, 5 min", no_wrap=True)
    for sink in status["sinks"]:
        known = sink["lag_bytes"] is not None
        table.add_row(
            Text(printable(sink["name"])),
            Text(sink["state"], _STYLES[sink["state"]]),
            format_size(sink["lag_bytes"]) if known else "",
            f"{sink['lag_seconds']:,.0f}" if known else "",
            f"{sink['changes']:,}",
            f"{sink['retries']:,}",
            f"{sink['dead_letters']:,}",
            _sparkline(sink.get("recent_lags", ())),
        )
    errors = [(sink["name"], sink["error"]) for sink in status["sinks"] if sink["error"]]
    # Below the table, because errors do not fit into a column of a narrow terminal.
    return Group(
        table,
        *(Text(printable(f"{name}: {error.removeprefix(f'{name}: ')}"), "red") for name, error in errors),
    )


def _memory(status: dict[str, Any]) -> Iterator[RenderableType]:
    yield ""
    for each in status["buffers"]:
        waits = f": waits for {each['slowest'] or 'a sink'}" if each["backpressured"] else ""
        size = f"{format_size(each['bytes'])}, pauses reading at {format_size(each['limit'])}"
        yield Text(printable(f"buffer {each['name']}: {size}{waits}"))
    open_, spooled = (format_size(status["transactions"][place]) for place in ("memory", "disk"))
    yield Text(f"open and prepared transactions: {open_} in memory, {spooled} on disk")
    yield Text(f"reconnects: {status['reconnects']:,}; accepted gaps: {status['gaps']:,}")


def _slot(status: dict[str, Any]) -> Iterator[RenderableType]:
    slot = status["slot"]
    if slot is None:
        return
    yield ""
    if slot["error"]:
        yield Text(printable(f"slot: unknown: {slot['error']}"), "yellow")
    elif slot["retained"] is not None:
        safe = "" if slot["safe"] is None else f", {format_size(max(slot['safe'], 0))} until it may be lost"
        yield Text(f"slot: keeps {format_size(slot['retained'])} of WAL{safe}")


def _journal(status: dict[str, Any]) -> Iterator[RenderableType]:
    journal = status["journal"]
    if journal is None:
        return
    if journal["error"]:
        yield Text(printable(f"journal: unknown: {journal['error']}"), "yellow")
        return
    labels = (f" ({each['label']})" if each["label"] else "" for each in journal["consumers"])
    kept = (
        f"{format_size(each['bytes'])} for {each['name']}{label}"
        for each, label in zip(journal["consumers"], labels, strict=True)
    )
    size = format_size(journal["bytes"])
    yield Text(printable(f"journal: {size}; not read yet: {', '.join(kept) or 'nothing'}"))


def _rows(status: dict[str, Any]) -> Iterator[RenderableType]:
    if not status["rows"]:
        return
    table = Table("received from", box=None, padding=(0, 2, 0, 0))
    for name in ("inserts", "updates", "deletes", "size"):
        table.add_column(name, justify="right")
    for each in status["rows"]:
        counts = (f"{each[name]:,}" for name in ("inserts", "updates", "deletes"))
        table.add_row(Text(printable(each["table"])), *counts, format_size(each["bytes"]))
    yield ""
    yield table


def _snapshots(status: dict[str, Any]) -> Iterator[RenderableType]:
    if not status["snapshots"]:
        return
    table = Table("table", "state", "done", "rows", "rows/s", box=None, padding=(0, 2, 0, 0))
    total = status["snapshot"]
    if total["tables"] > 1:
        ended = "paused" if total["paused"] else f"{total['ended']:,} of {total['tables']:,} read"
        table.add_row("all tables", ended, _bar(total), f"{total['rows']:,}")
    for each in status["snapshots"]:
        estimate = each["estimated_rows"] or 0
        rows = f"{each['rows']:,}" + (f" of about {estimate:,}" if estimate > each["rows"] else "")
        pace = f"{each['rows_per_second']:,.0f}"
        table.add_row(Text(printable(each["name"])), each["state"], _bar(each), rows, pace)
    yield ""
    yield table


def _bar(described: dict[str, Any]) -> RenderableType:
    return ProgressBar(total=1.0, completed=described["done"], width=30)
