"""The status of a pipeline in a terminal, as ``/status`` of this or of another version returns it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from aiorepl.cli.answer import Answer
from aiorepl.cli.sheet import Bar, Row, Sheet, Sparkline
from aiorepl.errors import printable
from aiorepl.sizes import format_size

_UNKNOWN: Final = "?"
_MOST_SECONDS: Final = 1e12
_STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "retrying": "yellow",
    "paused": "yellow",
    "failed": "bold red",
    "stopped": "red",
}


def rendered(status: dict[str, Any]) -> RenderableType:
    """Lay out the answer of ``/status``. Values that another version does not send are unknown, and are named at the end."""
    answer = Answer(status)
    # Text, not markup, and printable: errors and names come from elsewhere.
    shown: list[RenderableType] = [
        _title(answer),
        *(_line("! ", text, "red") for text in (answer.text("error"), *answer.texts("problems")) if text),
        "",
        *_throughput(answer),
        *_ladder(answer),
        *_sinks(answer),
        *_memory(answer),
        *_slot(answer.part("slot")),
        *_journal(answer.part("journal")),
        *_rows(answer),
        *_snapshots(answer),
    ]
    if answer.missing:
        names = ", ".join(sorted(answer.missing))
        shown += ["", _line("", f"unknown, because the pipeline's version is another one: {names}", "yellow")]
    return Group(*shown)


def _line(begin: str, text: str, style: str = "") -> Text:
    return Text(f"{begin}{printable(text)}", style)


def _name(answer: Answer, name: str = "name") -> str:
    return printable(answer.text(name) or _UNKNOWN)


def _size(value: float | None, missing: str = _UNKNOWN) -> str:
    return missing if value is None else format_size(max(round(value), 0))


def _count(value: float | None, missing: str = _UNKNOWN) -> str:
    return missing if value is None else f"{value:,.0f}"


def _title(status: Answer) -> Text:
    server, state = status.part("server"), _name(status, "state")
    uptime = status.number("uptime_seconds", _MOST_SECONDS)
    database, version = server.text("database"), server.text("version")
    about = (
        server.text("address"),
        database and f"database {database}",
        version and f"PostgreSQL {version.split()[0]}",
        uptime is not None and f"up {timedelta(seconds=int(uptime))}",
    )
    parts = [(f"  {printable(text)}", "dim") for text in about if text]
    return Text.assemble((_name(status), "bold"), "  ", (state, _STYLES.get(state, "")), *parts)


def _throughput(status: Answer) -> Iterator[RenderableType]:
    rates = status.part("rates")
    now, minute, recent = rates.part("now"), rates.part("minute"), rates.part("recent")
    changed, left = (rates.number(name, _MOST_SECONDS) for name in ("change_seconds", "snapshot_seconds"))
    rows = [f"{_count(each.number('rows'))} rows/s" if each else "unknown" for each in (now, minute)]
    sizes = [f"{_size(each.number('bytes'))}/s" if each else "unknown" for each in (now, minute)]
    yield Sheet(
        ("throughput", "now", "last minute", "5 min"),
        [
            ["rows", *rows, Sparkline(recent.numbers("rows"))],
            ["bytes", *sizes, Sparkline(recent.numbers("bytes"))],
        ],
        spare=1,
    )
    yield Text(f"last change: {'none yet' if changed is None else f'{changed:,.0f} s ago'}")
    if left is not None:
        yield Text(f"snapshot: {timedelta(seconds=int(left))} left")


def _ladder(status: Answer) -> Iterator[RenderableType]:
    rows = []
    for rung in status.parts("ladder"):
        sink = rung.text("sink") if rung.has("sink") else None
        behind = rung.number("behind")
        name = _name(rung) if sink is None else f"{_name(rung)}: {printable(sink)}"
        rows.append([name, _name(rung, "lsn"), "" if behind == 0 else _size(behind)])
    yield ""
    yield Sheet(("position", "LSN", ">behind"), rows)


def _sinks(status: Answer) -> Iterator[RenderableType]:
    rows: list[Row] = []
    errors = []
    for sink in status.parts("sinks"):
        name, state, size = _name(sink), _name(sink, "state"), sink.number("lag_bytes")
        seconds, error = sink.number("lag_seconds"), sink.text("error")
        lag = _size(size, "") + ("" if not size else f", {_count(seconds)} s")
        counts = [_count(sink.number(each)) for each in ("changes", "retries", "dead_letters")]
        recent = Sparkline(sink.numbers("recent_lags"))
        rows.append([name, Text(state, _STYLES.get(state, "")), lag, *counts, recent])
        if error:
            errors.append(_line("", f"{name}: {error.removeprefix(f'{name}: ')}", "red"))
    yield ""
    yield Sheet(("sink", "state", ">lag", ">changes", ">retries", ">dead letters", "lag, 5 min"), rows, 1)
    # Below the table, because errors do not fit into a column of a narrow terminal.
    yield from errors


def _memory(status: Answer) -> Iterator[RenderableType]:
    yield ""
    for each in status.parts("buffers"):
        waits = f": waits for {each.text('slowest') or 'a sink'}" if each.truth("backpressured") else ""
        size = f"{_size(each.number('bytes'))}, pauses reading at {_size(each.number('limit'))}"
        yield _line("", f"buffer {_name(each)}: {size}{waits}")
    held = status.part("transactions")
    open_, spooled = (_size(held.number(place)) for place in ("memory", "disk"))
    yield Text(f"open and prepared transactions: {open_} in memory, {spooled} on disk")
    reconnects, gaps = (_count(status.number(name)) for name in ("reconnects", "gaps"))
    yield Text(f"reconnects: {reconnects}; accepted gaps: {gaps}")


def _slot(slot: Answer) -> Iterator[RenderableType]:
    if not slot:
        return
    yield ""
    if error := slot.text("error"):
        yield _line("slot: unknown: ", error, "yellow")
        return
    retained, safe, status = slot.number("retained"), slot.number("safe"), slot.text("wal_status")
    if status == "lost":
        yield Text("slot: lost, because the server has removed WAL that it needs", "bold red")
        return
    limit = "" if safe is None else f", {_size(safe)} until it may be lost"
    if status == "unreserved":
        limit = ", and is lost at the server's next checkpoint"
    kept = "none on the server" if retained is None else f"keeps {_size(retained)} of WAL{limit}"
    yield Text(f"slot: {kept}", "bold red" if status == "unreserved" else "")


def _journal(journal: Answer) -> Iterator[RenderableType]:
    if not journal:
        return
    if error := journal.text("error"):
        yield _line("journal: unknown: ", error, "yellow")
        return
    kept = []
    for each in journal.parts("consumers"):
        label = each.text("label")
        kept.append(f"{_size(each.number('bytes'))} for {_name(each)}" + (f" ({label})" if label else ""))
    size = _size(journal.number("bytes"))
    yield _line("journal: ", f"{size}; not read yet: {', '.join(kept) or 'nothing'}")


def _rows(status: Answer) -> Iterator[RenderableType]:
    if not (tables := status.parts("rows")):
        return
    kinds = ("inserts", "updates", "deletes")
    yield ""
    yield Sheet(
        ("received from", *(f">{kind}" for kind in kinds), ">size"),
        [
            [
                _name(each, "table"),
                *(_count(each.number(kind)) for kind in kinds),
                _size(each.number("bytes")),
            ]
            for each in tables
        ],
    )


def _snapshots(status: Answer) -> Iterator[RenderableType]:
    if not (tables := status.parts("snapshots")):
        return
    total, rows = status.part("snapshot"), list[Row]()
    if (count := total.number("tables")) and count > 1:
        ended = f"{_count(total.number('ended'))} of {_count(count)} read"
        again = f", {_count(total.number('again'))} again" if total.number("again") else ""
        state = ("paused" if total.truth("paused") else ended) + again
        rows.append(["all tables", state, _bar(total), _count(total.number("rows")), ""])
    for each in tables:
        read, estimate = each.number("rows"), each.number("estimated_rows") or 0
        about = f" of about {estimate:,.0f}" if read is not None and estimate > read else ""
        pace = _count(each.number("rows_per_second"))
        state = _name(each, "state") + (" again" if each.truth("again") else "")
        rows.append([_name(each), state, _bar(each), f"{_count(read)}{about}", pace])
    yield ""
    yield Sheet(("table", "state", "done", "rows", "rows/s"), rows)
    if more := status.part("more_snapshots"):
        yield _line("and ", ", ".join(f"{_count(more.number(state))} {state}" for state in more.names()))


def _bar(described: Answer) -> Bar | str:
    done = described.number("done", 1.0)
    return _UNKNOWN if done is None else Bar(max(done, 0.0))
