"""Checks output against input: the number of rows, the sum of their ids, and their content."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from measuring import Bench
from workloads import Workload

from aiorepl.journal.reader import JournalReader

# The first column of every row that pgbench writes, from its history table.
_PGBENCH = "SELECT json_build_object('insert', sum(tid), 'update', sum(aid + tid + bid)) FROM pgbench_history"


@dataclass(frozen=True)
class Written:
    """The rows of a load.

    :param rows: how many, by kind.
    :param ids: sums of the first column, by kind: of new rows, and of deleted ones.
    :param content: the checksum of what was inserted into the columns that prove it.
    """

    rows: Mapping[str, int]
    ids: Mapping[str, int]
    content: int

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(self.rows.values())


def written(bench: Bench, workload: Workload, rows: Mapping[str, int]) -> Written:
    """Ask the server about a load."""
    if not workload.tables:
        return Written(rows, json.loads(bench.psql(_PGBENCH)), 0)
    ids = {kind: count * (count + 1) // 2 for kind, count in rows.items()}
    text = f"concat_ws('|', {', '.join(workload.proof)})"
    source = workload.source.format(inserts=rows["insert"])
    return Written(rows, ids, _checksum(bench.lines(f"COPY (SELECT {text} FROM {source}) TO STDOUT")))


def check_output(who: str, output: str, expected: Written) -> None:
    """Check a contestant that prints JSON: the number of rows by kind, and ``ids``, null if it reads no values.

    :raises SystemExit: when it has seen something else.
    """
    seen = json.loads(output)
    ids = seen.pop("ids")
    _require(who, "rows", seen, expected.rows)
    if ids is not None:
        _require(who, "sums of ids", ids, expected.ids)


def check_lines(who: str, files: Iterable[Path], workload: Workload, expected: Written) -> None:
    """Check files of events, one JSON object per line.

    :raises SystemExit: when something else is in them.
    """
    seen: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    content = 0
    for file in files:
        with file.open("rb") as lines:
            for event in map(orjson.loads, lines):
                kind, row = event["kind"], event["new"] or event["old"]
                seen[kind] += 1
                ids[kind] += next(iter(row.values()))
                if kind == "insert" and workload.proof:
                    content += zlib.crc32(_line(row, workload.proof))
    _require(who, "rows", seen, expected.rows)
    _require(who, "sums of ids", ids, expected.ids)
    _require(who, "checksum of content", content, expected.content)


def check_journal(who: str, folder: Path, expected: Written) -> None:
    """Check a journal by its index, without decoding it.

    :raises SystemExit: when it has another number of rows.
    """
    reader = JournalReader(folder)
    blocks = (block for segment in reader.segments() for block in reader.index(segment).blocks)
    _require(who, "rows", sum(sum(block.rows.values()) for block in blocks), expected.total)


def _line(row: Mapping[str, Any], names: Iterable[str]) -> bytes:
    return "|".join(str(row[name]) for name in names).encode()


def _checksum(lines: Iterable[bytes]) -> int:
    # A sum, because SQL does not find rows in commit order.
    return sum(zlib.crc32(line.rstrip(b"\n")) for line in lines)


def _require(who: str, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise SystemExit(f"{who}: {what}: {found} came out, {expected} went in")
