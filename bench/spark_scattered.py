"""The running mirror with a large table: what batches of scattered updates cost, from their commit to the lake."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lake
from measuring import ENVIRONMENT, Bench, tree_cpu

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.lake.table import Run
from aiorepl.spark.mirroring.reduction import reduce_changes

_WARM, _BATCHES, _CHANGES = 5, 15, 1000
_MOST_SECONDS = 600
_TABLE = (
    "CREATE TABLE items (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2), note text); "
    "CREATE PUBLICATION bench FOR ALL TABLES"
)


def scattered(
    bench: Bench, folder: Path, kind: str, rows: int, captured: Callable[[Path], Any]
) -> tuple[list[float], list[float], list[int]]:
    """Return for each batch the seconds until it is visible, the CPU seconds of the mirror's processes, and the bytes written.

    :param kind: delta or iceberg.
    :param rows: the number of rows of the table in the lake. The source has only those that change.
    :param captured: runs a pipeline into a journal.
    """
    ids = sorted(random.Random(0).sample(range(rows), _CHANGES * (_WARM + _BATCHES)))
    random.Random(1).shuffle(ids)
    bench.psql(_TABLE)
    chosen = [ids[first : first + _CHANGES] for first in range(0, len(ids), _CHANGES)]
    for some in chosen:
        bench.psql(f"INSERT INTO items SELECT id, 0, 0, '' FROM unnest(ARRAY{some}) id")
    target = _filled(folder, kind, rows)
    found: tuple[list[float], list[float], list[int]] = ([], [], [])
    with captured(folder / "journal"), _mirror(folder, kind) as process:
        for number, some in enumerate(chosen):
            before = LSN.parse(bench.psql("SELECT pg_current_wal_lsn()"))
            size, used = lake._bytes(folder / "lake"), tree_cpu(process.pid)
            bench.psql(
                f"UPDATE items SET amount = {number}, note = 'batch {number} of ' || id WHERE id = ANY (ARRAY{some})"
            )
            committed = time.monotonic()
            _wait(process, target, before)
            seconds = time.monotonic() - committed
            time.sleep(0.5)  # what follows the commit belongs to the batch, too
            for values, value in zip(
                found,
                (seconds, tree_cpu(process.pid) - used, lake._bytes(folder / "lake") - size),
                strict=True,
            ):
                values.append(value)
    assert lake._count(target) == rows
    return tuple(values[_WARM:] for values in found)  # type: ignore[return-value]


def describe(found: tuple[list[float], list[float], list[int]]) -> str:
    """Describe the measurements."""
    seconds, cpu, written = found
    return (
        f"median {statistics.median(cpu):.2f} s of CPU a batch, visible after {statistics.median(seconds):.2f} s, "
        f"p95 {statistics.quantiles(seconds, n=20)[-1]:.2f} s; {statistics.median(written):,.0f} bytes written"
    )


def _filled(folder: Path, kind: str, rows: int) -> Any:
    place = folder / "lake"
    place.mkdir(parents=True)
    if kind == "delta":
        target: Any = DeltaTarget(str(place / "public" / "items"))
        settings = ""
    else:
        from pyiceberg.catalog import load_catalog

        properties = {"type": "sql", "uri": f"sqlite:///{place}/catalog", "warehouse": f"file://{place}"}
        target = IcebergLake(load_catalog("default", **properties)).table(("public", "items"))
        lines = "".join(f"{name} = '{value}'\n" for name, value in properties.items())
        settings = f"[iceberg]\n[iceberg.properties]\n{lines}"
    for first in range(0, rows, lake._SLICE):
        changes = lake._changes(
            range(first, min(first + lake._SLICE, rows)), 1 + first // lake._SLICE, "insert"
        )
        run = Run(("id",), reduce_changes(changes, ("id",), "current").parts(2**25))
        target.apply(lake.Commit("bench", first, LSN(1), (1, 1)), [run], lake.SOURCE)
    (folder / "mirror.toml").write_text(
        f"[journal]\nurl = '{folder}/journal'\n[mirror]\ntables = ['public.*']\ntarget = '{place}'\n{settings}"
    )
    return target


@contextmanager
def _mirror(folder: Path, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "aiorepl", "spark", "mirror", str(folder / "mirror.toml")]
    process = subprocess.Popen(command, env=ENVIRONMENT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], target: Any, lsn: LSN) -> None:
    began = time.monotonic()
    while time.monotonic() - began < _MOST_SECONDS:
        newest = next(iter(target.versions()), None)
        if newest is not None and newest.commit.application != "bench" and newest.commit.lsn > lsn:
            return
        if process.poll() is not None:
            raise SystemExit(f"the mirror ended with {process.returncode}")
        time.sleep(0.02)
    raise SystemExit("the mirror does not follow")
