"""A mirror in a process of its own, for the random programs in ``tests/chaos``; it may kill itself at a point of ``kill_points``.

python -m tests.spark.mirror_process PLAN
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from aiorepl import AioreplError, RetryPolicy
from aiorepl.spark import IcebergLake, local_session
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergTarget
from aiorepl.spark.lake.table import Part
from aiorepl.spark.mirroring.mirror import Mirror
from aiorepl.spark.mirroring.running import MirrorRunner
from aiorepl.storage.objects.location import ObjectStore

from .kill_points import interrupted, lose


def main(plan: dict[str, Any]) -> int:
    """Run a mirror until it is killed, or to the end of the journal.

    Prints the number of the batch of which the checkpoint has lost a part, once Spark runs.

    :param plan: ``journal``, its folder, or its URL and configuration; ``mirror``, the options of ``Mirror``; ``lake``, ``delta``
        or ``iceberg``; ``loss`` and ``after``, what to lose first (``kill_points.lose``); ``log``, the file for Java's output;
        ``once``, whether to end at the end of the journal; ``point`` and ``later``, where the process kills itself, or ``None``;
        ``fails``, which call for a file fails with EIO, or 0;
        ``sabotage``, the name of a bug in ``SABOTAGES``, or ``None``.
    """
    folder = Path(plan["mirror"]["target"])
    lost = lose(folder / "_checkpoint", plan["loss"], plan["after"])
    lake, target = None, DeltaTarget
    if plan["lake"] == "iceberg":
        lake, target = IcebergLake(catalog(folder)), IcebergTarget
    if plan["sabotage"]:
        SABOTAGES[plan["sabotage"]](target)
    if plan["fails"]:
        fail(plan["fails"])
    session = partial(local_session, cores=1, memory="512m", log=plan["log"])
    session()
    print(lost, flush=True)
    again = RetryPolicy(timeout=None, wait_initial=0.1, wait_max=1.0)
    journal = plan["journal"]
    location = ObjectStore(**journal) if isinstance(journal, dict) else journal
    runner = MirrorRunner(Mirror(location, **plan["mirror"], lake=lake), session, again, once=plan["once"])
    kill = partial(os.kill, os.getpid(), signal.SIGKILL)
    point = plan["point"]
    with nullcontext() if point is None else interrupted(point, kill, plan["later"], target):
        try:
            runner.run()
        except AioreplError as error:
            sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
            return 1
    return 0


def fail(number: int) -> None:
    """Let one of the calls that sync, link or rename files fail with EIO."""
    calls = count(1)

    def failing(call: Any) -> Any:
        def made(*given: Any, **named: Any) -> Any:
            if next(calls) == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*given, **named)

        return made

    for name in ("fsync", "link", "rename", "replace"):
        setattr(os, name, failing(getattr(os, name)))


def catalog(folder: Path) -> Any:
    """Return the catalog of a mirror's Iceberg tables, which is in the mirror's folder."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(exist_ok=True)
    return SqlCatalog("mirror", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}/iceberg")


def forget_rows(target: Any) -> None:
    """Lose the last row of every part that is merged."""
    apply = target.apply

    def shorter(part: Part) -> Part:
        return replace(part, read=lambda: part.read()[:-1])

    def less(self: Any, commit: Any, runs: Any = (), *given: Any, **named: Any) -> None:
        fewer = [run._replace(parts=[shorter(part) for part in run.parts]) for run in runs]
        apply(self, commit, fewer, *given, **named)

    target.apply = less


def round_statistics(target: Any) -> None:
    """Write and use minima and maxima of wide decimals, which are rounded."""
    from aiorepl.spark.lake import delta_statistics, delta_writer

    delta_statistics.exact = delta_writer.exact = lambda kind: True


def skip_by_number(target: Any) -> None:
    """Skip a batch if the table has one with its number, or a later one, whatever changes that one had."""
    from aiorepl.spark.mirroring import table_batch

    # Only asked if the table has a batch with this number, or a later one.
    table_batch.reached = lambda target, application: (2**64, 0)


SABOTAGES = {
    "forget mirrored rows": forget_rows,
    "round statistics": round_statistics,
    "skip batches by number": skip_by_number,
}

if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
