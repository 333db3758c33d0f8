"""``aiorepl top``: what the status page shows, in a terminal."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from aiorepl.errors import AioreplError, printable
from aiorepl.sizes import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

_SECONDS: Final = 1.0
_TIMEOUT: Final = 10.0
_STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "retrying": "yellow",
    "failed": "bold red",
    "stopped": "red",
}


class NoAnswer(AioreplError):
    """The status page cannot be read."""

    exit_code = 3


@click.command(short_help="Show a running pipeline in the terminal.")
@click.argument("url", default="http://127.0.0.1:8080")
@click.option("--once", is_flag=True, help="Print it once, and end.")
def top(url: str, once: bool) -> None:
    """Show the pipeline whose status page is at URL (default: http://127.0.0.1:8080), until interrupted.

    The pipeline serves the page with: aiorepl run --http 127.0.0.1:8080
    """
    # Imported here, because no other command needs them at its start.
    from rich.console import Console
    from rich.live import Live

    console = Console()
    status = _status(url)
    if once:
        console.print(rendered(status))
        return
    with Live(rendered(status), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(_SECONDS)
            status, shown = _after(url, status)
            live.update(shown, refresh=True)


def _after(url: str, last: dict[str, Any]) -> tuple[dict[str, Any], RenderableType]:
    """Read the status again. Without an answer, for example during a restart, show the reason above the last status."""
    from rich.console import Group
    from rich.text import Text

    try:
        status = _status(url)
    except NoAnswer as error:
        return last, Group(Text(f"! these values are old: {error}", "red"), rendered(last))
    return status, rendered(status)


def _status(url: str) -> dict[str, Any]:
    address = url if "://" in url else f"http://{url}"
    if not address.startswith(("http://", "https://")):
        raise NoAnswer(f"{url} is not the address of a status page: it must begin with http:// or https://")
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/status", timeout=_TIMEOUT) as answer:  # noqa: S310 - checked
            status = json.load(answer)
        if not isinstance(status, dict) or "sinks" not in status:
            raise ValueError("the answer is not that of a status page")
        return status
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = printable(str(getattr(error, "reason", error)))
        raise NoAnswer(
            f"no status page at {address}: {reason}: start the pipeline with aiorepl run --http HOST:PORT"
        ) from None


def rendered(status: dict[str, Any]) -> RenderableType:
    """Lay out the answer of ``/status``."""
    from rich.console import Group
    from rich.text import Text

    title = Text.assemble(
        (status["name"], "bold"), "  ", (status["state"], _STYLES[status["state"]]), *_about(status)
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
    from rich.table import Table

    rates = status["rates"] or {}
    table = Table("throughput", "now", "last minute", box=None, padding=(0, 2, 0, 0))
    spans = [rates.get("now"), rates.get("minute")]
    table.add_row("rows", *(f"{each['rows']:,.0f} rows/s" if each else "unknown" for each in spans))
    table.add_row(
        "bytes", *(f"{format_size(round(each['bytes']))}/s" if each else "unknown" for each in spans)
    )
    changed, left = rates.get("change_seconds"), rates.get("snapshot_seconds")
    table.add_row("last change", "none yet" if changed is None else f"{changed:,.0f} s ago")
    if left is not None:
        table.add_row("snapshot", f"{timedelta(seconds=int(left))} left")
    return table


def _ladder(status: dict[str, Any]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table("position", "LSN", "behind", box=None, padding=(0, 2, 0, 0))
    for rung in status["ladder"]:
        name = f"{rung['name']}: {printable(rung['sink'])}" if "sink" in rung else rung["name"]
        table.add_row(Text(name), rung["lsn"], format_size(rung["behind"]) if rung["behind"] else "")
    return table


def _sinks(status: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("sink", "state", box=None, padding=(0, 2, 0, 0))
    for name in ("lag", "seconds", "changes", "retries", "dead letters"):
        table.add_column(name, justify="right")
    for sink in status["sinks"]:
        known = sink["lag_bytes"] is not None
        table.add_row(
            Text(sink["name"]),
            Text(sink["state"], _STYLES[sink["state"]]),
            format_size(sink["lag_bytes"]) if known else "",
            f"{sink['lag_seconds']:,.0f}" if known else "",
            f"{sink['changes']:,}",
            f"{sink['retries']:,}",
            f"{sink['dead_letters']:,}",
        )
    errors = [(sink["name"], sink["error"]) for sink in status["sinks"] if sink["error"]]
    # Below the table, because errors do not fit into a column of a narrow terminal.
    return Group(
        table,
        *(Text(printable(f"{name}: {error.removeprefix(f'{name}: ')}"), "red") for name, error in errors),
    )


def _slot(status: dict[str, Any]) -> Iterator[RenderableType]:
    from rich.text import Text

    slot = status["slot"]
    if slot is None:
        return
    yield ""
    if slot["error"]:
        yield Text(f"slot: unknown: {slot['error']}", "yellow")
    elif slot["retained"] is not None:
        safe = "" if slot["safe"] is None else f", {format_size(slot['safe'])} until it may be lost"
        yield Text(f"slot: keeps {format_size(slot['retained'])} of WAL{safe}")


def _journal(status: dict[str, Any]) -> Iterator[RenderableType]:
    from rich.text import Text

    journal = status["journal"]
    if journal is None:
        return
    if journal["error"]:
        yield Text(f"journal: unknown: {journal['error']}", "yellow")
        return
    kept = (f"{format_size(each['bytes'])} for {each['name']}" for each in journal["consumers"])
    yield Text(f"journal: {format_size(journal['bytes'])}; not read yet: {', '.join(kept) or 'nothing'}")


def _rows(status: dict[str, Any]) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

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
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if not status["snapshots"]:
        return
    table = Table("table", "state", "done", "rows", box=None, padding=(0, 2, 0, 0))
    for each in status["snapshots"]:
        bar = ProgressBar(total=1.0, completed=each["done"], width=30)
        table.add_row(Text(printable(each["name"])), each["state"], bar, f"{each['rows']:,}")
    yield ""
    yield table
