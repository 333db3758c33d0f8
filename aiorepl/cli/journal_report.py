"""The output of ``aiorepl journal inspect``: one dictionary, printed as JSON or as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from aiorepl.errors import printable
from aiorepl.sizes import format_size

if TYPE_CHECKING:
    from aiorepl.history.inspection import HistoryInspection
    from aiorepl.journal.consumers import Consumer
    from aiorepl.journal.holder import Holder
    from aiorepl.journal.inspection import Inspection
    from aiorepl.journal.segments import Segment
    from aiorepl.lsn import LSN

_AGES: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def report(
    found: Inspection, history: HistoryInspection | None, now: float, *, segments: bool
) -> dict[str, Any]:
    """Describe a journal and its history.

    :param now: in seconds since 1970.
    :param segments: whether to list every segment.
    """
    chain = found.chain
    source, writer, whole = chain.identity.source, chain.state.writer, found.segments
    begins = chain.start_lsn or chain.first_readable
    description: dict[str, Any] = {
        "journal": found.url,
        "source": {
            "system_identifier": source.system_identifier,
            "timeline": source.timeline,
            "slot": source.slot,
        },
        "writer": None if writer is None else {"epoch": chain.state.epoch, **_process(writer)},
        "begins": str(begins),
        "pruned": bool(chain.start_lsn),
        "ends": str(chain.end_lsn),
        "segments": {
            "count": whole.count,
            "files": whole.files,
            "bytes": whole.size,
            "oldest": _time(whole.oldest),
            "newest": _time(whole.newest),
            "largest_bytes": whole.largest,
            "largest_files": whole.parts,
        },
        "tables": _tables(found),
        "history": None if history is None else _history(history, found),
        "cursors": [_cursor(each, found.url, now) for each in found.consumers],
        "prepared": [
            {
                "lsn": str(each.transaction.lsn),
                "xid": each.transaction.xid,
                "gid": each.transaction.gid,
                "bytes": each.size,
                "since": _time(each.since),
            }
            for each in found.prepared
        ],
        "gaps": [{"after": str(gap.after), "until": str(gap.until)} for gap in chain.gaps],
        "snapshots": [
            {"schema": each.schema, "table": each.table, "oid": each.oid, "from": str(each.start_lsn)}
            for each in chain.tables
            if each.open
        ],
    }
    if segments:
        description["segments"]["list"] = list(map(_segment, chain.walk()))
    return description


def _process(holder: Holder) -> dict[str, Any]:
    return {"host": holder.host, "process": holder.process, "since": _time(holder.since)}


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "file": segment.file,
        "after": str(segment.after),
        "end": str(segment.last_end_lsn),
        "part": segment.part,
        "parts": segment.parts,
        "blocks": segment.blocks,
        "bytes": segment.size,
        "published": _time(segment.published),
    }


def _tables(found: Inspection) -> list[dict[str, Any]]:
    completeness = found.chain.completeness
    reasons = _reasons(found, found.chain.start_lsn)
    none = (0, 0)
    sizes = {table: (each.files, each.size) for table, each in found.tables.items()}
    described = []
    for table in sorted(completeness.names | sizes.keys()):
        files, size = sizes.get(table, none)
        complete = completeness.complete_from(table)
        described.append(
            {
                "schema": table[0],
                "table": table[1],
                "files": files,
                "bytes": size,
                "complete_from": None if complete is None else str(complete),
                "incomplete": reasons.get(table),
            }
        )
    return described


def _reasons(found: Inspection, begins: LSN) -> dict[tuple[str, str], str]:
    """Return, by table, why the table is not whole for a reader that begins at ``begins``."""
    lacking = found.chain.completeness.incomplete(begins)
    return {(each.schema, each.table): each.reason for each in lacking}


def _history(found: HistoryInspection, journal: Inspection) -> dict[str, Any]:
    history = found.history
    reasons = _reasons(journal, history.start)
    return {
        "begins": str(history.start),
        "ends": str(history.end.lsn),
        "owner": _process(history.owner),
        "tables": [
            {
                "schema": each.table.schema or None,
                "table": each.table.name,
                "incomplete": reasons.get((each.table.schema, each.table.name)),
                **{
                    kind: {
                        "files": files.count,
                        "rows": files.rows,
                        "bytes": files.size,
                        "since": _time(files.since),
                    }
                    for kind, files in (("published", each.published), ("pending", each.pending))
                },
            }
            for each in found.tables
        ],
    }


def _cursor(consumer: Consumer, url: str, now: float) -> dict[str, Any]:
    cursor = consumer.cursor
    stalled = consumer.stalled(now)
    return {
        "name": consumer.name,
        "position": None if cursor is None else str(cursor.position.lsn),
        "query": None if cursor is None else cursor.query,
        "label": "" if cursor is None else cursor.label,
        "reader": None if cursor is None else _process(cursor.reader),
        "moved": None if cursor is None else _time(cursor.moved),
        "holds_bytes": consumer.held,
        "holds_since": _time(consumer.held_since),
        "stalled": stalled,
        "remedy": consumer.remedy(url) if stalled else None,
        "error": None if consumer.problem is None else str(consumer.problem),
    }


def lines(described: Mapping[str, Any], now: float) -> Iterator[str]:
    """Format the output of ``report`` for a terminal.

    :param now: in seconds since 1970.
    """
    source, writer, whole = described["source"], described["writer"], described["segments"]
    yield f"journal   {printable(described['journal'])}"
    yield f"source    cluster {source['system_identifier']}, timeline {source['timeline']}, slot {printable(source['slot'])}"
    if writer is not None:
        yield f"writer    {_holder(writer)}, epoch {writer['epoch']}"
    yield f"begins    {described['begins']}{', pruned before that' if described['pruned'] else ''}"
    yield f"ends      {described['ends']}"
    yield f"segments  {_segments(whole, now)}"
    for each in whole.get("list", ()):
        part = f"  part {each['part'] + 1} of {each['parts']}" if each["parts"] > 1 else ""
        yield (
            f"segment   {each['after']} to {each['end']}{part}  {each['blocks']} block{'s' * (each['blocks'] != 1)}  {format_size(each['bytes'])}  "
            f"{each['published']}"
        )
    for each in described["tables"]:
        complete = "" if each["complete_from"] is None else f", complete from {each['complete_from']}"
        yield f"table     {_table(each)}  in {_files(each['files'])} of {format_size(each['bytes'])}{complete}{_incomplete(each)}"
    history = described["history"]
    if history is not None:
        yield f"history   {history['begins']} to {history['ends']}; compacted by {_holder(history['owner'])}"
        for each in history["tables"]:
            yield f"history   {_table(each)}  {_parquet(each['published'])}{_pending(each['pending'], now)}{_incomplete(each)}"
    for each in described["cursors"]:
        yield f"cursor    {_cursor_line(each, now)}"
    for each in described["prepared"]:
        yield (
            f"prepared  {each['lsn']}  xid {each['xid']}, {printable(each['gid'])!r}, {format_size(each['bytes'])}, not committed or rolled "
            f"back for {_age(each['since'], now)}"
        )
    for each in described["gaps"]:
        yield f"gap       {each['after']} to {each['until']}  accepted: transactions that committed here are missing"
    for each in described["snapshots"]:
        yield f"snapshot  {_table(each)}  is being read; its segments from {each['from']} on are kept"


def dropped(consumer: Consumer | None, now: float) -> str:
    """Describe a dropped cursor: the segments that it kept, and who may still use it."""
    if consumer is None or consumer.cursor is None:
        return ""
    cursor = consumer.cursor
    kept = f"; it kept {format_size(consumer.held)}" if consumer.held else ""
    moved = _duration(now - cursor.moved)
    return (
        f"{kept}; it moved last {moved} ago ({printable(str(cursor.reader))}): if that reader still runs, it registers again with its "
        "next move"
    )


def _segments(whole: Mapping[str, Any], now: float) -> str:
    if not whole["count"]:
        return "none"
    parts = f" in {_files(whole['files'])}" if whole["files"] != whole["count"] else ""
    largest = (
        f"the largest transaction has {whole['largest_files']} files of {format_size(whole['largest_bytes'])}"
        if whole["largest_files"] > 1
        else f"the largest has {format_size(whole['largest_bytes'])}"
    )
    return (
        f"{whole['count']:,}{parts}, {format_size(whole['bytes'])}, {_age(whole['oldest'], now)} to {_age(whole['newest'], now)} old; "
        f"{largest}"
    )


def _cursor_line(each: Mapping[str, Any], now: float) -> str:
    name = printable(each["name"])
    if each["reader"] is None:
        return f"{name}  {each['error']}"
    position = "at the beginning" if each["position"] == "0/0" else f"at {each['position']}"
    label = f" ({printable(each['label'])})" if each["label"] else ""
    line = f"{name}{label}  {position}, moved {_age(each['moved'], now)} ago by {_holder(each['reader'])}"
    if each["holds_since"] is not None:
        line += f"; keeps {format_size(each['holds_bytes'])}, {_age(each['holds_since'], now)} old"
    if each["stalled"]:
        line += f"; STALLED: {each['remedy']}"
    if each["error"] is not None:
        line += f"; {each['error']}"
    return line


def _pending(files: Mapping[str, Any], now: float) -> str:
    return f"; pending {_parquet(files)}, {_age(files['since'], now)} old" if files["files"] else ""


def _incomplete(each: Mapping[str, Any]) -> str:
    return "" if each["incomplete"] is None else f"; not all rows: {each['incomplete']}"


def _parquet(files: Mapping[str, Any]) -> str:
    rows = files["rows"]
    return f"{rows:,} row{'s' * (rows != 1)} in {_files(files['files'])} of {format_size(files['bytes'])}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _table(each: Mapping[str, Any]) -> str:
    return printable(each["table"] if each["schema"] is None else f"{each['schema']}.{each['table']}")


def _holder(each: Mapping[str, Any]) -> str:
    return f"host {printable(each['host'])}, process {each['process']}, since {each['since']}"


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _age(time: str, now: float) -> str:
    return _duration(now - datetime.fromisoformat(time).timestamp())


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    unit, name = next(((unit, name) for unit, name in _AGES if whole >= unit), (1, "s"))
    return f"{whole // unit} {name}"
